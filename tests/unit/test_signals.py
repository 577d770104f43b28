"""Waiting for another member: between threads here, between processes in tests/workers."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tinyshard.runtime import arena
from tinyshard.runtime.signals import PeerLostError, Signals

pytestmark = pytest.mark.skipif(not arena.is_possible(), reason="shared memory needs Linux on x86-64")


@pytest.fixture
def ends():
    counters, sleeping = np.zeros((3, 3), np.int64), np.zeros(3, np.int64)
    pids = np.full(3, os.getpid())
    return [Signals(counters, sleeping, pids, member) for member in range(3)]


def test_all_members_of_a_group_meet_again_and_again(ends):
    met = []

    def come(member):
        others = [m for m in range(3) if m != member]
        for number in range(500):
            ends[member].send(others)
            ends[member].wait(others, ends[member].expect(others))
            met.append(number)

    threads = [threading.Thread(target=come, args=(member,)) for member in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(abs(i // 3 - number) <= 1 for i, number in enumerate(met))  # nobody is ahead by two
    assert len(met) == 1500


def test_groups_that_share_a_member_do_not_disturb_each_other(ends):
    for other in (1, 2, 1):
        ends[other].send([0])
    ends[0].wait([1], ends[0].expect([1]))
    ends[0].wait([1], ends[0].expect([1]))
    ends[0].wait([2], ends[0].expect([2]))
    assert ends[0].due == [0, 2, 1]


def test_a_member_that_is_gone_ends_the_waiting_for_it():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    counters, sleeping = np.zeros((2, 2), np.int64), np.zeros(2, np.int64)
    end = Signals(counters, sleeping, np.array([os.getpid(), child.pid]), 0)
    for _ in range(2):  # the second time without waiting at all
        with pytest.raises(PeerLostError, match="device 1 does not come"):
            end.wait([1], end.expect([1]))


def test_who_waits_can_be_let_go_from_another_thread(ends):
    caught = []

    def wait():
        try:
            ends[0].wait([1], ends[0].expect([1]))
        except PeerLostError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    ends[0].abort()
    thread.join()
    assert len(caught) == 1
