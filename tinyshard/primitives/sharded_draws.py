"""Random draws on many devices: each makes the numbers of its own block, as one device would have drawn them.

A draw waits for its first consumer, and is made in the layout in which that wants it (`tinyshard.partition.deferred`).
By JAX's original way of counting (`original_counting`) devices share the hashing, and exchange words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.core.layout import Axes
from tinyshard.core.primitive import Rules
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition import partitioner
from tinyshard.partition.deferred import Deferred
from tinyshard.partition.reshard import Dims, ShardedVar, collective, reshard
from tinyshard.primitives import original_counting
from tinyshard.primitives.original_counting import DRAW_ORIGINAL
from tinyshard.primitives.random_bits import DRAW

Emit = Callable[[Builder, ShardedVar, Sequence[Any], ShapedType, Dims], ShardedVar]


class Draw(Rules):
    """An op that draws from a key, or from a batch of keys."""

    def __init__(self, op: Any, emit: Emit) -> None:
        super().__init__(op)
        self._emit = emit

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """From keys that every device has, deferred; from keys that are cut, as an op that works row by row."""
        key = partitioner.placed(partitioner.value(args[0]))
        if any(key.dims):
            return NotImplemented
        made = partitioner.type_of(node)
        return Deferred(made.shape, made.dtype, lambda builder, dims: self._emit(builder, key, args[1:], made, dims))


def _place(builder: Builder, cut: Axes) -> Value:
    """Which block along these axes a device has: each reads its own number from 0 .. n - 1."""

    def emit() -> Value:
        count = math.prod(builder.axes[a] for a in cut)
        numbers = builder.emit("aten.arange.default", (count,), {}, [ShapedType((count,), torch.int64)])[0]
        return Value(collective(builder, "local_slice", numbers, cut, dim=0))

    return builder.once(("place", cut), emit)


def _parts(builder: Builder, dims: Dims) -> list[int]:
    return [math.prod(builder.axes[a] for a in cut) for cut in dims]


def _emit_draw(builder: Builder, key: ShardedVar, args: Sequence[Any], made: ShapedType, dims: Dims) -> ShardedVar:
    """Each device makes the numbers of its block; of a batch of keys it takes those of its block."""
    shape, _, _, *rest = args
    lead = len(key.shape) - 1
    brought = partitioner.bring(builder, key, replace(key, dims=(*dims[:lead], ())), DRAW)
    own = dims[lead : lead + len(shape)]
    at = [_place(builder, cut) for cut in own if math.prod(builder.axes[a] for a in cut) > 1]
    result = ShardedVar(0, made.shape, made.dtype, (*dims[:lead], *own, *[()] * (len(made.shape) - lead - len(shape))))
    numbers = builder.emit(
        str(DRAW), (brought, list(shape), _parts(builder, own), at, *rest), {}, [result.local(builder.axes)]
    )
    return reshard(builder, replace(result, number=numbers[0]), dims)


def _emit_original(builder: Builder, key: ShardedVar, args: Sequence[Any], made: ShapedType, dims: Dims) -> ShardedVar:
    """Devices share the hashing and exchange words; of a batch of keys each takes those of its block."""
    shape, kind, dtype, *_ = args
    lead = len(key.shape) - 1
    result = ShardedVar(0, made.shape, made.dtype, (*dims[:lead], *[()] * (len(made.shape) - lead)))
    brought = partitioner.bring(builder, key, replace(key, dims=(*dims[:lead], ())), DRAW_ORIGINAL)
    used = tuple(a for cut in dims for a in cut)
    if lead or not used or math.prod(shape) == 0:
        number = builder.emit(str(DRAW_ORIGINAL), (brought, *args), {}, [result.local(builder.axes)])[0]
    elif original_counting.fits_pairs(shape, _parts(builder, dims), kind, dtype):
        return _emit_pairs(builder, brought, args, replace(result, dims=dims))
    else:
        number = _emit_gathered(builder, brought, args, result, used)
    return reshard(builder, replace(result, number=number), dims)


def _emit_pairs(builder: Builder, key: Value, args: Sequence[Any], result: ShardedVar) -> ShardedVar:
    """Devices that need the two words of the same pairs compute half of them each, and swap."""
    shape, *rest = args
    cut = result.dims[0]
    parts, place = _parts(builder, (cut,))[0], _place(builder, cut)
    count = math.prod(shape)
    half = ShapedType((-(-(count // parts) // 2),), result.dtype)
    own, sent = builder.emit(str(original_counting.DRAW_PAIRS), (key, count, parts, place, *rest), {}, [half, half])
    pairs = tuple((block, (block + parts // 2) % parts) for block in range(parts))
    got = collective(builder, "collective_permute", sent, cut, pairs=pairs)
    local = result.local(builder.axes)
    joined = (Value(own), Value(got), parts, place, list(local.shape))
    return replace(result, number=builder.emit(str(original_counting.JOIN_PAIRS), joined, {}, [local])[0])


def _emit_gathered(builder: Builder, key: Value, args: Sequence[Any], result: ShardedVar, used: Axes) -> int:
    """Each device hashes an equal share; all get all words, and make the whole tensor of them."""
    shape, kind, dtype, *_ = args
    parts = _parts(builder, (used,))[0]
    count = original_counting.word_count(shape, kind, dtype)
    share = ShapedType((2, original_counting.pairs_each(count, parts)), torch.int32)
    words = builder.emit(str(original_counting.PAIR_WORDS), (key, count, parts, [_place(builder, used)]), {}, [share])[
        0
    ]
    whole = collective(builder, "all_gather", words, used, dim=1)
    return builder.emit(str(original_counting.OF_WORDS), (Value(whole), *args), {}, [result.local(builder.axes)])[0]


Draw(DRAW, _emit_draw)
Draw(DRAW_ORIGINAL, _emit_original)
