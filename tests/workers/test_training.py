"""A transformer's training has plain torch's losses under every plan, and goes on after a device has died."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE, examples
from tests.training import PLANS, Training, losses_by_torch
from tinyshard.runtime.controller.pool import ProcessPool

pytestmark = pytest.mark.alone

STEPS, KILLED_AT = examples(12, 50), examples(6, 30)
TRIED = PLANS if IS_WHOLE else ("1f1b",)  # beside fsdp and tp, one before and one after the death
MOST_NBYTES = examples(5, 12) << 20  # what a device may hold


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
    training = Training("fsdp")
    assert peak(training) < MOST_NBYTES < peak(Training("dp"))
    check(training.losses(before), before, "fsdp")
    training.save(tmp_path / "training")
    os.kill(pool.pid(3), signal.SIGKILL)
    with pytest.raises(ts.DeviceLostError, match="CPU 3"):
        training.losses(after)
    ts.init(devices=4, runtime="process")
    check(Training("tp", tmp_path / "training").losses(after), after, "tp, from the files of fsdp")


def peak(training: Training) -> int:
    """The most bytes that a device holds in a step."""
    held: int = training.step.lower(*training.arguments(0)).compile().memory_analysis().peak_nbytes
    return held
