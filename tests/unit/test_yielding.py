"""Whoever waits lets others run first, and not where that takes long."""

import time

import numpy as np
import pytest

from tinyshard.runtime import yielding
from tinyshard.runtime.shm import allocator
from tinyshard.runtime.yielding import Yielding

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")

FOR_NS = 3_000_000


def never():
    return False


def always():
    return True


def test_what_comes_soon_is_seen():
    looks = iter([False, False, True])
    in_time_ns = 60_000_000_000  # whatever else runs here
    assert Yielding(np.zeros(2, np.int64).data, in_time_ns).until(lambda: next(looks), never)
    assert next(looks, None) is None


def test_what_does_not_come_is_not_waited_for():
    start_s = time.monotonic()
    assert not Yielding(np.zeros(2, np.int64).data, FOR_NS).until(never, never)
    assert FOR_NS / 1e9 <= time.monotonic() - start_s < 1


@pytest.fixture
def yields(monkeypatch):
    """One for each time that others are let run, which then takes long."""
    made = []

    def let_run():
        made.append(1)
        time.sleep(1.5 * yielding.CROWDED_AFTER_NS / 1e9)

    monkeypatch.setattr(yielding, "let_others_run", let_run)
    return made


def test_where_others_compute_for_long_while_something_waits_nobody_yields_for_a_while(yields):
    crowded = np.zeros(2, np.int64)
    mine, other = Yielding(crowded.data, FOR_NS), Yielding(crowded.data, FOR_NS)
    assert mine.until(always, never)
    assert not mine.until(never, never)
    assert len(yields) == 2  # nothing was missed: it goes on
    assert mine.until(always, always)
    assert not mine.until(always, always) and not other.until(always, always)
    assert len(yields) == 3
    crowded[0] = time.monotonic_ns()
    assert other.until(always, always)


@pytest.mark.usefixtures("yields")
def test_who_is_kept_waiting_together_with_others_counts_once(monkeypatch):
    crowded = np.zeros(2, np.int64)
    waiting = [Yielding(crowded.data, FOR_NS) for _ in range(8)]
    let_run = yielding.let_others_run

    def let_all_run():
        let_run()
        if waiting:  # they are kept waiting by the same
            waiting.pop().until(always, always)

    monkeypatch.setattr(yielding, "let_others_run", let_all_run)
    waiting.pop().until(always, always)
    assert not waiting
    assert crowded[1] == yielding.CROWDED_FOR_NS


def test_each_time_that_it_happens_again_soon_it_is_for_longer(yields):
    crowded = np.zeros(2, np.int64)
    mine = Yielding(crowded.data, FOR_NS)
    lasted = []
    for _ in range(5):
        crowded[0] = min(crowded[0], time.monotonic_ns())
        assert mine.until(always, always)
        lasted.append(int(crowded[1]))
    most = yielding.MOST_CROWDED_FOR_NS
    assert lasted == [min(yielding.CROWDED_FOR_NS * 4**k, most) for k in range(5)] and lasted[-1] == most
    crowded[0] = time.monotonic_ns() - 2 * most
    assert mine.until(always, always)
    assert crowded[1] == yielding.CROWDED_FOR_NS


def test_others_that_run_for_longer_than_nobody_yielded_count_as_again(monkeypatch):
    crowded = np.array([time.monotonic_ns(), yielding.CROWDED_FOR_NS], np.int64)
    monkeypatch.setattr(yielding, "let_others_run", lambda: time.sleep(1.2 * yielding.CROWDED_FOR_NS / 1e9))
    assert Yielding(crowded.data, FOR_NS).until(always, always)
    assert crowded[1] == 4 * yielding.CROWDED_FOR_NS


def test_what_went_well_for_as_long_as_it_did_not_is_not_again(yields):
    crowded = np.array([time.monotonic_ns() - yielding.CROWDED_FOR_NS, yielding.CROWDED_FOR_NS], np.int64)
    assert Yielding(crowded.data, FOR_NS).until(always, always)
    assert crowded[1] == yielding.CROWDED_FOR_NS


def test_who_comes_back_after_the_word_of_another_has_ended_says_so_for_no_longer(monkeypatch):
    crowded = np.array([0, yielding.CROWDED_FOR_NS], np.int64)

    def let_run_while_another_says_so():
        time.sleep(2 * yielding.CROWDED_AFTER_NS / 1e9)
        crowded[0] = time.monotonic_ns()  # it has ended, too

    monkeypatch.setattr(yielding, "let_others_run", let_run_while_another_says_so)
    assert Yielding(crowded.data, FOR_NS).until(always, always)
    assert crowded[1] == yielding.CROWDED_FOR_NS
    assert crowded[0] > time.monotonic_ns()
