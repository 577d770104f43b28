"""Lesson 11: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.exercises.lesson_11 import BY_COLUMNS, BY_ROWS, WHOLE, loss, network
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P
BOTH = P(("host", "device"))
COUNTING = torch.cat([torch.ones(250), torch.zeros(6)])


def loss_of_rest(params: Any, batch: Any, counts: Any) -> Any:
    """11.1."""
    inputs, targets = batch
    each = ((network(params, inputs) - targets) ** 2).sum(-1)
    return (each * counts).sum() / counts.sum()


def mean_of_weighted(params: Any, batch: Any, counts: Any) -> Any:
    """Wrong: divides by the number of rows."""
    inputs, targets = batch
    return (((network(params, inputs) - targets) ** 2).sum(-1) * counts).mean()


def weighted_inputs(params: Any, batch: Any, counts: Any) -> Any:
    """Wrong: zeros as inputs still give outputs."""
    inputs, targets = batch
    return loss(params, (inputs * counts[:, None], targets))


def sliced(params: Any, batch: Any, counts: Any) -> Any:
    """Wrong: right values, but rows travel."""
    inputs, targets = batch
    return loss(params, (inputs[:250], targets[:250]))


ANSWERS = {
    "11.1": Answers(
        solution=(COUNTING, loss_of_rest),
        wrong=(
            Wrong((COUNTING, mean_of_weighted), "divided by 256"),
            Wrong((COUNTING, weighted_inputs), "The padding is in it"),
            Wrong((torch.ones(256), loss_of_rest), "The padding is in it"),
            Wrong((torch.ones(250), loss_of_rest), "Which rows are to count"),
            Wrong((COUNTING, sliced), "Rows travel"),
        ),
    ),
    "11.2": Answers(
        solution=(P("device"), BOTH),
        wrong=(
            Wrong((P("host"), BOTH), "along which axis do shards"),
            Wrong((P("device"), P("device")), "Work is done twice"),
            Wrong((P(("device", "host")), BOTH), "gathered through the cable"),
            Wrong((P(), BOTH), "Too much is held"),
        ),
    ),
    "11.3": Answers(
        solution=[BY_COLUMNS, BY_ROWS, BY_COLUMNS, BY_ROWS],
        wrong=(
            Wrong([WHOLE, BY_COLUMNS, BY_ROWS, BY_COLUMNS], "it is still whole"),
            Wrong([BY_ROWS, BY_ROWS, BY_COLUMNS, BY_ROWS], "must be by columns"),
            Wrong([BY_COLUMNS] * 4, "what must happen between them"),
            Wrong([BY_COLUMNS, WHOLE, WHOLE, WHOLE], "Which weight is the largest"),
        ),
    ),
}
