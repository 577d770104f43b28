"""Lesson 14: rows for a roofline, examples a device, and the days of a training run."""

from collections.abc import Callable
from typing import Any

from course.exercises.compare import number_in
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.network import step_on
from course.planner import GPU_BOXES, estimate

__all__ = ["EXERCISES"]

D, F = 8192, 28_672  # of `up`
FLOPS_PER_S, BYTES_PER_S = 989e12, 3.35e12


def arithmetic_decides(rows: int, counted: int = 3) -> bool:
    """Whether a bfloat16 product of this many rows computes at least as long as it reads and writes.

    Args:
        counted: 3: x, matrix and result; 2: without the result; 1: the matrix alone.
    """
    numbers = D * F + (rows * D if counted > 1 else 0) + (rows * F if counted > 2 else 0)
    return 2 * rows * D * F / FLOPS_PER_S >= 2 * numbers / BYTES_PER_S


def _fewest(is_enough: Callable[[int], bool]) -> int:
    """The smallest number from which it is true, up to a million."""
    low, high = 1, 10**6
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def judge_rows(answer: object) -> Verdict:
    """14.1: the number of rows from which an H100 does not wait for its memory."""
    rows = number_in(answer)
    if not isinstance(rows, int):
        return differs(f"{answer!r} is not a whole number")
    best = _fewest(arithmetic_decides)
    if rows == best:
        return PASSED
    reported = f"{rows:,} is {'more' if rows > best else 'less'} than the smallest number"
    if rows in (295, 296):
        return differs(
            reported, "That is the approximation: the matrix alone. x is read as well, and the result is written."
        )
    if rows == _fewest(lambda each: arithmetic_decides(each, counted=2)):
        return differs(reported, "x is counted, the result is not: B rows of 28,672 numbers are written.")
    if rows == best - 1:
        return differs(reported, "The times are not equal yet: at least as long means the next whole number.")
    return differs(reported)


WITHOUT_ROUNDS = (715, 716)  # examples for which computing takes as long as the bytes of the gradients


def is_computing_longer(each: int) -> bool:
    """Whether computing takes at least as long as communicating, with so many examples on each of 64 devices."""
    total = estimate(step_on("data", 64, 64 * each), GPU_BOXES)
    return total.compute_s >= total.communicate_s


def _is_smallest(each: int) -> bool:
    return is_computing_longer(each) and not (each > 1 and is_computing_longer(each - 1))


def judge_examples(answer: object) -> Verdict:
    """14.2: the batch of a device from which computing decides."""
    examples = number_in(answer)
    if not isinstance(examples, int) or not 0 < examples < 10**6:
        return differs(f"{answer!r} is not a number of examples")
    if _is_smallest(examples):
        return PASSED
    if is_computing_longer(examples):
        if examples % 64 == 0 and _is_smallest(examples // 64):
            return differs(f"{examples:,} are the whole batch", "How many are on each of the 64 devices?")
        hint = "Enough, but not the smallest. Both times are known for 1,024 examples: which of them grows?"
        return differs(f"with {examples:,} examples computing is the longer part; so it is with fewer", hint)
    reported = f"with {examples:,} examples a device communicating is still the longer part"
    if examples == 1024:
        return differs(reported, "That is the batch of the tables: 7.6 ms of computing against 14.7 ms.")
    if examples in WITHOUT_ROUNDS:
        return differs(reported, "The bytes alone take less. How often does a ring of 64 wait for the latency?")
    return differs(reported)


SECONDS_A_DAY = 24 * 3600
TRAININGS = ((405e9, 15.6e12, 16_384, 989e12, 0.41), (8e9, 1e12, 512, 312e12, 0.5))


def judge_days(days: Callable[..., Any]) -> Verdict:
    """14.3: 6 operations a parameter and token, at the MFU of the peak."""
    for training in TRAININGS:
        parameters, tokens, devices, peak, mfu = training
        best = 6 * parameters * tokens / (devices * peak * mfu) / SECONDS_A_DAY
        got = number_in(days(*training))
        if not isinstance(got, int | float):
            return differs(f"{got!r} is not a number")
        if abs(got - best) <= 1e-3 * best:
            continue
        reported = f"for {parameters:.3g} parameters it says {got:.6g} days"
        for factor, hint in (
            (1 / 3, "2 operations are those of the forward pass. The backward pass has twice as many."),
            (mfu, "That is the time at the full peak. Does a smaller MFU make a training run shorter or longer?"),
            (mfu**2, "The MFU is a factor of the speed: the time is divided by it."),
            (SECONDS_A_DAY, "These are seconds."),
            (24, "These are hours."),
            (devices, "That is the time on one device."),
        ):
            if abs(got - factor * best) <= 1e-3 * factor * best:
                return differs(reported, hint)
        return differs(reported)
    return PASSED


EXERCISES = (
    Exercise(
        "14.1",
        judge_rows,
        (
            "Write both times as functions of B: 2 · B · D · F operations, and the bytes of three matrices.",
            "There are B · D numbers in x, D · F in the matrix, B · F in the result, of 2 bytes each.",
            "Set both times equal and solve for B, or try one B after the other in a loop; then the next whole number.",
        ),
        why="With the bytes of x and of the result, each row adds a little to what is read and written, so a few more "
        "rows are needed than the 295 of the matrix alone.",
    ),
    Exercise(
        "14.2",
        judge_examples,
        (
            "What does each of the two times depend on: the examples of a device, or the parameters?",
            "Computing is proportional to the examples; communicating does not change. So one program is enough.",
            "Take `compute_s` and `communicate_s` for 1,024 examples: by which factor must the first grow? Round up.",
        ),
        why="Gradients are as large for one example as for a million, and products grow with the examples: the ratio "
        "of both times is an intensity, operations for each byte sent. 9.5 of the 14.7 ms are the rounds of the "
        "ring: without them 716 examples would do, and the parameters would cancel.",
    ),
    Exercise(
        "14.3",
        judge_days,
        (
            "How many operations does one token take, for so many parameters, forward and backward?",
            "All devices together do `devices * peak_flops_per_s * mfu` operations a second that count.",
            "All operations divided by the operations a second are seconds; a day has 86,400 of them.",
        ),
        why="6 operations a parameter and token is a rule of thumb that leaves attention out. The MFU contains all "
        "that costs time, so two numbers tell how long a training run takes, and what a better MFU saves.",
    ),
)
