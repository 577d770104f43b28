"""Random draws on many devices: each makes the numbers of its own block, as one device would have drawn them.

A draw waits for its first consumer, and is made in the layout that this needs (`tinyshard.partition.deferred`).
With JAX's original counters (`legacy_threefry  `) devices share the hashing, and exchange words.
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
from tinyshard.primitives import legacy_threefry
from tinyshard.primitives.legacy_threefry import DRAW_ORIGINAL
from tinyshard.primitives.random_bits import DRAW

Emit = Callable[[Builder, ShardedVar, Sequence[Any], ShapedType, Dims], ShardedVar]


class Draw(Rules):
    """An op that draws from a key, or from a batch of keys."""

    def __init__(self, op: Any, emit: Emit) -> None:
        super().__init__(op)
        self._emit = emit

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Draws from keys that every device has are deferred; from cut keys they are an op that works row by row."""
        key = partitioner.placed(partitioner.value(args[0]))
        if any(key.dims):
            return NotImplemented
        drawn = partitioner.type_of(node)
        return Deferred(drawn.shape, drawn.dtype, lambda builder, dims: self._emit(builder, key, args[1:], drawn, dims))


def _place(builder: Builder, cut: Axes) -> Value:
    """The number of a device's block along these axes: each device reads its own from 0 .. n - 1."""

    def emit() -> Value:
        count = math.prod(builder.axes[a] for a in cut)
        numbers = builder.emit("aten.arange.default", (count,), {}, [ShapedType((count,), torch.int64)])[0]
        return Value(collective(builder, "local_slice", numbers, cut, dim=0))

    return builder.once(("place", cut), emit)


def _parts(builder: Builder, dims: Dims) -> list[int]:
    return [math.prod(builder.axes[a] for a in cut) for cut in dims]


def _emit_draw(builder: Builder, key: ShardedVar, args: Sequence[Any], drawn: ShapedType, dims: Dims) -> ShardedVar:
    """Each device makes the numbers of its block; with a batch of keys, it uses the keys of its block."""
    shape, _, _, *rest = args
    lead = len(key.shape) - 1
    key_here = partitioner.bring(builder, key, replace(key, dims=(*dims[:lead], ())), DRAW)
    own = dims[lead : lead + len(shape)]
    coordinates = [_place(builder, cut) for cut in own if math.prod(builder.axes[a] for a in cut) > 1]
    result = ShardedVar(
        0, drawn.shape, drawn.dtype, (*dims[:lead], *own, *[()] * (len(drawn.shape) - lead - len(shape)))
    )
    numbers = builder.emit(
        str(DRAW), (key_here, list(shape), _parts(builder, own), coordinates, *rest), {}, [result.local(builder.axes)]
    )
    return reshard(builder, replace(result, number=numbers[0]), dims)


def _emit_original(builder: Builder, key: ShardedVar, args: Sequence[Any], drawn: ShapedType, dims: Dims) -> ShardedVar:
    """Devices share the hashing and exchange words; with a batch of keys, each uses the keys of its block."""
    shape, kind, dtype, *_ = args
    lead = len(key.shape) - 1
    result = ShardedVar(0, drawn.shape, drawn.dtype, (*dims[:lead], *[()] * (len(drawn.shape) - lead)))
    key_here = partitioner.bring(builder, key, replace(key, dims=(*dims[:lead], ())), DRAW_ORIGINAL)
    used = tuple(a for cut in dims for a in cut)
    if lead or not used or math.prod(shape) == 0:
        number = builder.emit(str(DRAW_ORIGINAL), (key_here, *args), {}, [result.local(builder.axes)])[0]
    elif legacy_threefry.fits_pairs(shape, _parts(builder, dims), kind, dtype):
        return _emit_pairs(builder, key_here, args, replace(result, dims=dims))
    else:
        number = _emit_gathered(builder, key_here, args, result, used)
    return reshard(builder, replace(result, number=number), dims)


def _emit_pairs(builder: Builder, key: Value, args: Sequence[Any], result: ShardedVar) -> ShardedVar:
    """Two devices that need the same pairs compute half of them each, and swap words."""
    shape, *rest = args
    cut = result.dims[0]
    parts, place = _parts(builder, (cut,))[0], _place(builder, cut)
    count = math.prod(shape)
    half = ShapedType((-(-(count // parts) // 2),), result.dtype)
    own, sent = builder.emit(str(legacy_threefry.DRAW_PAIRS), (key, count, parts, place, *rest), {}, [half, half])
    pairs = tuple((block, (block + parts // 2) % parts) for block in range(parts))
    got = collective(builder, "collective_permute", sent, cut, pairs=pairs)
    local = result.local(builder.axes)
    joined = (Value(own), Value(got), parts, place, list(local.shape))
    return replace(result, number=builder.emit(str(legacy_threefry.JOIN_PAIRS), joined, {}, [local])[0])


def _emit_gathered(builder: Builder, key: Value, args: Sequence[Any], result: ShardedVar, used: Axes) -> int:
    """Each device hashes an equal share; all gather all words, and make the whole tensor from them."""
    shape, kind, dtype, *_ = args
    parts = _parts(builder, (used,))[0]
    count = legacy_threefry.word_count(shape, kind, dtype)
    share = ShapedType((2, legacy_threefry.pairs_each(count, parts)), torch.int32)
    words = builder.emit(str(legacy_threefry.PAIR_WORDS), (key, count, parts, [_place(builder, used)]), {}, [share])[0]
    whole = collective(builder, "all_gather", words, used, dim=1)
    return builder.emit(str(legacy_threefry.OF_WORDS), (Value(whole), *args), {}, [result.local(builder.axes)])[0]


Draw(DRAW, _emit_draw)
Draw(DRAW_ORIGINAL, _emit_original)
