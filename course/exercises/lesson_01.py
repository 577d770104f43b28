"""Lesson 01: when is the result there?"""

import time
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, number_in
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.watching import clock_of, names_in, watched_waits

__all__ = ["EXERCISES"]

READY = (True, False, True, False)
HAS_FAILED = [False, True, False, True, True]


def judge_ready(guess: Any) -> Verdict:
    """01.1: `a` is before `c` in the queue of CPU 0; `d` is behind three products in that of CPU 1."""
    if not isinstance(guess, list | tuple) or len(guess) != 4 or not all(isinstance(each, bool) for each in guess):
        return differs("it is not a list of four values, each True or False")
    right = sum(each is truth for each, truth in zip(guess, READY, strict=True))
    reported = f"{right} of 4 {'is' if right == 1 else 'are'} right"
    if right == 4:
        return PASSED
    if all(guess):
        return differs(reported, "Waiting for `c` waits for `c` and for what is before it in its queue, nothing else.")
    if guess[2] and not guess[0]:
        return differs(reported, "Small work is not done first. What is before `c` in the queue of its device?")
    if guess[3] and not guess[1]:
        return differs(reported, "`d` is one number, but which array is it taken from?")
    return differs(reported)


def dispatch_watch(matrix: Any) -> float:
    """The stub of 01.2."""
    start = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - start


QUEUED_S = 5.0


def judge_benchmark(benchmark: Callable[..., Any]) -> Verdict:
    """01.2: on a clock that moves in waits only: 5 s for the matrix, at the first wait; 1 s, or 3 s, for a product."""
    return next((verdict for s in (1, 3) if not (verdict := _judge_measured(benchmark, s)).is_passed), PASSED)


def _judge_measured(benchmark: Callable[..., Any], product_s: int) -> Verdict:
    matrix = ts.device_put(torch.ones(4, 4), ts.devices()[0])
    operand: list[Any] = []
    with watched_waits(operand.append):
        matrix.block_until_ready()
    now_s, waited = [0.0], list[bool]()

    def wait(buffer: Any) -> None:
        now_s[0] += (0 if waited else QUEUED_S) + (0 if buffer is operand[0] else product_s)
        waited.append(buffer is operand[0])

    with watched_waits(wait), clock_of(benchmark, lambda: now_s[0]):
        returned = benchmark(matrix)
    reported = number_in(returned)
    if reported is None:
        return differs(f"it returns a {type(returned).__name__}, not a number of seconds")
    if reported == product_s and not all(waited):
        return PASSED
    if "is_ready" in names_in(benchmark):
        hint = "`is_ready` asks, and returns at once. Which method waits, and leaves the core to the device meanwhile?"
        return differs("it asks whether something is ready, and does not wait for it", hint)
    if not waited:
        return differs("it does not wait for the product", "What has happened when `matrix @ matrix` returns?")
    if all(waited):
        return differs("it waits for `matrix` only", "Which array is the result to wait for?")
    if reported == 0:
        return differs("it waits for the product while the watch is not running", "Start, product, wait, stop.")
    if reported == QUEUED_S + product_s:
        hint = "Rule 2: what is still in the queue when the watch starts? `matrix` itself may not be ready."
        return differs("the time includes the work that `matrix` is the result of", hint)
    takes = "1 second" if product_s == 1 else f"{product_s} seconds"
    return differs(f"where one product takes {takes}, by `time.perf_counter`, it says {reported:g}")


def waiting_steps(matrix: Any, double: Any) -> list[Any]:
    """The stub of 01.3."""
    numbers = []
    for _ in range(10):
        matrix = matrix @ double
        numbers.append(matrix[0, 0].item())
    return numbers


