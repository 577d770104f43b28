"""Lesson 01: when is the result there?"""

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.watching import names_in, watched_waits

__all__ = ["EXERCISES"]

READY = (False, True, False)
HAS_FAILED = [False, True, False, True, True]


def judge_ready(guess: Any) -> Verdict:
    """`a` and `c` stand in the queue of CPU 0, `b` alone in that of CPU 1."""
    if not isinstance(guess, list | tuple) or len(guess) != 3 or not all(isinstance(each, bool) for each in guess):
        return differs("it is not a list of three values, each True or False")
    if tuple(guess) == (False, True, True):
        return differs("2 of 3 are right", "Tiny work is not early work. What stands before `c` in its device's queue?")
    if all(guess):
        return differs("1 of 3 is right", "To wait for `b` is to wait for `b` and what it is made from, nothing else.")
    right = sum(each is truth for each, truth in zip(guess, READY, strict=True))
    return PASSED if right == 3 else differs(f"{right} of 3 {'is' if right == 1 else 'are'} right")


def waiting_steps(matrix: Any, double: Any) -> list[Any]:
    """The stub of 01.2."""
    numbers = []
    for _ in range(10):
        matrix = matrix @ double
        numbers.append(matrix[0, 0].item())
    return numbers


def judge_ten_steps(ten_steps: Callable[..., Any]) -> Verdict:
    """The numbers must be right, still Arrays, and not waited for."""
    ones, double = ts.device_put((torch.ones(4, 4), 2 * torch.eye(4)), ts.devices()[0])
    waits: list[Any] = []
    with watched_waits(waits.append):
        numbers = ten_steps(ones, double)
    if waits:
        return differs(
            f"it waits {len(waits)} {'time' if len(waits) == 1 else 'times'} before it returns",
            "Which call needs a number, or asks for the result? The left column of the table in section 5 lists them.",
        )
    wrong = difference(numbers, [2.0 ** (step + 1) for step in range(10)], "what it returns")
    if wrong:
        return differs(wrong)
    if not all(isinstance(number, ts.Array) for number in numbers):
        return differs("the numbers are not futures", "The devices are to compute them: an element of an Array is one.")
    return PASSED


def dispatch_watch(matrix: Any) -> float:
    """The stub of 01.3."""
    start = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - start


def judge_benchmark(benchmark: Callable[..., Any]) -> Verdict:
    """On a clock that stands still but for waits for the product, which take a second each."""
    matrix = ts.device_put(torch.ones(4, 4), ts.devices()[0])
    operand: list[Any] = []
    with watched_waits(operand.append):
        matrix.block_until_ready()
    now_s, waits = [0.0], []

    def wait(buffer: Any) -> None:
        waits.append(buffer)
        now_s[0] += buffer is not operand[0]

    with (
        watched_waits(wait),
        mock.patch.object(time, "perf_counter", lambda: now_s[0]),
        mock.patch.object(time, "time", lambda: now_s[0]),
    ):
        told = benchmark(matrix)
    if not isinstance(told, float | int):
        return differs(f"it returns a {type(told).__name__}, not a number of seconds")
    if told > 0:
        return PASSED
    if not waits:
        return differs("nobody waits for the product", "What has happened when `matrix @ matrix` returns? (Section 2.)")
    if now_s[0] == 0:
        return differs("it waits for `matrix`, which was there all the time", "Which array is the result to wait for?")
    return differs(
        "it waits for the product while the watch is not running", "Start, product, wait, stop: in this order."
    )


def judge_has_failed(has_failed: Callable[..., Any]) -> Verdict:
    """Of five lookups three fail; the caller must be told, and not be struck by the error."""
    results = []
    for number, device in enumerate(ts.devices()[:5]):
        squares = ts.device_put(torch.arange(10.0) ** 2, device)
        results.append(squares[ts.device_put(torch.tensor([0, number * 7 % 11]) * 2, device)])
    found = [has_failed(result) for result in results]
    if found == HAS_FAILED:
        return PASSED
    told = f"it says {found}"
    if found == [not each for each in HAS_FAILED]:
        return differs(told, "Read the task again: True is for a result that can *not* be had.")
    if "is_ready" in names_in(has_failed):
        return differs(
            told, "`is_ready` tells whether the device has ended, not how: a failed result is ready as well."
        )
    if not any(found):
        return differs(told, "Nothing in the `try` waits for the values, and without waiting no error arrives.")
    return differs(told)


EXERCISES = (
    Exercise(
        "01.1",
        judge_ready,
        (
            "Draw the two queues. Which of the three orders stand in the same one?",
            "A device works through its queue in order, and the two devices do not wait for each other.",
            "`b` was waited for. `a` still computes, and `c` stands behind it.",
        ),
        stub=[None, None, None],
    ),
    Exercise(
        "01.2",
        judge_ten_steps,
        (
            "In which line does the loop stand still?",
            "An element of an Array, `matrix[0, 0]`, is an Array itself: a future.",
            "Leave out `.item()`, and return the list of futures.",
        ),
        stub=waiting_steps,
    ),
    Exercise(
        "01.3",
        judge_benchmark,
        (
            "Which of the three rules in section 4 does it break? Repeating is done for you.",
            "Give the product a name, so that you can wait for it.",
            "`(matrix @ matrix).block_until_ready()`, then look at the watch.",
        ),
        stub=dispatch_watch,
    ),
    Exercise(
        "01.4",
        judge_has_failed,
        (
            "When does the error of a lookup reach you?",
            "Put the shortest thing that waits into a `try`, and look at section 6 for the class of the error.",
            "In the `try`: `array.block_until_ready()`, then `return False`. After `except RuntimeError:` the other.",
        ),
    ),
)
