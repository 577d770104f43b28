"""Lesson 02: answers."""

from typing import Any

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P


def nbytes_on_a_device(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """02.2."""
    nbytes = itemsize
    for size in shape:
        nbytes *= size
    for entry in spec:
        if entry is None:
            continue
        names = (entry,) if isinstance(entry, str) else entry
        for name in names:
            nbytes //= axes[name]
    return nbytes


def divided_by_all(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: forgets that there are copies."""
    nbytes = itemsize
    for size in shape:
        nbytes *= size
    for size in axes.values():
        nbytes //= size
    return nbytes


def elements(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: elements, not bytes."""
    return nbytes_on_a_device(shape, 1, axes, spec)


def by_the_library(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: asks the library."""
    sharding = ts.NamedSharding(ts.AbstractMesh(tuple(axes.values()), tuple(axes)), P(*spec))
    nbytes = itemsize
    for size in sharding.shard_shape(shape):
        nbytes *= size
    return nbytes


ANSWERS = {
    "02.1": Answers(
        solution=P(("c", "a"), None),
        wrong=(
            Wrong(P("c", "a"), "the second entry is None"),
            Wrong(P("c"), "in a tuple"),
            Wrong(P(("a", "b")), "share a block"),
            Wrong(P(("a", "c")), "Which axis holds the copies"),
        ),
    ),
    "02.2": Answers(
        solution=nbytes_on_a_device,
        wrong=(
            Wrong(divided_by_all, "Only the axes that the spec names divide"),
            Wrong(elements, "How many bytes does one of them have"),
            Wrong(by_the_library, "no sharding is needed"),
        ),
    ),
    "02.3": Answers(
        solution=(P(None, ("data", "model")), P(("data", "model"), None)),
        wrong=(
            Wrong((P(None, "data"), P("data")), "cuts nothing"),
            Wrong((P("data", "model"), P("model", "data")), "whole columns"),
            Wrong((P(None, ("data", "model")), P(("model", "data"))), "the same numbers"),
            Wrong((P(None, ("data", "model")), P(None, ("data", "model"))), "the same numbers"),
        ),
    ),
}
