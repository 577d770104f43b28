"""Lesson 06: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

RING = [(i, (i + 1) % 8) for i in range(8)]


def only_three(row: Any) -> Any:
    """Device 3 holds its row, the others zeros."""
    return torch.where(ts.lax.axis_index("i") == 3, row, 0.0)


def letters_from_three(row: Any) -> Any:
    """Device 3 sends its row to each of the others, one after the other."""
    me, heard = ts.lax.axis_index("i"), row
    for other in (0, 1, 2, 4, 5, 6, 7):
        heard = torch.where(me == other, ts.lax.ppermute(row, "i", [(3, other)]), heard)
    return heard


def doubled_from_three(row: Any) -> Any:
    """Those who have the row already pass it on: three steps, in each of which device 3 sends it."""
    me, heard = ts.lax.axis_index("i"), row
    for pairs in ([(3, 7)], [(3, 1), (7, 5)], [(3, 2), (7, 6), (1, 0), (5, 4)]):
        came = ts.lax.ppermute(heard, "i", pairs)
        for _, target in pairs:
            heard = torch.where(me == target, came, heard)
    return heard


ANSWERS = {
    "06.1": Answers(
        solution=lambda v: v - ts.lax.ppermute(v, "i", RING),
        wrong=(
            Wrong(lambda v: v - ts.lax.ppermute(v, "i", RING[:-1]), "Who sends to it"),
            Wrong(lambda v: v - ts.lax.ppermute(v, "i", [(b, a) for a, b in RING]), "the neighbour on the right"),
            Wrong(lambda v: ts.lax.ppermute(v, "i", RING) - v, "the sign is turned"),
            Wrong(lambda v: ts.lax.ppermute(v, "i", RING), "Whom must each device"),
        ),
    ),
    "06.2": Answers(
        solution=lambda row: ts.lax.all_gather(ts.lax.psum_scatter(row, "i"), "i"),
        wrong=(
            Wrong(lambda row: ts.lax.psum(row, "i"), "Which two halves"),
            Wrong(lambda row: ts.lax.psum_scatter(row, "i"), "The second half"),
            Wrong(lambda row: ts.lax.all_gather(row, "i").sum(0), "whole rows travel"),
            Wrong(lambda row: ts.lax.all_gather(row, "i"), "what does it lack"),
        ),
    ),
    "06.3": Answers(
        solution={"psum": 384, "all_gather": 768, "all_to_all": 192, "ppermute": 256},
        wrong=(
            Wrong({"psum": 448, "all_gather": 1792, "all_to_all": 224, "ppermute": 256}, "Here n is 4"),
            Wrong({"psum": 192, "all_gather": 768, "all_to_all": 192, "ppermute": 256}, "counted one"),
            Wrong({"psum": 384, "all_gather": 1024, "all_to_all": 192, "ppermute": 256}, "Nobody sends to himself"),
            Wrong({"psum": 384, "all_gather": 768, "all_to_all": 192, "ppermute": None}, "What are n and k"),
        ),
    ),
    "06.4": Answers(
        solution=lambda row: ts.lax.psum(only_three(row), "i"),
        wrong=(
            Wrong(lambda row: ts.lax.all_gather(row, "i")[3], "seven are thrown away"),
            Wrong(letters_from_three, "sends its row several times"),
            Wrong(doubled_from_three, "sends its row several times"),
            Wrong(lambda row: ts.lax.ppermute(row, "i", [(3, i) for i in range(8)]), "one receiver for each sender"),
            Wrong(lambda row: ts.lax.psum(row, "i"), "only device 3 counts"),
            Wrong(only_three, "Which collectives end like that"),
        ),
    ),
}
