"""`tinyshard progress`: which exercises the learner has passed, and which comes next."""

import argparse
from collections.abc import Mapping, Sequence

from course.commands.command import Command, add_folder
from course.lessons import find_lessons, shipped_folder
from course.progress import MARKS, Record, read_progress
from course.working_copy import working_folder

__all__ = ["PROGRESS", "progress_lines"]


def show_progress(arguments: argparse.Namespace) -> int:
    """Print a line for each lesson, from what the checks of exercises wrote down in the working copy."""
    lessons = find_lessons(shipped_folder())
    exercises = {f"{each.number}  {each.title}": each.exercises for each in lessons}
    working = working_folder(arguments.folder)
    print(*progress_lines(exercises, read_progress(working)), f"The working copy is {working}.", sep="\n")
    return 0


def progress_lines(exercises: Mapping[str, Sequence[str]], known: Mapping[str, Record]) -> list[str]:
    """What is passed (■), tried (▪) and untouched (□), a line for each lesson.

    Args:
        exercises: The ids of each lesson's exercises, by the lesson's name.
        known: What was written down of each exercise.

    Example:
        >>> known = {"04.1": Record(wrong=1, is_passed=True), "04.2": Record(wrong=2)}
        >>> for line in progress_lines({"04  Talking to the others": ["04.1", "04.2", "04.3"]}, known):
        ...     print(line)
        ■▪□  1 of 3  04  Talking to the others
        <BLANKLINE>
        1 of 3 exercises passed. Next: 04.2, tried 2 times.
    """
    width = max((len(ids) for ids in exercises.values()), default=0)
    lines = []
    for name, ids in exercises.items():
        if ids:
            marks = "".join(MARKS[known.get(id, Record()).state] for id in ids)
            passed = sum(known.get(id, Record()).is_passed for id in ids)
            lines.append(f"{marks:{width}}  {passed} of {len(ids)}  {name}")
    all_ids = [id for ids in exercises.values() for id in ids]
    still = [id for id in all_ids if not known.get(id, Record()).is_passed]
    return [*lines, "", f"{len(all_ids) - len(still)} of {len(all_ids)} exercises passed.{_next(still, known)}"]


def _next(still: list[str], known: Mapping[str, Record]) -> str:
    if not still:
        return ""
    tried = known.get(still[0], Record()).wrong
    return f" Next: {still[0]}" + (f", tried {tried} time{'' if tried == 1 else 's'}." if tried else ".")


PROGRESS = Command("progress", "show which exercises are passed", show_progress, add_folder)
