"""Lesson 10: answers."""

from itertools import count
from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

random = ts.random


def two_layers(key: Any) -> Any:
    """10.1."""
    for_first, for_second = random.split(key)
    return random.normal(for_first, (3, 3)), random.normal(for_second, (6, 3))


def layers_cut_from_one(key: Any) -> Any:
    """Wrong: one draw, of which both are a part."""
    drawn = random.normal(key, (6, 3))
    return drawn[3:], drawn


def layers_with_own_key(key: Any) -> Any:
    """Wrong: the second key is always the same."""
    return random.normal(random.split(key)[0], (3, 3)), random.normal(random.key(0), (6, 3))


def layers_with_used_key(key: Any) -> Any:
    """Wrong: draws from a key that was split."""
    return random.normal(key, (3, 3)), random.normal(random.split(key)[0], (6, 3))


def layers_from_torch(key: Any) -> Any:
    """Wrong: a generator with a state."""
    return torch.randn(3, 3), torch.randn(6, 3)


_calls = count()


def remembering(key: Any, step: int) -> Any:
    """Wrong: the number of the call in place of the step."""
    return random.normal(random.fold_in(key, next(_calls)), (3,))


def dropout(key: Any, x: Any) -> Any:
    """10.3."""
    return torch.where(random.bernoulli(key, 0.5, x.shape), 2 * x, 0.0)


ANSWERS = {
    "10.1": Answers(
        solution=two_layers,
        wrong=(
            Wrong(layers_cut_from_one, "Each draw needs its own"),
            Wrong(layers_with_own_key, "ignores the caller's"),
            Wrong(layers_with_used_key, "is used up"),
            Wrong(layers_from_torch, "no hidden state"),
        ),
    ),
    "10.2": Answers(
        solution=lambda key, step: random.normal(random.fold_in(key, step), (3,)),
        wrong=(
            Wrong(lambda key, step: random.normal(random.key(step), (3,)), "mix the step *into* it"),
            Wrong(lambda key, step: random.normal(key, (3,)) + step, "only shifted"),
            Wrong(remembering, "Something outside remembers"),
            Wrong(lambda key, step: random.normal(random.fold_in(key, 3), (3,)), "does not enter the key yet"),
        ),
    ),
    "10.3": Answers(
        solution=dropout,
        wrong=(
            Wrong(lambda key, x: torch.nn.functional.dropout(x, 0.5), "have a hidden state"),
            Wrong(lambda key, x: torch.where(random.bernoulli(key, 0.5, x.shape), x, 0.0), "count twice"),
            Wrong(lambda key, x: 2 * x * random.bernoulli(key, 0.5, x.shape[1:]), "one number for each element"),
            Wrong(lambda key, x: dropout(random.key(0), x), "the key that the caller gives"),
            Wrong(lambda key, x: torch.where(random.bernoulli(key, 0.9, x.shape), 2 * x, 0.0), "What decides"),
        ),
    ),
    "10.4": Answers(
        solution=range(30, 36),
        wrong=(
            Wrong(range(24, 30), "CPU 2 has it"),
            Wrong(range(42, 48), "the *second* row"),
            Wrong(range(18, 24), "plus the column"),
            Wrong([3], "how many rows and columns"),
        ),
    ),
}
