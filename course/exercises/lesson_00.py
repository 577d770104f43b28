"""Lesson 00: one laptop, eight devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

STILL_THERE = (False, True, False, True)


def judge_place(array: object) -> Verdict:
    """00.1: three numbers on CPU 6."""
    if not isinstance(array, ts.Array):
        hint = "A plain tensor lies in the kernel's memory. Which function sends it to a device?"
        return differs(f"it is of type {type(array).__name__}, not an Array", hint)
    told = difference(array, [1.0, 2.0, 3.0])
    if told:
        return differs(told)
    (device, *others) = sorted(array.devices())
    if others:
        return differs(f"it is on {len(others) + 1} devices", "One device: give `device_put` that device itself.")
    if device.id != 6:
        hint = "Devices are counted from 0, so CPU 6 is the seventh." if device.id in (5, 7) else ""
        return differs(f"it is on {device}, not on CPU 6", hint)
    return PASSED


def judge_left(guess: object) -> Verdict:
    """00.2: what was fetched, and what lives elsewhere, is left."""
    if not isinstance(guess, list | tuple) or len(guess) != 4 or not all(isinstance(each, bool) for each in guess):
        return differs("it is not a list of four values, each True or False")
    right = sum(each is truth for each, truth in zip(guess, STILL_THERE, strict=True))
    told = f"{right} of 4 {'is' if right == 1 else 'are'} right"
    if right == 4:
        return PASSED
    if guess[2]:
        return differs(told, "`c` was computed in time. But where are its numbers kept?")
    if not guess[3]:
        return differs(told, "`d` came back before the kill. In whose memory is a plain tensor?")
    if not guess[1]:
        return differs(told, "One worker was killed, not the pool. On which device does `b` live?")
    return differs(told)


@dataclass(frozen=True)
class Stand:
    """What stands in for a device: its id, and a pid that it has or has not."""

    id: int
    is_lost: bool

    @property
    def pid(self) -> int:
        """As a device's."""
        if self.is_lost:
            raise ts.DeviceLostError(f"CPU {self.id} is gone")
        return 1000 + self.id


def judge_alive(alive: Callable[[Sequence[object]], object]) -> Verdict:
    """00.3: the ids of those that have a pid."""
    for lost in ((1, 5), (0,), (), (0, 1, 2, 3, 4, 5, 6, 7)):
        devices = [Stand(number, number in lost) for number in range(8)]
        want = [device.id for device in devices if not device.is_lost]
        try:
            got = alive(devices)
        except ts.DeviceLostError as error:
            hint = "A lost device raises when it is asked for its pid. Ask each device in a `try` of its own."
            return differs(f"it lets an error through: {error}", hint)
        if got == want:
            continue
        told = f"when {_names(lost)} lost, it returns {got!r}, not {want}"
        if got == list(range(8)):
            return differs(told, "Nothing in the id says whether its worker lives. Ask for the pid.")
        if lost and got == list(range(lost[0])):
            return differs(told, "It stops at the first lost device: the `try` belongs inside the loop, not around it.")
        return differs(told)
    return PASSED


def _names(lost: Sequence[int]) -> str:
    return f"CPU {','.join(map(str, lost))} {'is' if len(lost) == 1 else 'are'}" if lost else "none is"


class Faulty:
    """A computation that fails as often as it is told to, and notes in which order it is called.

    Args:
        failures: what the first calls raise.
    """

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[str] = []

    def compute(self) -> list[float]:
        """Ask a device for numbers."""
        self.calls.append("compute")
        if self.failures:
            raise self.failures.pop(0)
        return [0.0, 2.0]

    def restart(self) -> None:
        """Start a fresh pool."""
        self.calls.append("restart")


def judge_keep_going(keep_going: Callable[..., object]) -> Verdict:
    """00.4: one restart after a loss, none otherwise, and no other error is swallowed."""
    lost = ts.DeviceLostError("CPU 2 is gone")
    for failures, calls in (([], ["compute"]), ([lost], ["compute", "restart", "compute"])):
        faulty = Faulty(*failures)
        try:
            got = keep_going(faulty.compute, faulty.restart)
        except ts.DeviceLostError:
            hint = "Put the first `compute()` into a `try`, and catch `ts.DeviceLostError`."
            return differs("a device is lost once, and the error comes through", hint)
        found = ", ".join(faulty.calls) or "nothing"
        told = f"{'a device is lost once' if failures else 'no device is lost'}: "
        if faulty.calls != calls:
            hint = "Restart only when a device was lost: a restart loses all values." if not failures else ""
            return differs(f"{told}it calls {found}, not {', '.join(calls)}", hint)
        if got != [0.0, 2.0]:
            hint = "The second `compute()` needs a `return`, too." if failures else ""
            return differs(f"{told}it returns {got!r}, not [0.0, 2.0]", hint)
    for others in ((ValueError("wrong shape"),), (lost, lost)):
        kind = type(others[0])
        faulty = Faulty(*others)
        try:
            keep_going(faulty.compute, faulty.restart)
        except kind:
            if faulty.calls.count("compute") != len(others):
                return differs(f"{faulty.calls.count('compute')} tries after a {kind.__name__}, not {len(others)}")
            continue
        if kind is ValueError:
            hint = "A ValueError is a mistake in the program, which no restart mends: catch DeviceLostError alone."
            return differs("a ValueError does not come through", hint)
        return differs("a second loss does not come through", "Try once more, not for ever: no `while`, and one `try`.")
    return PASSED


EXERCISES = (
    Exercise(
        "00.1",
        judge_place,
        (
            "Two things are needed: a tensor with the numbers, and the device. Section 4 sends one to the other.",
            "`ts.device_put(torch.tensor([...]), ts.devices()[...])`",
        ),
    ),
    Exercise(
        "00.2",
        judge_left,
        (
            "Write down for each name in whose memory its numbers are: CPU 2, CPU 4, or the kernel.",
            "The memory of CPU 2 is gone; all else is left. `device_get` had copied numbers into the kernel.",
        ),
    ),
    Exercise(
        "00.3",
        judge_alive,
        (
            "Which line of `kill` tells that the worker is dead?",
            "In a loop: `try: device.pid`, and where that raises no `ts.DeviceLostError`, append the id.",
        ),
    ),
    Exercise(
        "00.4",
        judge_keep_going,
        (
            "What is to happen after the error? Two calls, and the second one gives the result.",
            "`try: return compute()`, then `except ts.DeviceLostError: restart()`, and at the end `return compute()`.",
        ),
    ),
)
