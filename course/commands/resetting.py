"""`tinyshard reset LESSON`: the lesson as it is shipped; what the learner wrote is kept beside it."""

import argparse

from course.commands.command import Command, add_folder
from course.lessons import find_lesson, shipped_folder
from course.predicted import forget
from course.progress import forget_wrong
from course.start import renew_start
from course.working_copy import existing_copy, put_back

__all__ = ["RESET"]


def reset(arguments: argparse.Namespace) -> int:
    """Put the shipped lesson into the working copy, and print where that is and where the edited one is kept.

    The lesson's predictions and counts of wrong answers are forgotten; what is passed stays passed.

    Raises:
        MissingCopyError: The folder is not a working copy.
        UnknownLessonError: no lesson is called `arguments.lesson`.
    """
    lesson, working = find_lesson(shipped_folder(), arguments.lesson), existing_copy(arguments.folder)
    for line in put_back(lesson, working):
        print(line)
    forget(working, lesson.number)
    forget_wrong(working, lesson.number)
    renew_start(working)
    print(f"predictions and wrong answers of lesson {lesson.number} are forgotten; what is passed stays passed")
    print(f"the working copy is {working}")
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="its number, such as 3, or its file name")
    add_folder(parser)


RESET = Command("reset", "put a lesson back as it was shipped; yours is kept beside it", reset, _add_arguments)
