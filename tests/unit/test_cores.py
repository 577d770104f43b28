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


@pytest.mark.parametrize(("cores", "away"), [((0, 1), 1), ((0,), 0)])
def test_a_device_that_has_another_core_is_there_from_the_last_of_some_small_calls_to_the_next_other_one(
    cores, away, monkeypatch
):
    at = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: at.extend(cores), raising=False)
    pinned, found, wanted = Pinned(*cores), [], []
    for small_calls in (SMALL_CALLS - 1, SMALL_CALLS + 3, 0, SMALL_CALLS):
        for is_small in [*[True] * small_calls, False]:
            pinned.before(is_small=is_small)
            found.append(at[-1])
        wanted += [*[0] * min(small_calls, SMALL_CALLS - 1), *[away] * max(0, small_calls - SMALL_CALLS + 1), 0]
    assert found == wanted


def steps_of(shape):
    steps = [1]
    for size in shape[:0:-1]:
        steps.insert(0, steps[0] * size)
    return steps
