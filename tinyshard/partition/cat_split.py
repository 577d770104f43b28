"""cat and split along a sharded dim: each device keeps as many rows as it had, and receives those of its new block.

    cat of x[8] and y[8], each in 4 blocks       device 0 has x0 y0, and should have x0 x1:  y0 goes, x1 comes
    split of z[16], in 4 blocks, in two halves   device 0 has z0 (4 rows), and should have 2 rows of each half

One `transfer` moves less than a block per device; a gather would send every block to every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.core.collectives import group_positions
from tinyshard.core.layout import Axes
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import ShardedVar

aten = torch.ops.aten

JOINED = {aten.cat.default, aten.split.Tensor, aten.split_with_sizes.default}


def joined(builder: Builder, op: Any, args: Sequence[Any]) -> list[ShardedVar | None] | None:
    """Emit a cat or a split whose operands are all cut the same way along its dim; None for any other call.

    Communication: one transfer, unless each device has its rows already.
    """
    if op is aten.cat.default:
        tensors, dim = args[0], args[1] if len(args) > 1 else 0
        return _cat(builder, tensors, dim % len(tensors[0].shape))
    if op not in (aten.split.Tensor, aten.split_with_sizes.default):
        return None
    x, sizes, dim = args[0], args[1], (args[2] if len(args) > 2 else 0) % len(args[0].shape)
    if isinstance(sizes, int):
        whole, each = x.shape[dim], max(sizes, 1)
        sizes = [min(each, whole - start) for start in range(0, whole, each)]
    return _split(builder, x, sizes, dim)


def _cat(builder: Builder, tensors: Sequence[ShardedVar], dim: int) -> list[ShardedVar | None] | None:
    first = tensors[0]
    if any(x.dims != first.dims or x.partial or x.dtype != first.dtype for x in tensors):
        return None
    cut = first.dims[dim]
    sizes = [x.shape[dim] for x in tensors]
    if not cut or any(x.number in builder.free for x in tensors):
        return None
    shape = (*first.shape[:dim], sum(sizes), *first.shape[dim + 1 :])
    value = replace(first, shape=shape)
    local = value.local(builder.axes)
    number = builder.emit("aten.cat.default", ([Value(x.number) for x in tensors], dim), {}, [local])[0]
    return [replace(value, number=_moved(builder, number, local, cut, dim, sizes, to_whole=True))]


def _split(builder: Builder, x: ShardedVar, sizes: Sequence[int], dim: int) -> list[ShardedVar | None] | None:
    cut = x.dims[dim]
    parts = math.prod(builder.axes[a] for a in cut)
    if not cut or x.partial or not sizes or any(n % parts for n in sizes) or x.number in builder.free:
        return None
    number = _moved(builder, x.number, x.local(builder.axes), cut, dim, sizes, to_whole=False)
    pieces = [replace(x, shape=(*x.shape[:dim], n, *x.shape[dim + 1 :])) for n in sizes]
    shapes = [p.local(builder.axes) for p in pieces]
    local_sizes = [n // parts for n in sizes]
    numbers = builder.emit("aten.split_with_sizes.default", (Value(number), local_sizes, dim), {}, shapes)
    return [replace(p, number=n) for p, n in zip(pieces, numbers, strict=True)]


def _moved(
    builder: Builder, number: int, local: ShapedType, cut: Axes, dim: int, sizes: Sequence[int], *, to_whole: bool
) -> int:
    """Move rows between two orders: a device's rows of each piece in turn, and a block of the whole.

    Args:
        number, local: the value, and one device's shape of it, before and after.
        cut: the axes that cut `dim`.
        sizes: rows of each piece.
        to_whole: from rows of each piece to a block of the whole; or back.
    """
    block = local.shape[dim]

    def rows(start: int, count: int) -> tuple[slice, ...]:
        return tuple(slice(start, start + count) if d == dim else slice(0, n) for d, n in enumerate(local.shape))

    moves = []
    for position in range(len(builder.devices)):
        group = group_positions(builder.axes, cut, position)
        place = group.index(position)
        first = within = 0  # of the piece: its first row in the whole; among the device's rows of all pieces
        for size in sizes:
            own = size // len(group)
            start = first + place * own
            while own and start < first + place * own + own:
                other = start // block
                count = min(own - (start - first - place * own), (other + 1) * block - start)
                here = rows(within + start - first - place * own, count)
                there = rows(start - other * block, count)
                moves.append(
                    (position, group[other], here, there) if to_whole else (group[other], position, there, here)
                )
                start += count
            first, within = first + size, within + own
    if all(source == target and here == there for source, target, here, there in moves):
        return number
    return builder.emit("transfer", (Value(number),), {"moves": tuple(moves)}, [local])[0]
