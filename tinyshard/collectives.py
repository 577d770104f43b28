"""The collectives: what each one means, as a function from the shards of a group to their new shards.

A group is the devices that differ only along the named axes, in the order of their coordinates there. The local runtime
runs these functions as they stand; `runtime.shared` and `runtime.fabric` do the same between processes. To add one is
to add a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinyshard.errors import DtypeError, message
from tinyshard.program import Meta

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    "avg": lambda stacked: stacked.mean(0),
    "product": lambda stacked: stacked.prod(0, dtype=stacked.dtype),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
}


def reduce_stack(shards: Sequence[Tensor], op: str) -> Tensor:
    """Combine equal-shaped tensors elementwise."""
    return reduce_stacked(torch.stack(list(shards)), op)


def reduce_stacked(stacked: Tensor, op: str) -> Tensor:
    """Combine along the first dim: bool by any/all, the rest by `REDUCTIONS`."""
    if stacked.dtype == torch.bool:
        return stacked.any(0) if op in ("sum", "max") else stacked.all(0)
    return REDUCTIONS[op](stacked)


def all_reduce(shards: Sequence[Tensor], *, op: str) -> list[Tensor]:
    """Every device gets the combination of all shards."""
    whole = reduce_stack(shards, op)
    return [whole for _ in shards]


def all_gather(shards: Sequence[Tensor], *, dim: int) -> list[Tensor]:
    """Every device gets all shards, one after the other along `dim`."""
    whole = torch.cat(list(shards), dim)
    return [whole for _ in shards]


def reduce_scatter(shards: Sequence[Tensor], *, dim: int, op: str) -> list[Tensor]:
    """Device i gets block i along `dim` of the combination of all shards."""
    return list(reduce_stack(shards, op).chunk(len(shards), dim))


def all_to_all(shards: Sequence[Tensor], *, split: int, join: int) -> list[Tensor]:
    """Device i cuts its shard along `split`, sends block j to device j, and joins what it gets along `join`."""
    cut = [shard.chunk(len(shards), split) for shard in shards]
    return [torch.cat([blocks[i] for blocks in cut], join) for i in range(len(shards))]


def collective_permute(shards: Sequence[Tensor], *, pairs: Sequence[tuple[int, int]]) -> list[Tensor]:
    """For each pair (source, target), target gets the shard of source; a device that is no target gets zeros."""
    source = {target: origin for origin, target in pairs}
    return [shards[source[i]] if i in source else torch.zeros_like(x) for i, x in enumerate(shards)]


def own_block(shard: Tensor, place: int, count: int, *, dim: int) -> Tensor:
    """Block number `place` of `count` along `dim`: what a device keeps of a tensor that it holds whole."""
    size = shard.shape[dim] // count
    return shard.narrow(dim, place * size, size)


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of the table.

    Attributes:
        meta: (input meta, group size, params) -> output meta.
        moved: (input meta, group size, params) -> bytes that a device sends, with the best known algorithm.
        run: the function over the shards of a group; None for a step that needs only the device's own coordinates.
        communicates: whether data crosses between devices.
    """

    meta: Callable[[Meta, int, dict[str, Any]], Meta]
    moved: Callable[[Meta, int, dict[str, Any]], int]
    run: Callable[..., list[Tensor]] | None
    communicates: bool = True


def _scaled(meta: Meta, dim: int, up: int, down: int) -> Meta:
    size = meta.shape[dim] * up // down
    return Meta((*meta.shape[:dim], size, *meta.shape[dim + 1 :]), meta.dtype)


COLLECTIVES: dict[str, Collective] = {
    "all_reduce": Collective(
        lambda m, n, p: m,
        lambda m, n, p: 2 * m.nbytes * (n - 1) // n,
        all_reduce,
    ),
    "all_gather": Collective(
        lambda m, n, p: _scaled(m, p["dim"], n, 1),
        lambda m, n, p: m.nbytes * (n - 1),
        all_gather,
    ),
    "reduce_scatter": Collective(
        lambda m, n, p: _scaled(m, p["dim"], 1, n),
        lambda m, n, p: m.nbytes * (n - 1) // n,
        reduce_scatter,
    ),
    "all_to_all": Collective(
        lambda m, n, p: _scaled(_scaled(m, p["split"], 1, n), p["join"], n, 1),
        lambda m, n, p: m.nbytes * (n - 1) // n,
        all_to_all,
    ),
    "collective_permute": Collective(
        lambda m, n, p: m,
        lambda m, n, p: m.nbytes,
        collective_permute,
    ),
    "own_block": Collective(
        lambda m, n, p: _scaled(m, p["dim"], 1, n),
        lambda m, n, p: 0,
        None,
        communicates=False,
    ),
}


def group_positions(axes: Sequence[int], named: Sequence[int], position: int) -> list[int]:
    """Positions of the devices that differ from `position` only along the `named` axes, in order of coordinates there.

    Args:
        axes: sizes of all axes.
        named: numbers of the axes of the group, most significant first.

    Example:
        >>> group_positions((4, 2), (0,), 5)
        [1, 3, 5, 7]
        >>> group_positions((4, 2), (1, 0), 5)
        [0, 2, 4, 6, 1, 3, 5, 7]
    """
    strides = [math.prod(axes[a + 1 :]) for a in range(len(axes))]
    base = position
    for a in named:
        base -= (position // strides[a] % axes[a]) * strides[a]
    return [
        base + sum(c * strides[a] for c, a in zip(at, named, strict=True))
        for at in itertools.product(*(range(axes[a]) for a in named))
    ]


def check_reducible(dtype: torch.dtype, op: str) -> None:
    """Raise DtypeError where values of this dtype have no such reduction."""
    if dtype.is_complex and op in ("max", "min"):
        raise DtypeError(message(f"complex numbers have no {op}", got=str(dtype), try_="reduce x.abs()"))
