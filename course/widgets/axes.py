"""Lesson 05: choose in_axes and out_axes; see which numbers make up an example, and where its result goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course.widgets.base import Choice, Control, Explorer, Step
from course.widgets.card import MUTED, Piece, Sheet, beside, paragraph, stack
from course.widgets.grid import Entry, grid
from tinyshard.core.errors import MappingError, message
from tinyshard.transforms.vmap import vmap

__all__ = ["Mapped", "axis_picker", "describe", "draw", "look"]

HEADING = "Which numbers make up one example"

X, W = torch.arange(5.0), torch.tensor([2.0, 3.0, 4.0])
X_BATCH, W_BATCH = torch.stack([X, X + 1, X + 2]), torch.stack([W, 2 * W, 3 * W])

Values = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Batch:
    """A tensor and the dim that counts its examples.

    Args:
        name: "x", "w" or "result".
        shape: its shape, of rank 1 or 2.
        rows: its numbers; a vector is one row.
        axis: the dim that counts the examples; None where all share it.
    """

    name: str
    shape: tuple[int, ...]
    rows: Values
    axis: int | None

    def example_of(self, i: int, j: int) -> int | None:
        """The example that the number in row i and column j belongs to; None for all of them."""
        if self.axis is None:
            return None
        return j if len(self.shape) == 1 else (i, j)[self.axis]


@dataclass(frozen=True)
class Mapped:
    """One call of `vmap(convolve)`.

    Args:
        batches: x, w and the result.
        seen: the shapes of x and w inside the function.
        out_axes: as given.
        count: number of examples.
        example: the marked one.
    """

    batches: tuple[Batch, Batch, Batch]
    seen: tuple[tuple[int, ...], tuple[int, ...]]
    out_axes: int
    count: int
    example: int


def axis_picker() -> Explorer[Mapped]:
    """Choose the shapes of x and w and their in_axes, and out_axes, for the convolution of the lesson.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none.

    Example:
        >>> print(axis_picker().choose(w="one", w_axis=None, out_axes=1).text.splitlines()[-1])
        result of shape (3, 3); example 0 is result[:, 0]: 11 20 29
    """
    shapes = [("three, in rows", "rows"), ("three, in columns", "columns"), ("one", "one")]
    axes: list[tuple[str, Any]] = [("0", 0), ("1", 1), ("None", None)]
    controls: list[Control] = [
        Choice("x", "tensor x", shapes),
        Choice("w", "tensor w", [*shapes, ("two, in rows", "two")]),
        Choice("x_axis", "in_axes of x", axes),
        Choice("w_axis", "in_axes of w", axes),
        Choice("out_axes", "out_axes", axes[:2]),
        Step("example", "marked example", most=4),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(x: str, x_axis: int | None, w: str, w_axis: int | None, out_axes: int, example: int) -> Mapped:
    """Call `vmap`.

    Args:
        x: how many examples, and along which dim: "rows", "columns", "one".
        x_axis: the entry of in_axes.
        w: likewise, or "two".
        w_axis: the entry of in_axes.
        out_axes: the dim of the result that counts the examples.
        example: the marked one; the last one, if there are not as many.

    Raises:
        MappingError: the axes do not fit, or the function fails on the examples that they make.

    Communication: none.
    """
    operands = _laid_out(X, X_BATCH, x), _laid_out(W, W_BATCH, w)
    in_axes = (x_axis, w_axis)
    seen: list[tuple[int, ...]] = []

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        seen[:] = [tuple(x.shape), tuple(w.shape)]
        return torch.stack([torch.dot(x[i - 1 : i + 2], w) for i in range(1, len(x) - 1)])

    try:
        result = vmap(convolve, in_axes=in_axes, out_axes=out_axes)(*operands)
    except MappingError:
        raise
    except (RuntimeError, TypeError) as error:  # of torch: from the shapes that convolve sees
        raise MappingError(
            message(
                "the function fails on such an example",
                got=f"inside it, x has shape {seen[0]} and w has shape {seen[1]}",
                rule=f"torch says: {str(error).splitlines()[0]}",
                try_="other in_axes; an example of x is a vector of 5, an example of w a vector of 3",
            )
        ) from error
    count = result.shape[out_axes]
    axes = (*in_axes, out_axes)
    named = zip(("x", "w", "result"), (*operands, result), axes, strict=True)
    first, second, third = (_batch(name, values, axis) for name, values, axis in named)
    return Mapped((first, second, third), (seen[0], seen[1]), out_axes, count, min(example, count - 1))


def draw(mapped: Mapped) -> Sheet:
    """x, w and the result; a colour for each example, a thick border around the chosen one's numbers."""
    pieces = [_drawn(batch, mapped) for batch in mapped.batches]
    shared = "; numbers with a band of all colours are shared by all examples"
    legend = "each colour is one example" + shared * any(batch.axis is None for batch in mapped.batches)
    note = paragraph([legend, f"a thick border marks example {mapped.example}"], size=11, fill=MUTED)
    inside, outside = paragraph(_lines(mapped)), paragraph([_code(mapped)], is_code=True)
    return Sheet(f"vmap over {mapped.count} examples: {_code(mapped)}", stack([outside, beside(pieces), inside, note]))


