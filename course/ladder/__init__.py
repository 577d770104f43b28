"""The puzzle ladder of lesson 18: fourteen rungs, each with what devices are given, what they must end with, and par.

    rung.py          what a rung is, and how an answer is counted
    collectives.py   18.1 to 18.5: the collectives, made of single messages
    layers.py        18.6 to 18.10: layers whose operands are cut
    attention.py     18.11 and 18.12: attention around a ring
    pipelines.py     18.13 and 18.14: pipelines, forward, and with the backward pass
    scoring.py       the picture of a rung, and the score of an answer
    board.py         the learner's own board; what it shows is kept by course/climbs.py, and shared with the room

In a lesson: `ladder.show("18.1")`, `ladder.score("18.1", answer)`, `check("18.1", answer)`, `ladder.board()`.
"""

from pathlib import Path

from course.climbs import name_climber, read_climber
from course.exercises.exercise import is_untouched
from course.ladder import attention, collectives, layers, pipelines
from course.ladder.board import board_of
from course.ladder.rung import Answer, Rung, counts_of
from course.ladder.scoring import Score, picture, score_of, untouched
from course.sharing import share_climbs
from tinyshard.core.page import Drawing

__all__ = ["RUNGS", "Score", "board", "call_me", "counts_of", "score", "score_of", "show"]

RUNGS: dict[str, Rung] = {
    rung.id: rung for module in (collectives, layers, attention, pipelines) for rung in module.RUNGS
}


def show(id: str) -> Drawing:
    """The picture of a rung: what each device holds before and after.

    Args:
        id: of its exercise, such as "18.1".

    Communication: none.
    """
    return picture(RUNGS[id])


def score(id: str, answer: Answer) -> Score | Drawing:
    """How an answer does beside par; of an untouched answer cell par alone.

    Args:
        id: of its exercise, such as "18.1".
        answer: a function of one device's blocks.

    Raises:
        What the answer raises.

    Communication: what the answer sends.
    """
    return untouched(RUNGS[id]) if is_untouched(answer) else score_of(RUNGS[id], answer)


def board() -> Drawing:
    """The learner's own board, from what `check` has written down in this folder.

    Communication: none.
    """
    return board_of(RUNGS.values(), read_climber(Path.cwd()).climbs)


def call_me(name: str) -> None:
    """Give a name for the room's board; without it the board shows a random one.

    Communication: none.
    """
    name_climber(Path.cwd(), name)
    print(share_climbs(Path.cwd()) or f"{name!r} is the name on the room's board.")
