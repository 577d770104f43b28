"""The commands of the workshop kit: `python -m course lab` and `python -m course list`."""

import argparse
import os
import sys
from collections.abc import Sequence

from course.lab import MissingLabError, lab_command, offer_settings
from course.lessons import MissingLessonsError, find_lessons, refresh, shipped_folder, working_folder


def open_lab(lab_args: Sequence[str]) -> None:
    """Bring the working copy up to date, then become JupyterLab on it; `lab_args` are handed on.

    Raises:
        MissingLessonsError: there is no folder of lessons to copy.
        MissingLabError: JupyterLab is not installed.
    """
    working = working_folder()
    command = lab_command(working, lab_args)
    for line in refresh(shipped_folder(), working):
        print(line)
    print(f"opening JupyterLab on {working}", flush=True)
    # JupyterLab takes this process's place, so that Ctrl-C and signals reach it alone.
    offer_settings(os.environ)
    os.execv(command[0], command)


def list_lessons() -> None:
    """Print number, title and file of each lesson, a line each."""
    for lesson in find_lessons(shipped_folder()):
        print(f"{lesson.number}  {lesson.title}  ({lesson.path.name})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m course", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("lab", help="open JupyterLab on a working copy; other arguments go to JupyterLab")
    commands.add_parser("list", help="list the lessons")
    chosen, others = parser.parse_known_args(argv)
    if others and chosen.command != "lab":
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        if chosen.command == "lab":
            open_lab(others)
        else:
            list_lessons()
    except (MissingLessonsError, MissingLabError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
