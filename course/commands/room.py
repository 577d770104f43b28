"""`tinyshard room FOLDER`: what the room has predicted, and its board of the ladder, on the teacher's screen."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from course.by_lesson import number_in
from course.commands.command import Command
from course.errors import UnknownLessonError
from course.predictions import lesson_numbers, predictions_of
from course.predictions.prediction import Prediction
from course.room import choices_in, climbers_in, poll, standings

__all__ = ["ROOM", "room_lines"]

EVERY_S = 3.0
LADDER = "18"  # the lesson whose rungs are scored
CLEAR = "\033[H\033[2J"  # the cursor to the corner, then nothing on the screen


def show_room(arguments: argparse.Namespace) -> int:
    """Print how many chose which answer; with `arguments.watch` again and again, until Ctrl-C.

    Raises:
        MissingRoomError: the folder does not exist.
        UnknownLessonError: the lesson has no predictions.
    """

    def lines() -> list[str]:
        return room_lines(Path(arguments.folder), arguments.lesson, answers=arguments.answers)

    if not arguments.watch:
        print(*lines(), sep="\n")
        return 0
    try:
        while True:
            print(CLEAR, *(f"{line}\n" for line in lines()), sep="", flush=True)
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return 0


def room_lines(folder: Path, lesson: str | None, *, answers: bool = False) -> list[str]:
    """The lines to print: all predictions of one lesson; or of all lessons those that have an answer.

    The ladder's board comes first, with its lesson or with all.

    Args:
        folder: The room's.
        lesson: Such as "5", "05" or "A"; None for all.
        answers: With the right choices, and what wrong ones say.
    """
    counts = choices_in(folder)
    climbers = climbers_in(folder)
    if lesson is not None:
        number = _number(lesson)
        board = list(standings(climbers)) if number == LADDER else []
        return [*board, *poll(list(predictions_of(number).values()), counts, answers=answers)]
    answered = [each for each in _all_predictions() if each.id in counts]
    board = list(standings(climbers)) if climbers else []
    if not answered and not board:
        return [f"there are no predictions yet; looked in {folder}"]
    return [*board, *poll(answered, counts, answers=answers)]


def _all_predictions() -> Iterator[Prediction]:
    for number in lesson_numbers():
        yield from predictions_of(number).values()


def _number(lesson: str) -> str:
    number = number_in(lesson)
    if number not in lesson_numbers():
        raise UnknownLessonError(
            f"there are no predictions of lesson {lesson!r}\n"
            f"  got:  {lesson!r}\n"
            "  rule: a lesson is called by its number\n"
            f"  try:  one of {' '.join(lesson_numbers())}"
        )
    return number


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="the folder that all can write to, or one with collected working folders")
    parser.add_argument("lesson", nargs="?", help="its number, such as 5; without it all that was answered is shown")
    parser.add_argument("--answers", action="store_true", help="mark the right choices, and say what wrong ones mean")
    parser.add_argument("--watch", action="store_true", help="look again every few seconds, until Ctrl-C")


ROOM = Command(
    "room", "show what the room has predicted, and who is on which rung of the ladder", show_room, _add_arguments
)