def judge_ten_steps(ten_steps: Callable[..., Any]) -> Verdict:
    """01.3: the numbers must be right, still Arrays, and not waited for."""
    ones, double = ts.device_put((torch.ones(4, 4), 2 * torch.eye(4)), ts.devices()[0])
    waits: list[Any] = []
    with watched_waits(waits.append):
        numbers = ten_steps(ones, double)
    if waits:
        return differs(
            f"it waits {len(waits)} {'time' if len(waits) == 1 else 'times'} before it returns",
            "Which call needs a number, or asks for the result? The left column of the table in section 6 lists them.",
        )
    wrong = difference(numbers, [2.0 ** (step + 1) for step in range(10)], "what it returns")
    if wrong:
        return differs(wrong, "Nothing waits any more. The numbers are `matrix[0, 0]` after each of the ten products.")
    if not all(isinstance(number, ts.Array) for number in numbers):
        return differs("the numbers are not futures", "A device must compute them: an element of an Array is a future.")
    return PASSED


def judge_has_failed(has_failed: Callable[..., Any]) -> Verdict:
    """01.4: three of five lookups fail; the caller must see that, and must not be stopped by the error."""
    results = []
    for number, device in enumerate(ts.devices()[:5]):
        squares = ts.device_put(torch.arange(10.0) ** 2, device)
        results.append(squares[ts.device_put(torch.tensor([0, number * 7 % 11]) * 2, device)])
    try:
        found = [has_failed(result) for result in results]
    except RuntimeError as error:
        if "IndexError" not in names_in(has_failed):
            raise
        hint = "The IndexError was the device's. The error that reaches you reports it, and is of another class."
        return differs(f"a {type(error).__name__} is not caught", hint)
    if found == HAS_FAILED:
        return PASSED
    reported = f"it says {found}"
    if found == [not each for each in HAS_FAILED]:
        return differs(reported, "Read the task again: True is for a result that can *not* be had.")
    if "is_ready" in names_in(has_failed):
        return differs(
            reported, "`is_ready` tells whether the device has ended, not how: a failed result is ready as well."
        )
    if not any(found):
        return differs(reported, "Nothing in the `try` waits for the values, and without waiting no error arrives.")
    return differs(reported)


EXERCISES = (
    Exercise(
        "01.1",
        judge_ready,
        (
            "Draw the two queues, one for CPU 0 and one for CPU 1. Which orders are in which, and in which order?",
            "When `c` is there, CPU 0 has done what is before `c` in its queue. Nothing has waited for CPU 1.",
        ),
        stub=[None, None, None, None],
        why="CPU 0 takes its orders as they came, so `a` was done before `c`. CPU 1 was not waited for: three "
        "products take "
        "about three times as long as one, and `d` comes after them.",
    ),
    Exercise(
        "01.2",
        judge_benchmark,
        (
            "Which two of the three rules in section 4 does it break? Take them one after the other.",
            "Four steps: empty the queue, start the watch, order the product and wait for it, read the watch.",
            "The queue is empty when `matrix` is ready; give the product a name, so that you can wait for it, too.",
        ),
        stub=dispatch_watch,
        why="The watch starts when nothing is left to do for `matrix`, and stops when the product is there. So "
        "it measures "
        "one product, whatever was ordered before.",
    ),
    Exercise(
        "01.3",
        judge_ten_steps,
        (
            "In which line does the loop wait?",
            "An element of an Array, `matrix[0, 0]`, is an Array itself: a future.",
            "Keep the ten elements as they are, and let the caller ask for their values.",
        ),
        stub=waiting_steps,
        why="An element of an Array is a future as well. The loop only writes ten orders into the queue, and "
        "the device never "
        "waits for Python between two steps.",
    ),
    Exercise(
        "01.4",
        judge_has_failed,
        (
            "When does the error of a lookup reach you?",
            "Put the shortest thing that waits into a `try`, and look at section 7 for the class of the error.",
            "What is left to decide: which of True and False follows the wait, and which the `except`.",
        ),
        why="An error arrives in the first line that waits, so the `try` must hold one that does. `block_until_ready` "
        "waits and does nothing else: a `try` around it alone catches no other error.",
    ),
)
