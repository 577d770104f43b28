"""Who waits for whom: meetings take place when all are there, and a circle of waits is found."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from course.schedules import Moment, from_error, ring, start, steps
from tests.extent import examples
from tinyshard.runtime.controller.connection import Link, Sight
from tinyshard.runtime.controller.watchdog import _error


def brute_force(plans: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """How far each device comes: one device and one meeting at a time, in whatever order they are found."""
    done = dict.fromkeys(plans, 0)
    moved = True
    while moved:
        moved = False
        for name in {name for plan in plans.values() for name in plan}:
            members = [device for device, plan in plans.items() if name in plan]
            here = [device for device in members if plans[device][done[device] : done[device] + 1] == [name]]
            times = {plans[device][: done[device]].count(name) for device in here}
            if here == members and len(times) == 1:
                moved = True
                for device in members:
                    done[device] += 1
    return done


PLANS = st.dictionaries(st.integers(0, 4), st.lists(st.sampled_from("abc"), max_size=5), min_size=1, max_size=5)


@settings(max_examples=examples(40, 100))
@given(PLANS)
def test_rounds_come_as_far_as_meetings_one_at_a_time(plans: dict[int, list[str]]) -> None:
    last = steps(start(plans))[-1]
    assert last.done == brute_force(plans)
    assert last.is_over == all(last.done[device] == len(plan) for device, plan in plans.items())


@settings(max_examples=examples(40, 100))
@given(PLANS)
def test_nobody_is_left_standing_without_somebody_to_wait_for(plans: dict[int, list[str]]) -> None:
    last = steps(start(plans))[-1]
    standing = {device for device, plan in plans.items() if last.done[device] < len(plan)}
    assert set(last.waits_for) == standing


@settings(max_examples=examples(40, 100))
@given(PLANS)
def test_a_circle_is_a_circle_and_where_there_is_none_some_wait_leads_to_one_who_is_done(
    plans: dict[int, list[str]],
) -> None:
    last = steps(start(plans))[-1]
    circle = last.circle
    for device, other in zip(circle, (*circle[1:], *circle[:1]), strict=True):
        assert other in last.waits_for[device]
    if last.waits_for and not circle:
        assert {other for others in last.waits_for.values() for other in others} - set(last.waits_for)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_a_ring_in_which_all_do_the_same_first_is_one_circle(count: int) -> None:
    for order in (["send", "receive"], ["receive", "send"]):
        moment = start(ring(count, order))
        assert sorted(moment.circle) == list(range(count)) and moment.after is moment


@pytest.mark.parametrize("count", [4, 6, 8])
def test_a_ring_in_which_every_other_one_receives_first_needs_two_rounds(count: int) -> None:
    orders = {d: ["receive", "send"] if d % 2 else ["send", "receive"] for d in range(count)}
    last = steps(start(ring(count, orders)))[-1]
    assert last.is_over and last.rounds == 2


def test_who_stands_still_is_waited_for_and_is_in_no_circle() -> None:
    moment = start({0: ["a"], 1: ["a"], 2: ["a"]}, still=[2])
    assert moment.waits_for == {0: (2,), 1: (2,)}
    assert moment.circle == () and moment.after is moment


def test_the_errors_own_words_are_understood() -> None:
    """The error is made by the function that makes it at run time, from what it sees of each device."""

    def sight(device: int) -> Sight:
        current = None if device == 3 else (7, 0, "all_reduce", (0, 1, 2, 3))
        return Sight(device, 0.0, 0.0, device == 3, 6, current)

    sights = {device: sight(device) for device in range(4)}
    links: list[Link] = []
    error = _error(links, sights, list(sights.values()), {"its process is stopped": [3]}, 2, "cpu")
    assert isinstance(error, ts.CollectiveTimeoutError)
    moment = from_error(error)
    assert moment.waits_for == {0: (3,), 1: (3,), 2: (3,)}
    assert moment.plans[0] == ("all_reduce",) and moment.still == {3}


def test_another_error_is_refused() -> None:
    with pytest.raises(ValueError, match="no collective that somebody has not reached, in: CPU 3 has made no progress"):
        from_error(ts.CollectiveTimeoutError("CPU 3 has made no progress for 2 s\n  rule: …"))


def test_a_moment_does_not_change() -> None:
    moment = start({0: ["a"], 1: ["a"]})
    assert isinstance(moment.after, Moment) and moment.done == {0: 0, 1: 0}
