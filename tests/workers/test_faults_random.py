"""Devices are stopped and killed at random moments, beside a busy machine: each wait ends in time, the others go on.

A few times here; `TINYSHARD_FAULTS=200 make faults` does it two hundred times each.
It keeps all cores busy by itself, so no other file runs beside it.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import tinyshard as ts
from tests.extent import examples
from tests.workers.limits import OVER_WITHIN_S, outcome
from tests.workers.processes import stopped

pytestmark = pytest.mark.alone

COUNT = int(os.environ.get("TINYSHARD_FAULTS", examples(2, 6)))
# two busy processes share two cores with eight devices: what takes milliseconds may take this much longer
LOADED_S = 10


@pytest.fixture(scope="module", autouse=True)
def busy_machine():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()


class Loop:
    """A thread that calls small and large programs, with and without an exchange, until it is ended or a call raises.

    Attributes:
        error: what a call raised.
        wrong: a result that was not as it should be.
    """

    def __init__(self, rows):
        self._x = ts.device_put(torch.ones(8, 20_000), rows)
        self._is_ended = False
        self.error = self.wrong = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        step = ts.jit(lambda v: v + v.sum(0) / 8)
        try:
            while not self._is_ended:
                small = (self._x[:, :2] + 1).sum(0)
                large = step(self._x)
                got = small.tolist(), float(large[3, 7])
                if got != ([16.0, 16.0], 2.0):
                    self.wrong = got
                    return
        except ts.TinyshardError as error:
            self.error = error

    def end(self, within_s):
        self._is_ended = True
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"not over after {within_s} s"


def test_a_device_that_stops_at_any_moment_holds_up_nothing_but_its_own(pool, rows):
    chance = random.Random(0)
    devices = ts.devices()
    alone = [ts.device_put(torch.arange(3.0), device) for device in devices]
    for _ in range(COUNT):
        loop = Loop(rows)
        time.sleep(chance.random() * 0.1)
        victim = chance.randrange(8)
        with stopped(devices[victim].pid):
            time.sleep(chance.random() * 0.2)
        loop.end(LOADED_S)
        assert loop.error is None and loop.wrong is None
        with stopped(devices[victim].pid):
            other = chance.choice([device for device in range(8) if device != victim])
            assert outcome((alone[other] + 1).tolist, LOADED_S)() == [1, 2, 3]
        assert outcome((alone[victim] + 2).tolist, LOADED_S)() == [2, 3, 4]


def test_a_device_that_dies_at_any_moment_ends_each_wait_in_time_and_by_name(pool, rows):
    chance = random.Random(1)
    for _ in range(COUNT):
        ts.init(devices=8, runtime="process")
        devices = ts.devices()
        sharding = ts.sharding.PositionalSharding(devices).reshape(8, 1)
        alone = [ts.device_put(torch.arange(3.0), device).block_until_ready() for device in devices]
        loop = Loop(sharding)
        time.sleep(chance.random() * 0.1)
        victim = chance.randrange(8)
        killed = devices[victim].pid
        os.kill(killed, signal.SIGKILL)
        loop.end(OVER_WITHIN_S + LOADED_S)
        assert loop.wrong is None
        if loop.error is not None:
            assert isinstance(loop.error, ts.DeviceLostError)
            assert f"CPU {victim} is gone: killed by signal 9 (SIGKILL)" in str(loop.error)
        error = outcome((alone[victim] + 1).tolist, OVER_WITHIN_S + LOADED_S)()
        assert isinstance(error, ts.DeviceLostError)
        other = chance.choice([device for device in range(8) if device != victim])
        assert outcome(alone[other].tolist, LOADED_S)() == [0, 1, 2]
