"""Large sums where several devices share a core: one of each core makes a part, nobody reads or writes too late."""

import random
import threading
import time

import pytest
import torch

from tests.fabrics import fabrics_of, of_each
from tinyshard.program import Meta
from tinyshard.runtime import signals
from tinyshard.runtime.collectives.base import group_of
from tinyshard.runtime.crews import crews_of
from tinyshard.runtime.launch.cores import core_of
from tinyshard.runtime.shm import allocator
from tinyshard.runtime.shm.control_block import NOTES
from tinyshard.runtime.signals import PeerLostError

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")

KEPT = (7, 7, 3, 7, 3, 3)
ALL = (0, 1, 2, 3, 4, 5)
SIZE = 10_007  # too much for a note, and not a whole number of vectors


@pytest.fixture(params=["sleeping", "yielding"])
def fabrics(request):
    made = fabrics_of(6, KEPT)
    if request.param == "sleeping":
        for fabric in made:
            fabric._signals._yielding.until = lambda is_there, is_missed: False
    return made


def summing(fabric, devices, done=lambda: None, op="sum"):
    """The sum over these devices, as a function of an operand."""
    meta = Meta((SIZE,), torch.float32)
    ready = fabric.ready("all_reduce", devices, (len(devices),), (0,), {"op": op}, meta, meta)
    return lambda x: ready(x, done)


def test_the_members_that_keep_to_a_core_are_a_crew():
    crews = crews_of(group_of((4, 0, 1, 2), 1), KEPT)
    assert crews.mates == (0,)
    assert (crews.place, crews.count) == (1, 2)
    assert crews.members == ((0, 2), (1,))  # of the others, which are 4, 0 and 2


def test_who_keeps_to_no_core_is_a_crew_alone():
    crews = crews_of(group_of((2, 0, 1), 0), ())
    assert (crews.mates, crews.place, crews.count, crews.members) == ((), 1, 3, ((0,), (), (1,)))


def test_eight_devices_on_two_cores_are_two_crews_that_see_each_other_alike():
    kept = [core_of(device, 8, (0, 1)) for device in range(8)]
    seen = [crews_of(group_of(tuple(range(8)), device), kept) for device in range(8)]
    assert [crews.place for crews in seen] == [0, 1, 1, 0, 1, 0, 0, 1]
    for device, crews in enumerate(seen):
        others = [other for other in range(8) if other != device]
        members = [{others[k] for k in crew} for crew in crews.members]
        assert crews.mates == tuple(sorted(members[crews.place]))
        members[crews.place].add(device)
        assert members == [{0, 3, 5, 6}, {1, 2, 4, 7}]


@pytest.mark.parametrize("op", ["sum", "max"])
def test_sums_are_right_again_and_again_though_operands_are_written_anew_at_once(fabrics, op):
    """Whoever leaves overwrites its operand: who still read it, or wrote the result, would spoil what others check."""
    rounds, pieces = 60, random.Random(0)
    pauses = {device: [pieces.choice((0, 0, 2e-4, 1e-3)) for _ in range(rounds)] for device in ALL}

    def go(device):
        fabric = fabrics[device]
        groups = [ALL, tuple(d for d in ALL if d % 2 == device % 2)]  # across both cores
        sums = [summing(fabric, group, op=op) for group in groups]
        block = fabric._arena.allocate(4 * SIZE, [device])
        x = fabric._arena.hold(block, (SIZE,), torch.float32)
        for number, pause in enumerate(pauses[device]):
            time.sleep(pause)
            for group, combined in zip(groups, sums, strict=True):
                x.fill_(number + 10.0**device)
                wanted = [number + 10.0**d for d in group]
                assert torch.equal(combined(x), torch.full((SIZE,), sum(wanted) if op == "sum" else max(wanted)))
                x.fill_(-1e9)
        return "through"

    assert of_each(ALL, go) == dict.fromkeys(ALL, "through")


