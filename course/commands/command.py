"""What a command is: a name, a line of help, its own arguments, and a function that runs it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Command", "add_folder"]


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Declare `--folder`: where the learner's working copy is."""
    parser.add_argument("--folder", help="the folder of your own copy of the lessons; else ./my-lessons")


@dataclass(frozen=True)
class Command:
    """One command of `tinyshard`.

    Args:
        name: The word on the command line.
        help: One line for `tinyshard --help`.
        run: Does it with the parsed arguments, and returns the exit status.
        add_arguments: Declares its own arguments on the parser that it is given.
        more: What `--help` of the command says after its arguments.
        hands_on: Whether it receives unknown arguments, as `others`; for other commands they are an error.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    more: str = ""
    hands_on: bool = False
