"""Lesson 02: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.exercises.lesson_03 import SCORES
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P
pad = torch.nn.functional.pad


def holders(array: Any, row: int, column: int) -> list[int]:
    """02.3."""
    rows, columns = (range(size) for size in array.shape)
    return sorted(
        shard.device.id
        for shard in array.addressable_shards
        if row in rows[shard.index[0]] and column in columns[shard.index[1]]
    )


def first_holder(array: Any, row: int, column: int) -> list[int]:
    """Wrong: stops at the first copy."""
    return holders(array, row, column)[:1]


def holders_of_row(array: Any, row: int, column: int) -> list[int]:
    """Wrong: forgets that columns may be cut."""
    rows = range(array.shape[0])
    return [shard.device.id for shard in array.addressable_shards if row in rows[shard.index[0]]]


def everybody(array: Any, row: int, column: int) -> list[int]:
    """Wrong: where the array lives, not the element."""
    return sorted(device.id for device in array.devices())


ANSWERS = {
    "02.1": Answers(
        solution=P(None, "a"),
        wrong=(
            Wrong(P("a"), "Which entry of P stands for the columns"),
            Wrong(P(None, "b"), "Which axis of the mesh has 4 devices"),
            Wrong(P(None, ("a", "b")), "hold copies"),
            Wrong(P("a", "b"), "how many different blocks"),
        ),
    ),
    "02.2": Answers(
        solution=P(("b", "a"), None),
        wrong=(
            Wrong(P("b", "a"), "the second entry is None"),
            Wrong(P("b"), "a tuple of names"),
            Wrong(P(("a", "b")), "one step along which axis"),
        ),
    ),
    "02.3": Answers(
        solution=holders,
        wrong=(
            Wrong(first_holder, "Do not stop at the first"),
            Wrong(holders_of_row, "must lie in both"),
            Wrong(everybody, "Which of the shards"),
        ),
    ),
    "02.4": Answers(
        solution=pad(SCORES, (0, 0, 0, 2)),
        wrong=(
            Wrong(pad(SCORES, (0, 2)), "counts from the last dim"),
            Wrong(pad(SCORES, (0, 2, 0, 6)), "Which axis cuts the rows"),
            Wrong(pad(SCORES, (0, 0, 0, 2), value=1.0), "Pad with zeros"),
            Wrong(SCORES.reshape(12, 5), "counts from the last dim"),
        ),
    ),
    "02.5": Answers(
        solution=P("a", None, None, "b"),
        wrong=(
            Wrong(P("a", "b"), "which all are to stay together"),
            Wrong(P("a", None, "b"), "Half of the *rows*"),
            Wrong(P("b", None, None, "a"), "Which axis has 4 devices"),
            Wrong(P("a"), "Which two are to be cut"),
        ),
    ),
}
