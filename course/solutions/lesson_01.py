"""Lesson 01: answers."""

from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

ANSWERS = {
    "01.1": Answers(
        solution=[False, True, False],
        wrong=(
            Wrong([False, True, True], "Tiny work is not early work"),
            Wrong([True, True, True], "for nothing else"),
            Wrong([False, False, False], "Draw the two queues"),
        ),
    ),
}
