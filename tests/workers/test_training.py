"""A transformer's training has plain torch's losses under every plan, and goes on after a device has died."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE, examples, mostly_whole
from tests.training import DEPTH, MICRO_BATCHES, PLANS, Training, losses_by_torch
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller.pool import ProcessPool

pytestmark = pytest.mark.alone

STEPS, KILLED_AT = examples(8, 50), examples(4, 30)
LIMIT_NBYTES = examples(6, 12) << 20  # what a device may hold then


@pytest.fixture(scope="module")
def wanted() -> Iterator[list[float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield losses_by_torch(STEPS)
    torch.set_num_threads(threads)


def check(losses: list[float], wanted: list[float], plan: str) -> None:
    torch.testing.assert_close(losses, wanted, rtol=0, atol=1e-3, msg=plan)


@pytest.mark.parametrize("plan", mostly_whole(PLANS, lambda plan: plan == "1f1b"))
def test_a_training_has_plain_torchs_losses(pool: ProcessPool, wanted: list[float], plan: str) -> None:
    check(Training(plan).losses(range(STEPS)), wanted, plan)


def test_under_a_limit_that_one_device_cannot_meet_a_training_goes_on_after_a_death_on_another_mesh(
    pool: ProcessPool, wanted: list[float], tmp_path: Path
) -> None:
    before, after = range(KILLED_AT), range(KILLED_AT, STEPS)
    ts.init(devices=8, runtime="process", memory_per_device=LIMIT_NBYTES)
    if IS_WHOLE:
        with pytest.raises(ts.OutOfMemoryError):
            Training("dp").losses(range(1))
    training = Training("fsdp")
    assert counts(training) == fsdp_counts(training)
    check(training.losses(before), wanted[:KILLED_AT], "fsdp")
    training.save(tmp_path / "training")
    os.kill(worker_of(3), signal.SIGKILL)
    with pytest.raises(ts.DeviceLostError, match="CPU 3"):
        training.losses(after)
    ts.init(devices=4, runtime="process", memory_per_device=LIMIT_NBYTES)
    resumed = Training("tp", tmp_path / "training")
    check(resumed.losses(after), wanted[KILLED_AT:], "tp, from the files of fsdp")


def worker_of(device: int) -> int:
    runtime = lifecycle.current()
    assert isinstance(runtime, ProcessPool)
    return runtime.pid(device)


def counts(training: Training) -> dict[str, int]:
    """How often each collective runs in a step, each by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ts.config.values, "combine_nbytes", 0)
        compiled = training.step.lower(*training.arguments(0)).compile()
    return {each.kind: each.count for each in compiled.cost_analysis().traffic}


def fsdp_counts(training: Training) -> dict[str, int]:
    """What each micro-batch has, and the norm of the gradients.

    A layer has 16 parameters. Forwards all are gathered. The gradient gathers what it computes again needs, all but
    `down` (14), and that for the gradient of its input. A matrix and its transpose share what is gathered.
    """
    params = len(training.params)
    return {
        "all_gather": MICRO_BATCHES * (params + DEPTH * (14 + 1)),
        "reduce_scatter": MICRO_BATCHES * params,
        "all_reduce": MICRO_BATCHES * 2 + params,  # the loss and its count of targets; the norm
    }
