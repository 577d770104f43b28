"""Lesson 01: when is the result there?"""

from collections.abc import Sequence

from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

READY = (False, True, False)


def judge_ready(guess: Sequence[object]) -> Verdict:
    """01.1: `a` and `c` stand in the queue of CPU 0, `b` alone in that of CPU 1."""
    if not isinstance(guess, list | tuple) or len(guess) != 3 or not all(isinstance(each, bool) for each in guess):
        return differs("it is not a list of three values, each True or False")
    if tuple(guess) == (False, True, True):
        return differs("2 of 3 are right", "Tiny work is not early work. What stands before `c` in its device's queue?")
    if all(guess):
        return differs(
            "1 of 3 is right", "Waiting for `b` is waiting for `b` and what it is made from, for nothing else."
        )
    right = sum(each is truth for each, truth in zip(guess, READY, strict=True))
    return PASSED if right == 3 else differs(f"{right} of 3 {'is' if right == 1 else 'are'} right")


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
)
