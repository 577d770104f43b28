"""On which core a device runs: as many on each, and never those together that have work at the same time."""

import collections
import itertools
import os

import pytest

from tinyshard.runtime.launch.processors import SMALL_CALLS, Pinned, cores_of

SHAPES = [(2, 4), (4, 2), (2, 2, 2), (8,)]


@pytest.mark.parametrize(("count", "cores"), [(8, [0, 1]), (8, {4, 6, 5, 9}), (4, [0, 1]), (16, [2, 7])])
def test_each_core_has_as_many_devices(count, cores):
    had = collections.Counter(cores_of(count, cores))
    assert had == dict.fromkeys(cores, count // len(cores))


@pytest.mark.parametrize(
    ("count", "cores"),
    [(8, [0]), (8, range(3)), (8, range(6)), (6, [0, 1]), (6, range(3)), (8, range(8)), (2, [0, 1]), (1, [5])],
)
def test_where_the_devices_cannot_be_dealt_out_evenly_or_need_not_be_nothing_is_said(count, cores):
    assert cores_of(count, cores) == ()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_devices_along_any_axis_of_a_mesh_are_on_different_cores(shape):
    """Of eight devices on two cores, any line that is two or more long has both."""
    for axis, size in enumerate(shape):
        others = [range(n) if k != axis else [None] for k, n in enumerate(shape)]
        for place in itertools.product(*others):
            line = [[i if p is None else p for p in place] for i in range(size)]
            ids = [sum(x * step for x, step in zip(at, steps_of(shape), strict=True)) for at in line]
            had = collections.Counter(cores_of(8, [0, 1])[device] for device in ids)
            assert had == {0: size // 2, 1: size // 2}


@pytest.mark.parametrize(("other", "moves"), [(1, [0, 1, 0, 1, 0]), (None, [0])])
def test_a_device_leaves_its_core_after_some_small_calls_and_is_back_before_the_next_long_one(
    other, moves, monkeypatch
):
    went = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: went.extend(cores), raising=False)
    pinned = Pinned(0, other)
    for is_small in [*[True] * (SMALL_CALLS - 1), False, *[*[True] * (SMALL_CALLS + 3), False, False] * 2]:
        pinned.before(is_small=is_small)
    assert went == moves


def steps_of(shape):
    steps = [1]
    for size in shape[:0:-1]:
        steps.insert(0, steps[0] * size)
    return steps
