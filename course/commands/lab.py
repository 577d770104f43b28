"""`tinyshard lab`: JupyterLab on the learner's working copy."""

import argparse
import os
from pathlib import Path

from course.commands.command import Command, add_folder
from course.lab import lab_command, offer_settings
from course.lessons import shipped_folder
from course.sharing import ROOM
from course.working_copy import refresh, working_folder

__all__ = ["LAB"]


def open_lab(arguments: argparse.Namespace) -> int:
    """Bring the working copy up to date, then become JupyterLab on it; `arguments.others` are handed on.

    What is predicted there goes to the folder `arguments.room` as well, where there is one.

    Raises:
        MissingLessonsError: there is no folder of lessons to copy.
        MissingLabError: JupyterLab is not installed.
    """
    working = working_folder(arguments.folder)
    command = lab_command(working, arguments.others)
    for line in refresh(shipped_folder(), working):
        print(line)
    print(f"opening JupyterLab on {working}: some seconds; Ctrl-C twice ends it", flush=True)
    # JupyterLab replaces this process, so that Ctrl-C and signals reach only JupyterLab.
    offer_settings(os.environ)
    if arguments.room is not None:
        os.environ[ROOM] = str(Path(arguments.room).resolve())
    os.execv(command[0], command)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    parser.add_argument("--room", metavar="FOLDER", help="share predictions, without a name, in a folder for all")


LAB = Command(
    "lab",
    "open JupyterLab on a working copy; other arguments go to JupyterLab",
    open_lab,
    _add_arguments,
    more="All other arguments go on to JupyterLab, such as --no-browser and --port=8900.",
    hands_on=True,
)
