"""Collectives in shared memory that has run out for one device: all of them hear so, and nobody waits for anybody."""

import os
import threading

import pytest
import torch

from tinyshard.program import Meta
from tinyshard.runtime import arena
from tinyshard.runtime.arena import Arena
from tinyshard.runtime.shared import SharedFabric

pytestmark = pytest.mark.skipif(not arena.is_possible(), reason="shared memory needs Linux on x86-64")

DEVICES = (0, 1)
SHAPE = (200, 100)  # too much for a note
COLLECTIVES = {
    "all_reduce": {"op": "sum"},
    "all_gather": {"dim": 0},
    "reduce_scatter": {"dim": 0, "op": "sum"},
    "all_to_all": {"split": 0, "join": 1},
    "collective_permute": {"pairs": ((0, 1), (1, 0))},
}
BOTH_WAYS = [(0, 1, (slice(None),), (slice(None),)), (1, 0, (slice(None),), (slice(None),))]
META = Meta(SHAPE, torch.float32)


@pytest.fixture
def fabrics():
    """Two devices, for two threads of this process."""
    fd = arena.create(2)
    made = [SharedFabric(Arena(fd, 2, member)) for member in DEVICES]
    os.close(fd)
    return made


def fill(member):
    """Leave no room for a block of it."""
    member._end = member._start


def of_all(fabrics, call):
    """What the devices return or raise, when each of them calls at the same time; none may wait for ever."""
    ended = [None] * len(fabrics)

    def run(device):
        try:
            ended[device] = call(fabrics[device])
        except Exception as error:  # it is what the test asks about
            ended[device] = error

    threads = [threading.Thread(target=run, args=(device,), daemon=True) for device in DEVICES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "one of them waits for another for ever"
    return ended


def perform(name):
    x = torch.ones(SHAPE)
    if name == "transfer":
        return lambda fabric: fabric.transfer(x, META, DEVICES, META, BOTH_WAYS)
    return lambda fabric: fabric.perform(name, x, DEVICES, (2,), (0,), dict(COLLECTIVES[name]))


# the first device of a group makes the room for what all of them gather
CASES = [(name, full) for name in (*COLLECTIVES, "transfer") for full in DEVICES if (name, full) != ("all_gather", 1)]


@pytest.mark.parametrize(("name", "full"), CASES)
def test_memory_that_runs_out_on_one_device_ends_the_collective_for_all_and_the_next_is_right(fabrics, name, full):
    fill(fabrics[full]._arena)
    ended = of_all(fabrics, perform(name))
    assert isinstance(ended[full], MemoryError) and "no room for" in str(ended[full])
    assert isinstance(ended[1 - full], MemoryError) and f"device {full} had no room" in str(ended[1 - full])
    small = of_all(fabrics, lambda f: f.perform("all_reduce", torch.ones(3), DEVICES, (2,), (0,), {"op": "sum"}))
    assert [x.tolist() for x in small] == [[2.0] * 3] * 2
