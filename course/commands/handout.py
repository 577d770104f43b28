"""`tinyshard handout FOLDER`: the lessons for other hubs, without outputs and without solutions."""

import argparse
from pathlib import Path

from course.commands.command import Command
from course.handout import hand_out

__all__ = ["HANDOUT"]


def write_handout(arguments: argparse.Namespace) -> int:
    """Fill the folder `arguments.folder`, and print its contents.

    Raises:
        HandoutError: the folder holds something already.
        MissingLessonsError: there are no lessons to copy.
    """
    folder = Path(arguments.folder)
    for name in hand_out(folder):
        print(folder / name)
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a new folder")


HANDOUT = Command("handout", "put the lessons without outputs into a folder", write_handout, _add_arguments)
