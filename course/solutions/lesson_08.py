"""Lesson 08: answers."""

from itertools import pairwise
from typing import Any

import torch

import tinyshard as ts
from course.exercises.lesson_08 import BY_COLUMNS, BY_ROWS, SIZES, WHOLE, loss, predict
from course.solutions.answers import Answers, Made, Wrong

__all__ = ["ANSWERS"]

P = ts.P
COUNTING = torch.cat([torch.ones(250), torch.zeros(6)])


def weighted_loss(params: Any, batch: Any, weights: Any) -> Any:
    """08.3."""
    inputs, targets = batch
    each = ((predict(params, inputs) - targets) ** 2).sum(-1)
    return (each * weights).sum() / weights.sum()


def mean_of_weighted(params: Any, batch: Any, weights: Any) -> Any:
    """Wrong: divides by the number of rows."""
    inputs, targets = batch
    return (((predict(params, inputs) - targets) ** 2).sum(-1) * weights).mean()


def weighted_inputs(params: Any, batch: Any, weights: Any) -> Any:
    """Wrong: zeros as inputs still give predictions."""
    inputs, targets = batch
    return loss(params, (inputs * weights[:, None], targets))


def placed(shape: tuple[int, int], layers: Any, batch_shape: tuple[int, int] | None = None) -> Made:
    """Parameters and batch on a mesh of `shape`, the batch on another one if so said."""

    def make() -> object:
        def put(tensor: torch.Tensor, shape: tuple[int, int], spec: ts.P) -> Any:
            return ts.device_put(tensor, ts.NamedSharding(ts.make_mesh(shape, ("data", "model")), spec))

        pairs = zip(pairwise(SIZES), layers, strict=True)
        params = [(put(torch.zeros(m, n), shape, W), put(torch.zeros(n), shape, b)) for (m, n), (W, b) in pairs]
        batch = [put(torch.zeros(256, size), batch_shape or shape, P("data")) for size in (SIZES[0], SIZES[-1])]
        return params, tuple(batch)

    return Made(make)


ANSWERS = {
    "08.1": Answers(
        solution=[BY_COLUMNS, BY_ROWS, BY_COLUMNS, BY_ROWS],
        wrong=(
            Wrong([WHOLE, BY_COLUMNS, BY_ROWS, BY_COLUMNS], "it is still whole"),
            Wrong([BY_ROWS, BY_COLUMNS, BY_ROWS, WHOLE], "must be by columns"),
            Wrong([BY_COLUMNS] * 4, "what must happen between them"),
            Wrong([BY_COLUMNS, WHOLE, WHOLE, WHOLE], "Which weight is the largest"),
        ),
    ),
    "08.2": Answers(
        solution=lambda count, devices: 2 * (devices - 1) / devices * 4 * count,
        wrong=(
            Wrong(lambda count, devices: 2 * (devices - 1) / devices * count, "how large is a 32-bit float"),
            Wrong(lambda count, devices: (devices - 1) / devices * 4 * count, "two halves"),
            Wrong(lambda count, devices: 2 * 4 * count, "n - 1 travel"),
            Wrong(lambda count, devices: 4 * count, "What is summed up"),
        ),
    ),
    "08.3": Answers(
        solution=(COUNTING, weighted_loss),
        wrong=(
            Wrong((COUNTING, mean_of_weighted), "divided by 256"),
            Wrong((COUNTING, weighted_inputs), "The padding is in it"),
            Wrong((torch.ones(256), weighted_loss), "The padding is in it"),
            Wrong((torch.ones(250), weighted_loss), "Which rows are to count"),
        ),
    ),
    "08.4": Answers(
        solution=placed((2, 4), [WHOLE, BY_COLUMNS, BY_ROWS, WHOLE]),
        wrong=(
            Wrong(placed((4, 2), [WHOLE, BY_COLUMNS, BY_ROWS, WHOLE]), "the first number of a mesh's shape"),
            Wrong(placed((2, 4), [WHOLE, BY_COLUMNS, BY_ROWS, WHOLE], (4, 2)), "The parameters have moved"),
            Wrong(placed((2, 4), [BY_COLUMNS, BY_COLUMNS, BY_ROWS, WHOLE]), "the same four layers"),
            Wrong(placed((2, 4), [WHOLE, WHOLE, WHOLE, WHOLE]), "What does a move need"),
        ),
    ),
}