def describe(mapped: Mapped) -> str:
    """The call, what the function sees, and the numbers of the chosen example."""
    lines = [_code(mapped), _lines(mapped)[0]]
    for batch in mapped.batches:
        where = _where(batch, mapped.example)
        lines.append(
            f"{batch.name} of shape {batch.shape}; example {mapped.example} is {where}: {_numbers(batch, mapped)}"
        )
    return "\n".join(lines)


def _laid_out(one: Tensor, batch: Tensor, how: str) -> Tensor:
    return {"rows": batch, "columns": batch.T, "one": one, "two": batch[:2]}[how]


def _batch(name: str, values: Tensor, axis: int | None) -> Batch:
    rows = tuple(tuple(row) for row in values.reshape(-1, values.shape[-1]).tolist())
    return Batch(name, tuple(values.shape), rows, axis)


def _code(mapped: Mapped) -> str:
    x, w, _ = mapped.batches
    return f"ts.vmap(convolve, in_axes=({x.axis}, {w.axis}), out_axes={mapped.out_axes})(x, w)"


def _lines(mapped: Mapped) -> list[str]:
    inside = f"inside convolve: x has shape {mapped.seen[0]}, w has shape {mapped.seen[1]}; {mapped.count} examples"
    places = ", ".join(_where(batch, mapped.example) for batch in mapped.batches)
    return [inside, f"example {mapped.example}: {places}"]


def _where(batch: Batch, example: int) -> str:
    """The expression for the example's part: "x[0]", "x[:, 0]", "x" where it is shared."""
    return batch.name if batch.axis is None else f"{batch.name}[{':, ' * batch.axis}{example}]"


def _numbers(batch: Batch, mapped: Mapped) -> str:
    return " ".join(f"{v:g}" for i, j, v in _cells(batch.rows) if batch.example_of(i, j) in (None, mapped.example))


def _cells(rows: Values) -> list[tuple[int, int, float]]:
    return [(i, j, value) for i, row in enumerate(rows) for j, value in enumerate(row)]


def _drawn(batch: Batch, mapped: Mapped) -> Piece:
    def entry(i: int, j: int, value: float) -> Entry:
        example = batch.example_of(i, j)
        owners: Sequence[int] = range(mapped.count) if example is None else [example]
        words = "every example" if example is None else f"example {example}"
        return Entry(f"{value:g}", tuple(owners), f"{value:g}, of {words}", example in (None, mapped.example))

    rows = [[entry(i, j, value) for j, value in enumerate(row)] for i, row in enumerate(batch.rows)]
    axis = "shared by all examples" if batch.axis is None else f"examples along dim {batch.axis}"
    heading = paragraph([f"{batch.name}: shape {batch.shape}"])
    return stack([heading, grid(rows), paragraph([axis], size=11, fill=MUTED)], 4)
