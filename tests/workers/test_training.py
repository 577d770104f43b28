"""A transformer's training has plain torch's losses under every plan, and goes on after a device has died."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE, examples
from tests.training import DEPTH, MICRO_BATCHES, PLANS, Training, losses_by_torch
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller.pool import ProcessPool

pytestmark = pytest.mark.alone

STEPS, KILLED_AT = examples(8, 50), examples(4, 30)
TRIED = PLANS if IS_WHOLE else ("1f1b",)  # with devices of any size; fsdp is tried before the death, tp after it
LIMIT_NBYTES = examples(6, 12) << 20  # what a device may hold then


@pytest.fixture
def wanted() -> Iterator[list[float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield losses_by_torch(STEPS)
    torch.set_num_threads(threads)


def test_a_training_has_plain_torchs_losses_under_every_plan_and_after_a_death(
    pool: ProcessPool, wanted: list[float], tmp_path: Path
) -> None:
    def check(losses: list[float], steps: range, plan: str) -> None:
        torch.testing.assert_close(losses, wanted[steps.start : steps.stop], rtol=0, atol=1e-3, msg=plan)

    every = range(STEPS)
    for plan in TRIED:
        check(Training(plan).losses(every), every, plan)
    before, after = range(KILLED_AT), range(KILLED_AT, STEPS)
    ts.init(devices=8, runtime="process", memory_per_device=LIMIT_NBYTES)
    if IS_WHOLE:
        with pytest.raises(ts.OutOfMemoryError):
            Training("dp").losses(range(1))
    training = Training("fsdp")
    assert counts(training) == fsdp_counts(training)
    check(training.losses(before), before, "fsdp")
    training.save(tmp_path / "training")
    os.kill(worker_of(3), signal.SIGKILL)
    with pytest.raises(ts.DeviceLostError, match="CPU 3"):
        training.losses(after)
    ts.init(devices=4, runtime="process", memory_per_device=LIMIT_NBYTES)
    check(Training("tp", tmp_path / "training").losses(after), after, "tp, from the files of fsdp")


def worker_of(device: int) -> int:
    runtime = lifecycle.current()
    assert isinstance(runtime, ProcessPool)
    return runtime.pid(device)


def counts(training: Training) -> dict[str, int]:
    """How often each collective runs in a step."""
    compiled = training.step.lower(*training.arguments(0)).compile()
    return {each.kind: each.count for each in compiled.cost_analysis().traffic}


def fsdp_counts(training: Training) -> dict[str, int]:
    """What each micro-batch has, and the norm of the gradients.

    A layer has 16 parameters. Forwards all are gathered. The gradient gathers what it computes again needs, all but
    `down` (14), and the matrices for the gradients of their inputs: the six again. The head's once more, too.
    """
    params = len(training.params)
    return {
        "all_gather": MICRO_BATCHES * (params + DEPTH * (14 + 6) + 1),
        "reduce_scatter": MICRO_BATCHES * params,
        "all_reduce": MICRO_BATCHES * 2 + params,  # the loss and its count of targets; the norm
    }
