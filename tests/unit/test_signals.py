"""Waiting for another member: between threads here, between processes in tests/workers."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tinyshard.runtime import futex, signals
from tinyshard.runtime.collectives.base import group_of
from tinyshard.runtime.shm import allocator
from tinyshard.runtime.signals import PeerLostError, Signals

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")


ALL = (0, 1, 2)


def ends_of(pids):
    count = len(pids)
    told, gates = np.zeros((count, 8, 2), np.int64), np.zeros(8, np.int64)  # padded, as on the board
    return [Signals(told, gates, np.array(pids), np.zeros(2, np.int64), member) for member in range(count)]


@pytest.fixture(params=[0, signals.YIELD_IN_EXCHANGE_FOR_NS], ids=["sleeping", "yielding"])
def ends(request, monkeypatch):
    monkeypatch.setattr(signals, "YIELD_IN_EXCHANGE_FOR_NS", request.param)
    ends = ends_of([os.getpid()] * 3)
    assert all(end._yielding._for_ns == request.param for end in ends)
    return ends


def meet(ends, members, member):
    group = group_of(members, member)
    ends[member].come(group)
    return ends[member].wait(group)


def in_threads(*calls):
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "one of them waits for ever"


def test_all_members_of_a_group_meet_again_and_again(ends):
    met = []

    def come(member):
        for number in range(500):
            meet(ends, ALL, member)
            met.append(number)

    in_threads(*(lambda m=m: come(m) for m in ALL))
    assert all(abs(i // 3 - number) <= 1 for i, number in enumerate(met))  # nobody is ahead by two
    assert len(met) == 1500


def test_who_sleeps_is_woken_by_who_comes_last(ends, monkeypatch):
    monkeypatch.setattr(signals, "_LOOK_AGAIN", futex.timespec(1000.0))
    in_threads(*(lambda m=m: [meet(ends, ALL, m) for _ in range(2000)] for m in ALL))


def test_each_is_told_as_which_exchange_of_their_own_the_others_count_this_one(ends):
    told = {}

    def come(member):
        for _ in range(member * 3):
            meet(ends, (member,), member)
        told[member] = meet(ends, ALL, member), meet(ends, ALL[::-1], member)

    in_threads(*(lambda m=m: come(m) for m in ALL))
    assert told == {0: ([4, 7], [8, 5]), 1: ([1, 7], [8, 2]), 2: ([1, 4], [5, 2])}


def test_groups_that_share_members_do_not_disturb_each_other(ends):
    """Each pair meets as often as they like, in an order that all know, while the third is elsewhere."""
    pairs = [(0, 1), (1, 2), (0, 1), (0, 1), (0, 2), (1, 2), (2, 1), (1, 0)] * 50
    met = {m: [] for m in ALL}

    def come(member):
        for pair in pairs:
            if member in pair:
                met[member].append((pair, *meet(ends, pair, member)))

    in_threads(*(lambda m=m: come(m) for m in ALL))
    for member in ALL:  # the partner's own count
        expected = [
            sum(other in p for p in pairs[: k + 1])
            for k, pair in enumerate(pairs)
            if member in pair
            for other in pair
            if other != member
        ]
        assert [number for _, number in met[member]] == expected


def test_who_waits_for_a_count_goes_on_when_it_is_reached(ends):
    counts = np.zeros(3, np.int64)
    counts[1] = 5

    def reach():
        counts[2] = 7

    timer = threading.Timer(0.05, reach)
    timer.start()
    ends[0].wait_until(counts.data, (1, 2), (5, 7))
    assert counts[2] == 7


@pytest.fixture
def gone():
    """The number of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_member_that_is_gone_ends_the_waiting_for_it(gone):
    ends = ends_of([os.getpid(), gone])
    for _ in range(2):  # the second time without waiting at all
        with pytest.raises(PeerLostError, match="device 1 does not come"):
            meet(ends, (0, 1), 0)
    with pytest.raises(PeerLostError, match="device 1 does not come"):
        ends[0].wait_until(np.zeros(2, np.int64).data, (1,), (1,))


def test_a_count_of_a_member_that_is_gone_is_not_waited_for(gone):
    with pytest.raises(PeerLostError, match="device 1 does not come"):
        ends_of([os.getpid(), gone])[0].wait_until(np.zeros(2, np.int64).data, (1,), (1,))


@pytest.mark.parametrize("way", ["meeting", "count"])
def test_who_waits_can_be_let_go_from_another_thread(ends, way, monkeypatch):
    monkeypatch.setattr(signals, "_LOOK_AGAIN", futex.timespec(1000.0))
    caught = []

    def wait():
        try:
            if way == "meeting":
                meet(ends, ALL, 0)
            else:
                ends[0].wait_until(np.zeros(3, np.int64).data, (1,), (1,))
        except PeerLostError as error:
            caught.append(error)

    def abort():
        time.sleep(0.05)  # it sleeps by then
        ends[0].abort()

    in_threads(wait, abort)
    assert len(caught) == 1


def test_who_has_missed_one_for_good_waits_for_nobody_any_more(gone):
    ends = ends_of([os.getpid(), os.getpid(), gone])
    for member in (0, 1):
        with pytest.raises(PeerLostError):
            meet(ends, ALL, member)
        ends[member].come(group_of(ALL, member))  # as a fabric does, for others may wait for its going
    with pytest.raises(PeerLostError, match="device 1 does not come"):  # its word of before is not taken for a new one
        meet(ends, (0, 1), 0)
