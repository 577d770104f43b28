"""shard_map regions whose value on plain tensors is known: a body a row, and what it makes of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tinyshard as ts
from tests.sweeps.layouts import AXES, mesh_of

lax = ts.lax
Axis = str | tuple[str, ...]


@dataclass(frozen=True)
class ManualRegion:
    """A body, and the same on a whole tensor.

    Attributes:
        body: of a block and the axis.
        into: of the axis, how the tensor is cut.
        out: of the axis, how the results make a whole.
        plain: of the tensor and the size of the axis.
        cuts: dims that are cut, at one time or another, and how often each.
    """

    body: Callable[[Tensor, Any], Tensor]
    into: Callable[[Any], ts.P]
    out: Callable[[Any], ts.P]
    plain: Callable[[Tensor, int], Tensor]
    cuts: dict[int, int]


def _rows(axis: Any) -> ts.P:
    return ts.P(axis)


def _columns(axis: Any) -> ts.P:
    return ts.P(None, axis)


def _whole(axis: Any) -> ts.P:
    return ts.P()


def _blocks(x: Tensor, n: int) -> Tensor:
    """A first dim that counts the blocks of dim 0."""
    return x.unflatten(0, (n, -1))


def _ring(axis: Any) -> list[tuple[int, int]]:
    n = lax.axis_size(axis)
    return [(i, (i + 1) % n) for i in range(n)]


def _numbered(x: Tensor, n: int) -> Tensor:
    blocks = _blocks(x, n)
    return (blocks + torch.arange(n).reshape(n, *[1] * x.dim())).flatten(0, 1)


REGIONS: dict[str, ManualRegion] = {
    "sin": ManualRegion(lambda b, axis: b.sin(), _rows, _rows, lambda x, n: x.sin(), {0: 1}),
    "sin of columns": ManualRegion(lambda b, axis: b.sin(), _columns, _columns, lambda x, n: x.sin(), {1: 1}),
    "on copies": ManualRegion(lambda b, axis: b.tanh() * 2, _whole, _whole, lambda x, n: x.tanh() * 2, {}),
    "block sums": ManualRegion(
        lambda b, axis: b.sum(0, keepdim=True), _rows, _rows, lambda x, n: _blocks(x, n).sum(1), {0: 1}
    ),
    "block cumsum": ManualRegion(
        lambda b, axis: b.cumsum(0), _rows, _rows, lambda x, n: _blocks(x, n).cumsum(1).flatten(0, 1), {0: 1}
    ),
    "psum": ManualRegion(lax.psum, _rows, _whole, lambda x, n: _blocks(x, n).sum(0), {0: 1}),
    "pmean": ManualRegion(lax.pmean, _rows, _whole, lambda x, n: _blocks(x, n).mean(0), {0: 1}),
    "less the mean": ManualRegion(
        lambda b, axis: b - lax.pmean(b, axis),
        _rows,
        _rows,
        lambda x, n: (_blocks(x, n) - _blocks(x, n).mean(0)).flatten(0, 1),
        {0: 1},
    ),
    "all_gather": ManualRegion(
        lambda b, axis: lax.all_gather(b, axis, tiled=True, to="invarying"),
        _rows,
        _whole,
        lambda x, n: x.clone(),
        {0: 1},
    ),
    "all_gather to all": ManualRegion(
        lambda b, axis: lax.all_gather(b, axis, tiled=True), _rows, _rows, lambda x, n: torch.cat([x] * n), {0: 1}
    ),
    "psum_scatter": ManualRegion(
        lambda b, axis: lax.psum_scatter(b, axis, tiled=True), _rows, _rows, lambda x, n: _blocks(x, n).sum(0), {0: 2}
    ),
    "all_to_all": ManualRegion(
        lambda b, axis: lax.all_to_all(b, axis, 1, 0, tiled=True), _rows, _columns, lambda x, n: x.clone(), {0: 1, 1: 1}
    ),
    "ppermute": ManualRegion(
        lambda b, axis: lax.ppermute(b, axis, _ring(axis)),
        _rows,
        _rows,
        lambda x, n: x.roll(x.shape[0] // n, 0),
        {0: 1},
    ),
    "axis_index": ManualRegion(lambda b, axis: b + lax.axis_index(axis), _rows, _rows, _numbered, {0: 1}),
    "gradient": ManualRegion(
        lambda b, axis: ts.grad(lambda t: t.sin().sum())(b), _rows, _rows, lambda x, n: x.cos(), {0: 1}
    ),
}


def mapped(kind: str, sizes: tuple[int, ...], axis: Axis, x: Tensor) -> Tensor:
    """The region by shard_map, on the mesh of these sizes."""
    region = REGIONS[kind]
    body = lambda block: region.body(block, axis)  # noqa: E731
    return ts.shard_map(body, mesh=mesh_of(sizes), in_specs=region.into(axis), out_specs=region.out(axis))(x)


def plain_region(kind: str, sizes: tuple[int, ...], axis: Axis, x: Tensor) -> Tensor:
    """The same on a plain tensor.

    Raises:
        ValueError: the tensor cannot be cut so.
    """
    size = dict(zip(AXES[sizes], sizes, strict=True))
    n = math.prod(size[name] for name in ((axis,) if isinstance(axis, str) else axis))
    region = REGIONS[kind]
    for dim, times in region.cuts.items():
        if dim >= x.dim() or x.shape[dim] % n**times or not x.shape[dim]:
            raise ValueError(f"{tuple(x.shape)} has no {n} blocks in dim {dim}, {times} times")
    return region.plain(x, n)
