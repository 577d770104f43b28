"""Values that nothing lays out yet: they take the layout of whoever wants them first, and are then made in place.

A tensor filled with one number, a random draw, and whatever is computed element by element from these alone, can be
made by each device for its own block. So they are emitted when a consumer says how they are to lie.

    x + uniform(key, x.shape)      x cut in 8 rows: each device draws its row
    2 * normal(key, (8, 4)) + 1    stays deferred; with out_shardings each device makes its block
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core.layout import Axes
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition import partitioner
from tinyshard.partition.reshard import Dims, ShardedVar, collective, reshard
from tinyshard.primitives import original_counting
from tinyshard.primitives.original_counting import DRAW_ORIGINAL
from tinyshard.primitives.random_bits import DRAW

aten = torch.ops.aten
DRAWS = (DRAW, DRAW_ORIGINAL)
_ELEMENTWISE = {aten._to_copy.default}  # computes each element alone, and does not say so in its tags


@dataclass(eq=False, slots=True)
class Deferred:
    """A value that is made in the layout in which it is wanted.

    Attributes:
        shape, dtype: of the whole tensor.
        make: emits it, cut as is said.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[Builder, Dims], ShardedVar]
    _made: dict[Dims, ShardedVar] = field(default_factory=dict)

    def laid(self, builder: Builder, dims: Dims | None = None) -> ShardedVar:
        """The value cut so, by default whole; made once for each layout.

        Communication: none, except for draws without threefry_partitionable.
        """
        whole = ((),) * len(self.shape)
        dims = whole if dims is None else dims
        if dims not in self._made:
            there = self._made.get(whole)
            self._made[dims] = self.make(builder, dims) if there is None else reshard(builder, there, dims)
        return self._made[dims]


def fill(shape: tuple[int, ...], dtype: torch.dtype, number: Any) -> Deferred:
    """A tensor of one number."""

    def make(builder: Builder, dims: Dims) -> ShardedVar:
        value = ShardedVar(0, shape, dtype, dims)
        local = value.local(builder.axes)
        emitted = builder.emit("aten.full.default", (list(local.shape), number), {"dtype": dtype}, [local])
        return replace(value, number=emitted[0])

    return Deferred(shape, dtype, make)


def is_elementwise(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the op makes one tensor, each element from the same element of deferred operands and single numbers."""
    if torch.Tag.pointwise not in getattr(op, "tags", ()) and op not in _ELEMENTWISE:
        return False
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar | Deferred)]
    single = all(isinstance(x, Deferred) or (math.prod(x.shape) == 1 and x.is_whole) for x in operands)
    return single and any(isinstance(x, Deferred) for x in operands) and len(op._schema.returns) == 1


def elementwise(op: Any, args: Any, kwargs: Any, made: ShapedType) -> Deferred:
    """An op on deferred operands, deferred."""

    def make(builder: Builder, dims: Dims) -> ShardedVar:
        def laid(x: Deferred) -> ShardedVar:
            return x.laid(builder, aligned(x.shape, made.shape, dims))

        placed_args, placed_kwargs = tree_map_only(Deferred, laid, (args, kwargs))
        result = partitioner.apply(builder, op, placed_args, placed_kwargs)[0]
        assert result is not None
        return reshard(builder, result, dims)

    return Deferred(made.shape, made.dtype, make)


def aligned(shape: Sequence[int], result: Sequence[int], dims: Dims) -> Dims:
    """How an operand is cut whose result is to be cut so; its dims are the last ones of the result, 1 for any size."""
    tail = dims[len(dims) - len(shape) :]
    sizes = result[len(result) - len(shape) :]
    return tuple(cut if n == size else () for n, size, cut in zip(shape, sizes, tail, strict=True))


def wanted_by(op: Any, args: Any, kwargs: Any, shape: Sequence[int]) -> Dims:
    """How an op wants its deferred operands: as its other operands are cut, if it works element by element."""
    cuts: list[Axes] = [()] * len(shape)
    if torch.Tag.pointwise in op.tags:
        used: set[int] = set()
        for x in tree_leaves((args, kwargs)):
            if not isinstance(x, ShardedVar) or len(x.dims) > len(shape):
                continue
            for dim, cut in enumerate(x.dims, start=len(shape) - len(x.dims)):
                if cut and not cuts[dim] and used.isdisjoint(cut):
                    cuts[dim] = cut
                    used.update(cut)
    return tuple(cuts)


# ---- draws ----------------------------------------------------------------------------------------------------------


def draw(op: Any, key: ShardedVar, args: Sequence[Any], made: ShapedType) -> Deferred:
    """A draw from a key, or from a batch of keys, that every device has."""
    emit = _emit_draw if op is DRAW else _emit_original
    return Deferred(made.shape, made.dtype, lambda builder, dims: emit(builder, key, args, made, dims))


def _place(builder: Builder, cut: Axes) -> Value:
    """Which block along these axes a device has: each reads its own number from 0 .. n - 1."""
    known = ("place", cut)
    if known not in builder.copies:
        count = math.prod(builder.axes[a] for a in cut)
        numbers = builder.emit("aten.arange.default", (count,), {}, [ShapedType((count,), torch.int64)])[0]
        builder.copies[known] = collective(builder, "local_slice", numbers, cut, dim=0)
    return Value(builder.copies[known])


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