def test_one_of_each_core_makes_a_part_and_says_so_last(fabrics):
    """The others have done theirs by coming: the first of a core says so before the last has come."""
    said, first_has_come = [], {3: threading.Event(), 7: threading.Event()}

    def done(device):
        said.append(device)
        first_has_come[KEPT[device]].set()

    def go(device):
        if device in (0, 2):  # one of each core comes when another has said that it has done its part
            assert first_has_come[KEPT[device]].wait(20)
        return summing(fabrics[device], ALL, lambda: done(device))(torch.full((SIZE,), 1.0))

    ended = of_each(ALL, go)
    assert all(torch.equal(x, torch.full((SIZE,), 6.0)) for x in ended.values())
    assert sorted(said) == list(ALL)
    numbers = fabrics[0]._arena.board.made[: len(ALL)].tolist()
    assert sorted(KEPT[device] for device in ALL if numbers[device]) == [3, 7]


def test_of_two_that_find_themselves_the_last_the_lesser_makes_the_part():
    fabrics = fabrics_of(3, (0, 0, 0))
    groups = [group_of((0, 1, 2), device) for device in range(3)]
    for fabric, group in zip(fabrics, groups, strict=True):
        fabric._signals.come(group)
    found = of_each((2, 1, 0), lambda device: fabrics[device]._crew.is_maker(crews_of(groups[device], (0, 0, 0))))
    assert found == {0: True, 1: False, 2: False}


@pytest.mark.parametrize("ahead", [0, 2])
def test_who_looks_late_makes_no_part_that_has_been_made(ahead):
    """The other has made it, and is in its next exchange: with others, for this one it would wait."""
    fabrics = fabrics_of(3, (0, 0, 0))
    groups = [group_of((0, 1, 2), device) for device in range(3)]
    for fabric, group in zip(fabrics, groups, strict=True):
        fabric._signals.come(group)
    claimed = fabrics[0]._arena.board.claimed
    claimed[:3] = 2  # each has come first
    claimed[ahead] = 4
    assert not fabrics[1]._crew.is_maker(crews_of(groups[1], (0, 0, 0)))


def test_a_device_that_never_comes_is_missed_by_all_when_they_hear_of_it(fabrics):
    def go(device):
        if device == ALL[-1]:
            time.sleep(0.1)
            for fabric in fabrics[:-1]:
                fabric.abort()
            return None
        return summing(fabrics[device], ALL)(torch.ones(SIZE))

    ended = of_each(ALL, go)
    assert all(isinstance(ended[device], PeerLostError) for device in ALL[:-1])


def test_nobody_sleeps_until_it_looks_again(fabrics, monkeypatch):
    """Who makes the last part wakes the others."""
    looked = []
    monkeypatch.setattr(signals.Signals, "_look_after", lambda end, others: looked.append(others))
    sums = [summing(fabric, ALL) for fabric in fabrics]
    of_each(ALL, lambda device: [sums[device](torch.ones(SIZE)) for _ in range(20)])
    assert not looked


def test_who_is_aborted_does_not_sleep_though_all_come_at_that_moment(monkeypatch):
    """0 waits for the part of 1, which has given up; the last comes between two looks of 0."""
    fabrics = fabrics_of(3, (7, 7, 3))
    groups = [group_of((0, 1, 2), device) for device in range(3)]
    crews = [crews_of(group, (7, 7, 3)) for group in groups]
    ends = [fabric._signals for fabric in fabrics]
    for device in (0, 1):
        ends[device].come(groups[device])
    ends[0].abort()
    slept = []
    monkeypatch.setattr(ends[0]._sleepers[0], "sleep", lambda *args: slept.append(args))

    def gives_up(is_there, is_missed):
        assert not is_there()
        ends[2].come(groups[2])
        return False

    monkeypatch.setattr(ends[0]._yielding, "until", gives_up)
    looks = iter([False, False, False])
    have_come = ends[0].have_come
    monkeypatch.setattr(ends[0], "have_come", lambda others: next(looks, None) is None and have_come(others))
    with pytest.raises(PeerLostError):
        fabrics[0]._crew.wait(groups[0], crews[0], [])
    assert not slept


