"""From one layout to another over the same devices: the fewest exchanges, cheapest first.

rows -> columns     all_to_all        each device keeps 1/n of its block and swaps the rest
rows -> whole       all_gather        each device collects the others' rows
whole -> rows       local_slice       nothing moves
swapped blocks      collective_permute
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinyshard.core.collectives import COLLECTIVES, group_size
from tinyshard.core.layout import Axes, Layout
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType

Dims = tuple[Axes, ...]


@dataclass(frozen=True, slots=True)
class ShardedVar:
    """A value of the program being built.

    Attributes:
        number: its number in the program.
        shape: its global shape.
        dims: for each dim the axes of the program that cut it.
        partial: (axis, op) for each axis along which the devices hold parts that still have to be combined.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: Dims
    partial: tuple[tuple[int, str], ...] = ()

    def local(self, axes: Axes) -> ShapedType:
        """Shape and dtype of one shard."""
        parts = (math.prod(axes[a] for a in cut) for cut in self.dims)
        return ShapedType(tuple(n // k for n, k in zip(self.shape, parts, strict=True)), self.dtype)

    @property
    def is_whole(self) -> bool:
        """Whether every device holds the whole, final tensor."""
        return not self.partial and not any(self.dims)


def collective(builder: Builder, name: str, x: int, axes: Axes, **params: Any) -> int:
    """Emit one collective over `axes` of the program; returns the number of its result."""
    before = builder.metas[x]
    assert before is not None, "collectives come after values of known shape"
    named = {"axes": axes, **params}
    made = COLLECTIVES[name].meta(before, group_size(builder.axes, named), params)
    return builder.emit(name, (Value(x),), named, [made])[0]


def reduce_partial(builder: Builder, x: ShardedVar) -> ShardedVar:
    """Combine the partial parts; afterwards every device along those axes holds the result."""
    if not x.partial:
        return x
    return builder.once((x, "combined"), lambda: _all_reduced(builder, x))


def _all_reduced(builder: Builder, x: ShardedVar) -> ShardedVar:
    number = x.number
    for op in dict.fromkeys(op for _, op in x.partial):
        axes = tuple(a for a, o in x.partial if o == op)
        number = collective(builder, "all_reduce", number, axes, op=op)
    return replace(x, number=number, partial=())


def reshard(builder: Builder, x: ShardedVar, dims: Dims, *, stays_partial: bool = False) -> ShardedVar:
    """Emit what brings `x` to `dims`, partial parts combined.

    Args:
        builder: the program.
        x: the value.
        dims: the axes that are to cut each dim.
        stays_partial: whether it is partial along further axes, which are left so: then blocks that look like copies
            are parts of a sum, and must not change places.

    Communication: none if every dim only gets more cuts; else the steps named above.
    """
    key = (x, dims, stays_partial)  # x with what is partial: an op may want some axes combined and others not
    return builder.once(key, lambda: _moved(builder, x, dims, stays_partial))


def _moved(builder: Builder, x: ShardedVar, dims: Dims, stays_partial: bool) -> ShardedVar:
    if (x, "combined") not in builder.copies:
        x = _scatter_partial(builder, x, dims)
    x = reduce_partial(builder, x)
    while x.dims != dims:
        x = (
            _take_own_block(builder, x, dims)
            or (None if stays_partial else _permute(builder, x, dims))
            or _swap(builder, x, dims)
            or _gather(builder, x, dims)
        )
    return x


def _next_axis(have: Axes, want: Axes) -> int | None:
    """The next axis to cut with, if `have` is the beginning of `want`."""
    return want[len(have)] if len(have) < len(want) and want[: len(have)] == have else None


def _with_cut(dims: Dims, dim: int, cut: Axes) -> Dims:
    return (*dims[:dim], cut, *dims[dim + 1 :])


def _scatter_partial(builder: Builder, x: ShardedVar, dims: Dims) -> ShardedVar:
    """Partial sums along an axis that is to cut a dim: combine and cut in one step."""
    for axis, op in x.partial:
        for dim, want in enumerate(dims):
            if _next_axis(x.dims[dim], want) == axis and op in ("sum", "avg"):
                number = collective(builder, "reduce_scatter", x.number, (axis,), dim=dim, op=op)
                rest = tuple(p for p in x.partial if p[0] != axis)
                cut = _with_cut(x.dims, dim, (*x.dims[dim], axis))
                return _scatter_partial(builder, replace(x, number=number, dims=cut, partial=rest), dims)
    return x


def _take_own_block(builder: Builder, x: ShardedVar, dims: Dims) -> ShardedVar | None:
    """Cut by an axis along which lie copies: nothing moves, and later steps move less."""
    used = {a for cut in x.dims for a in cut}
    for dim, want in enumerate(dims):
        axis = _next_axis(x.dims[dim], want)
        if axis is not None and axis not in used:
            number = collective(builder, "local_slice", x.number, (axis,), dim=dim)
            return replace(x, number=number, dims=_with_cut(x.dims, dim, (*x.dims[dim], axis)))
    return None


def _permute(builder: Builder, x: ShardedVar, dims: Dims) -> ShardedVar | None:
    """Equal blocks that only live on other devices: one permutation."""
    devices = tuple(range(math.prod(builder.axes)))
    have, want = Layout(devices, builder.axes, x.dims), Layout(devices, builder.axes, dims)
    if have.parts != want.parts:
        return None
    holders = have.owners()
    pairs = [(holders[want.block(p)][want.replica_id(p)], p) for p in devices]
    number = collective(builder, "collective_permute", x.number, tuple(range(len(builder.axes))), pairs=tuple(pairs))
    return replace(x, number=number, dims=dims)


def _swap(builder: Builder, x: ShardedVar, dims: Dims) -> ShardedVar | None:
    """The last cut of one dim is the next cut of another: exchange blocks."""
    for dim, cut in enumerate(x.dims):
        if not cut or cut == dims[dim][: len(cut)]:
            continue
        for other, want in enumerate(dims):
            if other != dim and _next_axis(x.dims[other], want) == cut[-1]:
                number = collective(builder, "all_to_all", x.number, (cut[-1],), split=other, join=dim)
                moved = _with_cut(_with_cut(x.dims, dim, cut[:-1]), other, (*x.dims[other], cut[-1]))
                return replace(x, number=number, dims=moved)
    return None


def _gather(builder: Builder, x: ShardedVar, dims: Dims) -> ShardedVar:
    """Undo the last cuts of a dim that do not belong to the target."""
    for dim, (cut, want) in enumerate(zip(x.dims, dims, strict=True)):
        keep = 0
        while keep < min(len(cut), len(want)) and cut[keep] == want[keep]:
            keep += 1
        if keep < len(cut):
            elsewhere = {a for i, other in enumerate(dims) if i != dim for a in other}
            last = len(cut) - 1
            while last > keep and cut[last - 1] not in elsewhere:  # an axis wanted elsewhere may be swapped later
                last -= 1
            number = collective(builder, "all_gather", x.number, cut[last:], dim=dim)
            return replace(x, number=number, dims=_with_cut(x.dims, dim, cut[:last]))
    raise AssertionError("a layout that differs only by missing cuts was cut before")
