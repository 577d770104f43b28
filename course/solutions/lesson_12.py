"""Lesson 12: answers."""

from collections.abc import Sequence
from typing import Any

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P
Devices = Sequence[Any]


def alive(devices: Devices) -> list[int]:
    """12.2: a device that has a pid is alive."""
    found = []
    for device in devices:
        try:
            found.append(device.id if device.pid else -1)
        except ts.DeviceLostError:
            continue
    return found


def alive_all(devices: Devices) -> list[int]:
    """Every device has an id, dead or alive."""
    return [device.id for device in devices]


def alive_uncaught(devices: Devices) -> list[int]:
    """The first dead one ends it with an error."""
    return [device.id for device in devices if device.pid]


def alive_until_first(devices: Devices) -> list[int]:
    """The `try` is around the loop: the first dead one ends it."""
    found = []
    try:
        for device in devices:
            if device.pid:
                found.append(device.id)
    except ts.DeviceLostError:
        pass
    return found


def order(device: int) -> list[str]:
    """12.3: every other device receives first."""
    return ["receive", "send"] if device % 2 else ["send", "receive"]


def order_all_receive(device: int) -> list[str]:
    """All wait for a number that was not sent."""
    return ["receive", "send"]


def order_one_receives(device: int) -> list[str]:
    """It gets done, one pair after another."""
    return ["receive", "send"] if device == 0 else ["send", "receive"]


def order_first_half_receives(device: int) -> list[str]:
    """Half of them differ, and yet neighbours begin alike."""
    return ["receive", "send"] if device < 2 else ["send", "receive"]


def order_forgets(device: int) -> list[str]:
    """No device receives."""
    return ["send"]


ANSWERS = {
    "12.1": Answers(
        solution=[False, True, False, True],
        wrong=(
            Wrong([False, True, True, True], "where are its numbers kept"),
            Wrong([False, True, False, False], "In whose memory is a plain tensor"),
            Wrong([False, False, False, True], "not the pool"),
            Wrong([True, True, False, True], "in whose memory its numbers are"),
        ),
    ),
    "12.2": Answers(
        solution=alive,
        wrong=(
            Wrong(alive_all, "Ask for the pid"),
            Wrong(alive_uncaught, "in a `try` of its own"),
            Wrong(alive_until_first, "inside the loop"),
        ),
    ),
    "12.3": Answers(
        solution=order,
        wrong=(
            Wrong(order_all_receive, "They must differ"),
            Wrong(order_one_receives, "neighbours that begin alike"),
            Wrong(order_first_half_receives, "neighbours that begin alike"),
            Wrong(order_forgets, "Draw the ring"),
        ),
    ),
    "12.4": Answers(
        solution=(P(None, "d"), P(None, "d")),
        wrong=(
            Wrong((P(None, "d"), P("d")), "may then not be cut"),
            Wrong((P(None, "d"), P()), "Both must be cut"),
            Wrong((P(), P(None, "d")), "Both must be cut"),
            Wrong((P("d"), P(None, "d")), "Look at `up`"),
            Wrong(P(None, "d"), "What does the median"),
        ),
    ),
}
