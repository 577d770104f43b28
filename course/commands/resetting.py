"""`tinyshard reset LESSON`: the lesson as it is shipped; what the learner wrote is kept beside it."""

import argparse

from course.commands.command import Command, add_folder
from course.lessons import find_lesson, shipped_folder
from course.working_copy import put_back, working_folder

__all__ = ["RESET"]


def reset(arguments: argparse.Namespace) -> int:
    """Put the shipped lesson into the working copy, and print where the edited one is kept.

    Raises:
        UnknownLessonError: no lesson is called `arguments.lesson`.
    """
    shipped = shipped_folder()
    for line in put_back(find_lesson(shipped, arguments.lesson), working_folder(arguments.folder)):
        print(line)
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="its number, such as 3, or its file name")
    add_folder(parser)


RESET = Command("reset", "put a lesson back as it was shipped; yours is kept beside it", reset, _add_arguments)
