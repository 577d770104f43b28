"""`tinyshard list`: which lessons there are."""

import argparse

from course.commands.command import Command
from course.lessons import find_lessons, shipped_folder

__all__ = ["LIST"]


def list_lessons(arguments: argparse.Namespace) -> int:
    """Print number, title and file of each lesson, a line each."""
    for lesson in find_lessons(shipped_folder()):
        print(f"{lesson.number}  {lesson.title}  ({lesson.path.name})")
    return 0


LIST = Command("list", "list the lessons", list_lessons)
