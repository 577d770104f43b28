"""Lesson 04: answers."""

from collections.abc import Callable
from typing import Any

import tinyshard as ts
from course.exercises.lesson_04 import convolve
from course.solutions.answers import Answers, Made, Wrong

__all__ = ["ANSWERS"]

P = ts.P
lax = ts.lax


def on_blocks(function: Callable[..., Any], out_specs: ts.P) -> Made:
    """The function on the blocks of a 4 x 2 mesh."""

    def make() -> object:
        mesh = ts.make_mesh((4, 2), ("a", "b"))
        return ts.shard_map(function, mesh=mesh, in_specs=P("a", "b"), out_specs=out_specs)

    return Made(make)


def in_stacks(stacks: int) -> Callable[..., Any]:
    """24 rows, in so many stacks."""

    def convolve_all(xs: Any, w: Any) -> Any:
        both = ts.pmap(ts.vmap(convolve, in_axes=(0, None)), in_axes=(0, None))
        return both(xs.reshape(stacks, 24 // stacks, 5), w).reshape(24, 3)

    return convolve_all


def stacked(xs: Any, w: Any) -> Any:
    """Wrong: leaves the result in stacks."""
    return ts.pmap(ts.vmap(convolve, in_axes=(0, None)), in_axes=(0, None))(xs.reshape(8, 3, 5), w)


ANSWERS = {
    "04.1": Answers(
        solution=on_blocks(lambda block: lax.psum(block.sum(0), "a"), P("b")),
        wrong=(
            Wrong(on_blocks(lambda block: block.sum(0), P("b")), "nobody added up"),
            Wrong(on_blocks(lambda block: lax.psum(block.sum(0), "b"), P("b")), "other rows of the *same* columns"),
            Wrong(on_blocks(lambda block: lax.psum(block.sum(0), "a"), P("a")), "along the wrong axis"),
            Wrong(on_blocks(lambda block: lax.psum(block.sum(0), "a"), P()), "lie along an axis"),
        ),
    ),
    "04.2": Answers(
        solution=lambda v: v - lax.pmax(v, "i"),
        wrong=(
            Wrong(lambda v: v - v.max(), "Who knows all eight"),
            Wrong(lambda v: lax.pmax(v, "i") - v, "The sign is turned"),
            Wrong(lambda v: v - lax.psum(v, "i"), "the largest is wanted"),
            Wrong(lambda v: v - lax.pmax(v, "j"), "How does section 4"),
        ),
    ),
    "04.3": Answers(
        solution=in_stacks(8),
        wrong=(
            Wrong(in_stacks(3), "how many stacks"),
            Wrong(stacked, "`reshape` it to 24 rows"),
            Wrong(lambda xs, w: ts.vmap(convolve, in_axes=(0, None))(xs, w), "Who hands out rows"),
            Wrong(lambda xs, w: ts.pmap(convolve, in_axes=(0, None))(xs, w), "Make 8 stacks of 3"),
        ),
    ),
    "04.4": Answers(
        solution=on_blocks(lambda block: lax.pmean(block.mean(), ("a", "b")), P()),
        wrong=(
            Wrong(on_blocks(lambda block: lax.psum(block.mean(), ("a", "b")), P()), "Who divides by 8"),
            Wrong(on_blocks(lambda block: lax.pmean(block.mean(), "a"), P()), "Over which axes"),
            Wrong(on_blocks(lambda block: block.mean(), P()), "Over which axes"),
            Wrong(on_blocks(lambda block: lax.pmean(block.sum(), ("a", "b")), P()), "What makes it true"),
        ),
    ),
}