@pytest.mark.parametrize("full", [0, 4])
def test_memory_that_runs_out_on_one_device_ends_the_sum_for_all_and_the_next_is_right(fabrics, full):
    arena_of = fabrics[full]._arena
    end, arena_of._end = arena_of._end, arena_of._start
    said = []
    operands = [torch.ones(SIZE) for _ in ALL]
    ended = of_each(ALL, lambda d: summing(fabrics[d], ALL, lambda: said.append(d))(operands[d]))
    assert all(isinstance(error, MemoryError) for error in ended.values())
    assert "no room for" in str(ended[full]) and full not in said
    assert {str(ended[d]) for d in ALL if d != full} == {f"device {full} had no room for its part"}
    for fabric in fabrics:
        fabric._arena.collect()
        assert not fabric._arena._given.any(), "a block is held by nobody, and never had again"
    arena_of._end = end
    assert all(x.sum() == 6 * SIZE for x in of_each(ALL, lambda d: summing(fabrics[d], ALL)(operands[d])).values())


def test_who_cannot_make_its_part_raises_and_holds_nobody_up(fabrics, monkeypatch):
    """The others cannot know: the call has failed, which the controller tells them."""
    said = []

    def fails(*args):
        raise RuntimeError("this device cannot add")

    for fabric in fabrics:
        monkeypatch.setattr(fabric, "_make_part", fails)
    ended = of_each(ALL, lambda d: summing(fabrics[d], ALL, lambda: said.append(d))(torch.ones(SIZE)))
    failed = [d for d in ALL if isinstance(ended[d], RuntimeError)]
    assert sorted(KEPT[d] for d in failed) == [3, 7]
    assert sorted(said + failed) == list(ALL)
    ended.clear()
    for fabric in fabrics:
        fabric._arena.let_go()
    fabrics[0]._arena.collect()
    assert not fabrics[0]._arena._given.any()


def test_a_letter_that_somebody_still_reads_is_not_written_anew(monkeypatch):
    """Device 1 is slow to read where the result of 0 lies, while 0 sums with 2, more often than there are letters."""
    fabrics = fabrics_of(3, (7, 7, 7))
    may_read = threading.Event()
    read_letters = fabrics[1]._read_letters

    def slowly(*args, **kwargs):
        may_read.wait(20)
        return read_letters(*args, **kwargs)

    def first(device):
        results = [summing(fabrics[device], (0, 1))(torch.full((SIZE,), 1.0))]
        if device == 0:
            results += others(0)
        return [x[0].item() for x in results]

    def others(device):
        one = summing(fabrics[device], (0, 2))
        return [one(torch.full((SIZE,), k + 1.0)) for k in range(2 * NOTES)]

    monkeypatch.setattr(fabrics[1], "_read_letters", slowly)
    monkeypatch.setattr(fabrics[1]._crew, "is_maker", lambda crews: False)  # so 0 makes what it is slow to take
    monkeypatch.setattr(fabrics[0]._crew, "is_maker", lambda crews: True)
    monkeypatch.setattr(fabrics[2]._crew, "is_maker", lambda crews: False)
    threading.Timer(0.3, may_read.set).start()
    ended = of_each((0, 1, 2), lambda d: [x[0].item() for x in others(2)] if d == 2 else first(d))
    sums = [2.0 * (k + 1) for k in range(2 * NOTES)]
    assert ended == {0: [2.0, *sums], 1: [2.0], 2: sums}


@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
def test_results_that_a_call_has_done_with_are_used_again_within_it(fabrics, name):
    """All hold the blocks of the first device: they let go of them though they need none themselves."""
    meta = Meta((SIZE,), torch.float32)
    params = {"op": "max"} if name == "all_reduce" else {"dim": 0}

    def go(device):
        fabric = fabrics[device]
        x = fabric._arena.hold(fabric._arena.allocate(4 * SIZE, [device]), (SIZE,), torch.float32)
        perform = fabric.ready(name, ALL, (6,), (0,), params, meta, None)
        for _ in range(30):
            perform(x, lambda: None)
        return "through"

    assert of_each(ALL, go) == dict.fromkeys(ALL, "through")
    assert len(fabrics[0]._arena._sizes) <= 5
