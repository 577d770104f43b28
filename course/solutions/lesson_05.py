"""Lesson 05: answers."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.lesson_05 import distance
from course.solutions.answers import Answers, Made, Wrong

__all__ = ["ANSWERS"]

P = ts.P
lax = ts.lax


def on_blocks(function: Callable[..., Any], out_specs: ts.P | None = None) -> Made:
    """The function on the blocks of a 4 x 2 mesh."""

    def make() -> object:
        mesh = ts.make_mesh((4, 2), ("a", "b"))
        specs = P("a", "b")
        return ts.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs if out_specs is None else out_specs)

    return Made(make)


def square_sums(block: Any) -> Any:
    """Of each row of a block, as a column."""
    return (block**2).sum(1, keepdim=True)


def gathered(block: Any) -> Any:
    """Wrong: right values, but the neighbour's numbers are sent."""
    row = lax.all_gather(block, "b", axis=1, tiled=True)
    return block / row.norm(dim=1, keepdim=True)


def by_blocks(function: Callable[..., Any], specs: Any = None, out_specs: ts.P | None = None) -> Callable[..., Any]:
    """`function(loss, w, examples, targets)` on the blocks of eight devices."""

    def pulls(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
        def on_block(w: Any, examples: Any, targets: Any) -> Any:
            return function(loss, w, examples, targets)

        mesh = ts.make_mesh((8,), ("i",))
        in_specs = (P(), P("i"), P("i")) if specs is None else specs
        out = P("i") if out_specs is None else out_specs
        return ts.shard_map(on_block, mesh=mesh, in_specs=in_specs, out_specs=out)(w, examples, targets)

    return pulls


def gradients(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Of each example."""
    return ts.vmap(ts.grad(loss), in_axes=(None, 0, 0))(w, examples, targets)


def lengths(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Of each example's gradient."""
    return gradients(loss, w, examples, targets).norm(dim=1)


def looped(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Wrong: a loop over the examples of the block."""
    return torch.stack([ts.grad(loss)(w, examples[i], targets[i]).norm() for i in range(len(examples))])


def together(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Wrong: one number for the block."""
    return gradients(loss, w, examples, targets).norm().reshape(1)


def branched(v: Any) -> Any:
    """Wrong: an `if` on a value."""
    return torch.log(v) if v > 1 else v - 1


ANSWERS = {
    "05.1": Answers(
        solution=lambda distance, points: ts.vmap(ts.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))(
            points, points
        ),
        wrong=(
            Wrong(lambda distance, points: ts.vmap(distance)(points, points), "One vmap pairs point 0 with point 0"),
            Wrong(
                lambda distance, points: ts.vmap(distance, in_axes=(0, None))(points, points),
                "A second vmap takes them apart",
            ),
            Wrong(lambda distance, points: torch.cdist(points, points), "Map the function that you are given"),
            Wrong(
                lambda distance, points: torch.stack([torch.stack([distance(a, b) for b in points]) for a in points]),
                "calls the function once",
            ),
            Wrong(lambda _, points: ts.vmap(ts.vmap(distance))(points, points), "from *one* point to all others"),
        ),
    ),
    "05.2": Answers(
        solution=on_blocks(lambda block: block / lax.psum(square_sums(block), "b").sqrt()),
        wrong=(
            Wrong(on_blocks(lambda block: block / square_sums(block).sqrt()), "need from its neighbour"),
            Wrong(on_blocks(lambda block: block / lax.psum(square_sums(block).sqrt(), "b")), "Lengths do not add"),
            Wrong(on_blocks(lambda block: block / lax.psum(square_sums(block), "b")), "the length is its root"),
            Wrong(on_blocks(lambda block: block / lax.psum(square_sums(block), "a").sqrt()), "what is missing"),
            Wrong(on_blocks(gathered), "one number for each row"),
            Wrong(
                on_blocks(lambda block: block / lax.psum(square_sums(block), "b").sqrt(), P("a")),
                "back where `in_specs` took it from",
            ),
            Wrong(lambda matrix: matrix / matrix.norm(dim=1, keepdim=True), "write what one device runs"),
        ),
    ),
    "05.3": Answers(
        solution=by_blocks(lengths),
        wrong=(
            Wrong(lengths, "gives each device a block"),
            Wrong(by_blocks(gradients), "Nearly: take the length"),
            Wrong(by_blocks(lengths, out_specs=P()), "Each has three of the 24"),
            Wrong(by_blocks(lengths, P(), P()), "three for each device"),
            Wrong(by_blocks(together), "takes its three examples apart"),
            Wrong(by_blocks(looped), "A loop in the block grows with the block"),
        ),
    ),
    "05.4": Answers(
        solution=lambda v: torch.where(v > 1, torch.log(torch.where(v > 1, v, 1.0)), v - 1),
        wrong=(
            Wrong(branched, "chooses for each"),
            Wrong(lambda v: torch.where(v > 1, torch.log(v), v - 1), "infinity is nan"),
            Wrong(lambda v: torch.where(v > 1, torch.log(v.abs()), v - 1), "infinity is nan"),
            Wrong(lambda v: torch.where(v > 1, v - 1, torch.log(v.clamp(min=1.0))), "The two branches are exchanged"),
        ),
    ),
}
