"""The collectives: each is defined as a function from the shards of a group to their new shards.

A group is the devices that differ only along the named axes, in the order of their coordinates there. The local runtime
runs these functions on the stacked shards; `runtime.collectives` computes the same between processes. To add one is to
add a row here, a method to the communicators, and a derivative in `primitives.collective`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.types import ShapedType

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    "avg": lambda stacked: stacked.mean(0),
    "product": lambda stacked: stacked.prod(0, dtype=stacked.dtype),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
}


def reduce_stack(shards: Sequence[Tensor], op: str) -> Tensor:
    """Combine equal-shaped tensors elementwise."""
    return reduced(torch.stack(list(shards)), op)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def reduced(stack: Tensor, op: str) -> Tensor:
    """Combine along dim 0: bool by any/all, the rest by `REDUCTIONS`."""
    if stack.dtype == torch.bool:
        return stack.any(0) if op in ("sum", "max") else stack.all(0)
    signed = _SIGNED.get(stack.dtype)
    if signed is None:
        return REDUCTIONS[op](stack)
    # torch does not add unsigned ints: signed ones wrap the same way, and with the first bit flipped order the same way
    flip = torch.iinfo(signed).min if op in ("max", "min") else 0
    return (REDUCTIONS[op](stack.view(signed) ^ flip) ^ flip).view(stack.dtype)


def selected(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x.index_select(dim, index)`, also for unsigned ints, for which torch does not have it."""
    signed = _SIGNED.get(x.dtype)
    return x.index_select(dim, index) if signed is None else x.view(signed).index_select(dim, index).view(x.dtype)


