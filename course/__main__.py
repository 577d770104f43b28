"""The commands of the workshop kit, as in `tinyshard lab`."""

import argparse
import os
import sys
from collections.abc import Sequence

from course.commands.doctor import DOCTOR
from course.commands.handout import HANDOUT
from course.commands.lab import LAB
from course.commands.listing import LIST
from course.commands.progress import PROGRESS
from course.commands.resetting import RESET
from course.commands.room import ROOM
from course.errors import CourseError

COMMANDS = (LAB, LIST, PROGRESS, RESET, DOCTOR, HANDOUT, ROOM)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tinyshard", description=__doc__, allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for command in COMMANDS:
        own = subparsers.add_parser(
            command.name, help=command.help, description=command.help, epilog=command.more, allow_abbrev=False
        )
        command.add_arguments(own)
    arguments, others = parser.parse_known_args(argv)
    arguments.others = others
    chosen = next(command for command in COMMANDS if command.name == arguments.name)
    if others and not chosen.hands_on:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        status = chosen.run(arguments)
        sys.stdout.flush()
        return status
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # as in `tinyshard progress | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left as it ends
        return 1


if __name__ == "__main__":
    sys.exit(main())
