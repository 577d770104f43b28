"""Lesson 06: answers."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
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


def by_blocks(
    function: Callable[..., Any], specs: Any = None, out_specs: ts.P | None = None, is_own: bool = True
) -> Callable[..., Any]:
    """`function(loss, w, examples, targets)` on the blocks of eight devices, perhaps with each device's own `w`."""

    def pulls(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
        def on_block(w: Any, examples: Any, targets: Any) -> Any:
            own = lax.pcast(w, "i", to="varying") if is_own else w
            return function(loss, own, examples, targets)

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


def lengths_of_all(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Wrong: every device gets all examples, and keeps the lengths of three."""
    every = [lax.all_gather(each, "i", tiled=True) for each in (examples, targets)]
    return lengths(loss, w, *every).reshape(8, 3)[lax.axis_index("i")]


def softmax(block: Any, largest: Callable[[Any], Any], total: Callable[[Any], Any]) -> Any:
    """Of each row of a block: what is subtracted, and what the sum is divided by, are given."""
    raised = torch.exp(block - largest(block.amax(1, keepdim=True)))
    return raised / total(raised.sum(1, keepdim=True))


def over_b(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """A collective over the axis that cuts the rows."""
    return lambda v: function(v, "b")


def alone(v: Any) -> Any:
    """No collective."""
    return v


def gathered_softmax(block: Any) -> Any:
    """Wrong: right values, but the other half is sent."""
    row = torch.softmax(lax.all_gather(block, "b", axis=1, tiled=True), 1)
    return torch.where(lax.axis_index("b") == 0, row[:, : block.shape[1]], row[:, block.shape[1] :])


ANSWERS = {
    "06.1": Answers(
        solution=on_blocks(lambda block: block / lax.psum(square_sums(block), "b").sqrt()),
        wrong=(
            Wrong(on_blocks(lambda block: block / square_sums(block).sqrt()), "need from its neighbour"),
            Wrong(on_blocks(lambda block: block / lax.psum(square_sums(block).sqrt(), "b")), "Lengths do not add"),
            Wrong(on_blocks(lambda block: block / lax.psum(square_sums(block), "b")), "the length is its root"),
            Wrong(on_blocks(lambda block: block / lax.psum(square_sums(block), "a").sqrt()), "what is missing"),
            Wrong(on_blocks(gathered), "one number for each row"),
            Wrong(lambda matrix: matrix / matrix.norm(dim=1, keepdim=True), "write what one device runs"),
        ),
    ),
    "06.2": Answers(
        solution=on_blocks(lambda block: softmax(block, over_b(lax.pmax), over_b(lax.psum))),
        wrong=(
            Wrong(on_blocks(lambda block: torch.softmax(block, 1)), "Each half of a row adds up to 1"),
            Wrong(on_blocks(lambda block: softmax(block, alone, over_b(lax.psum))), "Both halves must subtract"),
            Wrong(on_blocks(lambda block: softmax(block, torch.zeros_like, over_b(lax.psum))), "exp(300) is infinite"),
            Wrong(on_blocks(gathered_softmax), "two numbers only"),
            Wrong(lambda scores: torch.softmax(scores, 1), "Write what one device runs"),
        ),
    ),
    "06.3": Answers(
        solution=by_blocks(lengths),
        wrong=(
            Wrong(lengths, "gives each device a block"),
            Wrong(by_blocks(gradients), "Nearly. The task asks for the length"),
            Wrong(by_blocks(lengths, is_own=False), "is the sum of what each of them finds"),
            Wrong(by_blocks(lengths, P(), P(), is_own=False), "three for each device"),
            Wrong(by_blocks(together), "takes its three examples apart"),
            Wrong(by_blocks(lengths_of_all), "No example needs another one"),
            Wrong(by_blocks(looped), "A loop in the block grows with the block"),
        ),
    ),
}