def paired(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x.gather(dim, index)`, also for unsigned ints, for which torch does not have it."""
    signed = _SIGNED.get(x.dtype)
    return x.gather(dim, index) if signed is None else x.view(signed).gather(dim, index).view(x.dtype)


def all_reduce(stack: Tensor, *, op: str) -> Tensor:
    """Every device gets the combination of all shards."""
    return _for_everyone(stack, reduced(stack, op))


def all_gather(stack: Tensor, *, dim: int) -> Tensor:
    """Every device gets all shards, one after the other along `dim`."""
    return _for_everyone(stack, stack.movedim(0, dim).flatten(dim, dim + 1))


def reduce_scatter(stack: Tensor, *, dim: int, op: str) -> Tensor:
    """Device i gets block i along `dim` of the combination of all shards."""
    whole, count = reduced(stack, op), stack.shape[0]
    return _in_blocks(whole, dim, count).movedim(dim, 0)


def all_to_all(stack: Tensor, *, split: int, join: int) -> Tensor:
    """Device i cuts its shard along `split`, sends block j to device j, and joins the received blocks along `join`."""
    count = stack.shape[0]
    return _in_blocks(stack, 1 + split, count).movedim(1 + split, 0).movedim(1, 1 + join).flatten(1 + join, 2 + join)


def collective_permute(stack: Tensor, *, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """For each pair (source, target), target gets the shard of source; a device that is not a target gets zeros."""
    source = {target: origin for origin, target in pairs}
    rows = [stack[source[i]] if i in source else torch.zeros_like(stack[0]) for i in range(stack.shape[0])]
    return torch.stack(rows)


def _in_blocks(x: Tensor, dim: int, count: int) -> Tensor:
    return x.reshape(*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])


def _for_everyone(stack: Tensor, whole: Tensor) -> Tensor:
    return whole.unsqueeze(0).expand(stack.shape[0], *whole.shape)


def in_groups(
    form: Callable[..., Tensor], stack: Tensor, groups: Sequence[Sequence[int]] | None, params: Any
) -> Tensor:
    """Apply a collective to each group of positions; the groups are of one size and cover all positions.

    Example:
        >>> in_groups(all_reduce, torch.arange(4), [[0, 2], [1, 3]], {"op": "sum"})
        tensor([2, 4, 2, 4])
    """
    if groups is None:
        return form(stack, **params)
    order = [i for group in groups for i in group]
    joined = torch.cat([form(stack[list(group)], **params) for group in groups])
    return joined[sorted(range(len(order)), key=order.__getitem__)]


def local_slice(shard: Tensor, place: int, count: int, *, dim: int) -> Tensor:
    """Block number `place` of `count` along `dim`: the part of a whole tensor that a device keeps."""
    size = shard.shape[dim] // count
    return shard.narrow(dim, place * size, size)


def own_index(shard: Tensor, place: int, count: int) -> Tensor:
    """The device's position in its group, int32[]; the operand is not read."""
    return torch.tensor(place, dtype=torch.int32, device=shard.device)


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of the table.

    Attributes:
        meta: (input meta, group size, params) -> output meta.
        moved: (input meta, group size, params) -> bytes that the busiest device sends, by the model: the algorithm
            that sends the fewest.
        form: its function of the stack of a group's shards, [group size, *shard] -> [group size, *new shard].
        own: for a step that needs only the device's position: (shard, position, group size) -> new shard.
    """

    meta: Callable[[ShapedType, int, dict[str, Any]], ShapedType]
    moved: Callable[[ShapedType, int, dict[str, Any]], int]
    form: Callable[..., Tensor] | None = None
    own: Callable[..., Tensor] | None = None

    @property
    def communicates(self) -> bool:
        """Whether data crosses between devices."""
        return self.own is None


def _scaled(meta: ShapedType, dim: int, up: int, down: int) -> ShapedType:
    size = meta.shape[dim] * up // down
    return ShapedType((*meta.shape[:dim], size, *meta.shape[dim + 1 :]), meta.dtype)


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
    "local_slice": Collective(
        lambda m, n, p: _scaled(m, p["dim"], 1, n),
        lambda m, n, p: 0,
        own=local_slice,
    ),
    "own_index": Collective(
        lambda m, n, p: ShapedType((), torch.int32),
        lambda m, n, p: 0,
        form=lambda stack: torch.arange(stack.shape[0], dtype=torch.int32),
        own=own_index,
    ),
    "pcast": Collective(  # no step of a program: it says of a value that it may differ between devices
        lambda m, n, p: m,
        lambda m, n, p: 0,
        form=lambda stack: stack,
        own=lambda shard, place, count: shard,
    ),
}


def nbytes_sent(name: str, operand: ShapedType, axes: Sequence[int], params: dict[str, Any]) -> int:
    """Bytes that the busiest device sends in a collective; `params` are the step's, with its axes."""
    others = {k: v for k, v in params.items() if k != "axes"}
    return COLLECTIVES[name].moved(operand, group_size(axes, params), others)


def group_positions(
    axes: Sequence[int], named: Sequence[int], position: int, groups: Sequence[Sequence[int]] | None = None
) -> list[int]:
    """Positions of the devices that differ from `position` only along the `named` axes, in order of coordinates there.

    Args:
        axes: sizes of all axes.
        named: numbers of the axes of the group, most significant first.
        position: one of the group.
        groups: if the group is cut into smaller ones, their members, counted along the named axes.

    Example:
        >>> group_positions((4, 2), (0,), 5)
        [1, 3, 5, 7]
        >>> group_positions((4, 2), (1, 0), 5)
        [0, 2, 4, 6, 1, 3, 5, 7]
        >>> group_positions((4, 2), (0,), 5, [[0, 1], [3, 2]])
        [7, 5]
    """
    strides = [math.prod(axes[a + 1 :]) for a in range(len(axes))]
    base = position
    for a in named:
        base -= (position // strides[a] % axes[a]) * strides[a]
    whole = [
        base + sum(c * strides[a] for c, a in zip(fixed, named, strict=True))
        for fixed in itertools.product(*(range(axes[a]) for a in named))
    ]
    if groups is None:
        return whole
    place = whole.index(position)
    return next([whole[i] for i in group] for group in groups if place in group)


def group_size(axes: Sequence[int], params: dict[str, Any]) -> int:
    """The number of participating devices, from the arguments of a collective's step."""
    groups = params.get("groups")
    return len(groups[0]) if groups else math.prod(axes[a] for a in params["axes"])
