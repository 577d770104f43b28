"""Which devices make progress, and which reached a collective: as plain data."""

import time
from types import SimpleNamespace

import pytest

import tinyshard as ts
from tinyshard.runtime.controller.connection import Sight
from tinyshard.runtime.controller.watchdog import check_progress, look_again, stalled, stuck_collective

REDUCE = (7, 3, "all_reduce", (0, 1, 2))
PAIR = (5, 1, "all_gather", (2, 3))


def seen(device, moved_s=0.0, current=None, done=0):
    return Sight(device, moved_s, moved_s, False, done, current)


def by_device(*sights):
    return {sight.device: sight for sight in sights}


def test_a_device_gets_on_if_it_finishes_reaches_or_computes():
    before = Sight(0, 10.0, 12.0, False, 4, REDUCE, 1.0)
    assert look_again(before, 13.0, 4, REDUCE, 1.001).moved_s == 10
    assert look_again(before, 13.0, 5, REDUCE, 1.001).moved_s == 13
    assert look_again(before, 13.0, 4, PAIR, 1.001).moved_s == 13
    assert look_again(before, 13.0, 4, REDUCE, 1.02).moved_s == 13
    assert look_again(before, 30.0, 4, REDUCE, 1.001).moved_s == 30  # it was stopped, and goes on


def test_a_wait_is_given_up_only_if_none_that_it_depends_on_gets_on():
    sights = by_device(seen(0, 0, REDUCE), seen(1, 0, REDUCE), seen(2, 0, PAIR), seen(3, 9.0), seen(4, 9.9))
    assert stalled(sights, [0], 10, 18.0) == []  # 0 waits for 2, 2 for 3, and 3 moved 9 s ago
    assert [sight.device for sight in stalled(sights, [0], 10, 19.0)] == [0, 1, 2, 3]
    assert stalled(sights, [4], 10, 19.0) == []


def test_the_first_collective_is_the_one_that_holds_up_the_others():
    sights = [seen(0, current=REDUCE), seen(1, current=REDUCE), seen(2, current=PAIR), seen(3, done=4)]
    assert stuck_collective(sights) == (PAIR, [2], [3])
    assert stuck_collective(sights[:2]) == (REDUCE, [0, 1], [2])
    assert stuck_collective([seen(3)]) is None
    assert stuck_collective([seen(2, current=PAIR), seen(3, done=5)]) == (PAIR, [2, 3], [])


def test_who_was_asked_a_moment_ago_is_not_said_to_be_silent():
    """A look has just been asked for when a wait is given up: on a busy machine some have not answered it yet."""
    now_s = time.monotonic()

    def link(device, seen_s, is_silent):
        current = None if device == 2 else REDUCE
        sight = Sight(device, now_s - 1000, now_s - seen_s, is_silent, 6, current)
        return SimpleNamespace(device=device, sight=sight, done=6, lost="")

    links = [link(0, 3, True), link(1, 0.1, False), link(2, 999, True)]
    with pytest.raises(ts.CollectiveTimeoutError) as told:
        check_progress(links, [], [0], now_s - 1000, "cpu")
    assert "reached by CPU 0,1; not reached by CPU 2" in str(told.value)
    assert "CPU 2 does not answer" in str(told.value)
