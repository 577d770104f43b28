"""Collectives in shared memory that has run out for one device: all of them hear so, and nobody waits for anybody."""

import os
import threading

import pytest
import torch

from tinyshard.program import Meta
from tinyshard.runtime import arena, notes
from tinyshard.runtime.arena import Arena
from tinyshard.runtime.board import NOTES
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
    return fabrics_of(2)


def fabrics_of(count):
    fd = arena.create(count)
    made = [SharedFabric(Arena(fd, count, member)) for member in range(count)]
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

    threads = [threading.Thread(target=run, args=(device,), daemon=True) for device in range(len(fabrics))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "one of them waits for another for ever"
    return ended


def perform(name):
    x = torch.ones(SHAPE)
    params = COLLECTIVES.get(name, {"moves": BOTH_WAYS})
    return lambda fabric: fabric.ready(name, DEVICES, (2,), (0,), params, META, META)(x)


def total(fabric, x, devices):
    """The sum of what these devices bring."""
    meta = Meta(tuple(x.shape), x.dtype)
    return fabric.ready("all_reduce", devices, (len(devices),), (0,), {"op": "sum"}, meta, meta)(x)


# the first device of a group makes the room for what all of them gather
CASES = [(name, full) for name in (*COLLECTIVES, "transfer") for full in DEVICES if (name, full) != ("all_gather", 1)]


@pytest.mark.parametrize(("name", "full"), CASES)
def test_memory_that_runs_out_on_one_device_ends_the_collective_for_all_and_the_next_is_right(fabrics, name, full):
    fill(fabrics[full]._arena)
    ended = of_all(fabrics, perform(name))
    assert isinstance(ended[full], MemoryError) and "no room for" in str(ended[full])
    assert isinstance(ended[1 - full], MemoryError) and f"device {full} had no room" in str(ended[1 - full])
    for fabric in fabrics:
        fabric._arena.collect()
        assert not fabric._arena._given.any(), "a block is held by nobody, and never had again"
    small = of_all(fabrics, lambda fabric: total(fabric, torch.ones(3), DEVICES))
    assert [x.tolist() for x in small] == [[2.0] * 3] * 2


def summed(fabric, value, devices):
    return total(fabric, torch.full((3,), value), devices).tolist()


def test_a_note_that_somebody_still_reads_is_not_written_anew(monkeypatch):
    """Device 1 is slow to read what 0 gave it, while 0 exchanges with 2, more often than there are notes."""
    fabrics = fabrics_of(3)
    may_read, results = threading.Event(), {}
    read = notes.reduced

    def slowly(*args):
        if threading.current_thread() is threads[1]:
            may_read.wait(20)
        return read(*args)

    monkeypatch.setattr(notes, "reduced", slowly)

    def first():
        summed(fabrics[0], 1.0, (0, 1))
        results[0] = [summed(fabrics[0], 100.0 + k, (0, 2)) for k in range(2 * NOTES)]

    def reader():
        results[1] = summed(fabrics[1], 10.0, (0, 1))

    def other():
        results[2] = [summed(fabrics[2], 1000.0, (0, 2)) for k in range(2 * NOTES)]

    threads = [threading.Thread(target=each, daemon=True) for each in (first, reader, other)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    assert threads[0].is_alive(), "it should wait for the reader"
    may_read.set()
    for thread in threads:
        thread.join(20)
    assert results[1] == [11.0] * 3
    assert results[0] == results[2] == [[1100.0 + k] * 3 for k in range(2 * NOTES)]


def test_sums_of_many_elements_are_those_of_the_rows_whatever_lies_between_them():
    """The operands of four devices at equal and at unequal distances."""
    generator = torch.Generator().manual_seed(0)
    hosts = [torch.randn(30_000, generator=generator) for _ in range(4)]
    wanted = hosts[0] + hosts[1] + hosts[2] + hosts[3]
    for spaces in ((0, 0, 0, 0), (0, 5, 1, 0)):
        fabrics = fabrics_of(4)
        for fabric, count in zip(fabrics, spaces, strict=True):
            for _ in range(count):
                fabric._arena.allocate(100_000, [fabric._device])
        operands = [
            f._arena.hold(f._arena.copied(h, [f._device]), h.shape, h.dtype)
            for f, h in zip(fabrics, hosts, strict=True)
        ]
        results = of_all(fabrics, lambda fabric, x=operands: total(fabric, x[fabric._device], (0, 1, 2, 3)))
        assert all(torch.equal(result, wanted) for result in results)
