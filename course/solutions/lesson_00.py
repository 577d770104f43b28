"""Lesson 00: answers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Made, Wrong

__all__ = ["ANSWERS"]

Devices = Sequence[Any]
Call = Callable[[], Any]


def alive(devices: Devices) -> list[int]:
    """00.3: who has a pid is alive."""
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


def keep_going(compute: Call, restart: Call) -> Any:
    """00.4: once more, and only after a loss."""
    try:
        return compute()
    except ts.DeviceLostError:
        restart()
    return compute()


def keep_going_always(compute: Call, restart: Call) -> Any:
    """Restarts before there is any need."""
    restart()
    return compute()


def keep_going_uncaught(compute: Call, restart: Call) -> Any:
    """Expects None where there is an error."""
    numbers = compute()
    if numbers is None:
        restart()
        numbers = compute()
    return numbers


def keep_going_forgets(compute: Call, restart: Call) -> Any:
    """Computes again, and drops the result."""
    try:
        return compute()
    except ts.DeviceLostError:
        restart()
        compute()


def keep_going_swallows(compute: Call, restart: Call) -> Any:
    """Takes every error for a dead device."""
    try:
        return compute()
    except Exception:
        restart()
    return compute()


def keep_going_for_ever(compute: Call, restart: Call) -> Any:
    """Never gives up."""
    while True:
        try:
            return compute()
        except ts.DeviceLostError:
            restart()


ANSWERS = {
    "00.1": Answers(
        solution=Made(lambda: ts.device_put(torch.tensor([1.0, 2.0, 3.0]), ts.devices()[6])),
        wrong=(
            Wrong(torch.tensor([1.0, 2.0, 3.0]), "lies in the kernel's memory"),
            Wrong(Made(lambda: ts.device_put(torch.tensor([1, 2, 3]), ts.devices()[5])), "counted from 0"),
            Wrong(Made(lambda: ts.device_put(torch.arange(3.0), ts.devices()[6])), "Two things are needed"),
        ),
    ),
    "00.2": Answers(
        solution=[False, True, False, True],
        wrong=(
            Wrong([False, True, True, True], "where are its numbers kept"),
            Wrong([False, True, False, False], "In whose memory is a plain tensor"),
            Wrong([False, False, False, True], "not the pool"),
            Wrong([True, True, False, True], "in whose memory its numbers are"),
        ),
    ),
    "00.3": Answers(
        solution=alive,
        wrong=(
            Wrong(alive_all, "Ask for the pid"),
            Wrong(alive_uncaught, "in a `try` of its own"),
            Wrong(alive_until_first, "inside the loop"),
        ),
    ),
    "00.4": Answers(
        solution=keep_going,
        wrong=(
            Wrong(keep_going_always, "Restart only when a device was lost"),
            Wrong(keep_going_uncaught, "Put the first `compute()` into a `try`"),
            Wrong(keep_going_forgets, "needs a `return`, too"),
            Wrong(keep_going_swallows, "catch DeviceLostError alone"),
            Wrong(keep_going_for_ever, "not for ever"),
        ),
    ),
}
