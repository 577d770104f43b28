"""Values without a layout yet: the devices compute each in the layout that its first consumer needs.

A tensor filled with one number, a random draw, and whatever is computed element by element from these alone, can be
made by each device for its own block. So they are emitted when a consumer says how they should be laid out.

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
from tinyshard.core.program import Builder
from tinyshard.core.types import ShapedType
from tinyshard.partition import partitioner
from tinyshard.partition.op_table import computes_each_element
from tinyshard.partition.reshard import Dims, ShardedVar, noted, reshard

aten = torch.ops.aten
# ops that fill a tensor with one number: op -> (the number, or the position of the number)
_FILLS = {
    aten.zeros.default: (0, None),
    aten.ones.default: (1, None),
    aten.full.default: (None, 1),
    aten.empty.memory_format: (0, None),
    aten.new_zeros.default: (0, None),
    aten.new_ones.default: (1, None),
    aten.new_full.default: (None, 2),
    aten.new_empty.default: (0, None),
}


@dataclass(eq=False, slots=True)
class Deferred:
    """A value that is made in the layout in which it is wanted.

    Attributes:
        shape, dtype: of the whole tensor.
        emit: emits it in a given layout.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    emit: Callable[[Builder, Dims], ShardedVar]
    _made: dict[Dims, ShardedVar] = field(default_factory=dict)

    def materialize(self, builder: Builder, dims: Dims | None = None) -> ShardedVar:
        """The value in this layout, by default whole; emitted once per layout.

        Communication: none, except for draws without threefry_partitionable.
        """
        whole = ((),) * len(self.shape)
        dims = whole if dims is None else dims
        if dims not in self._made:
            there = self._made.get(whole)
            self._made[dims] = noted(
                builder, self.emit(builder, dims) if there is None else reshard(builder, there, dims)
            )
        return self._made[dims]


def fill(shape: tuple[int, ...], dtype: torch.dtype, number: Any) -> Deferred:
    """A tensor of one number."""

    def emit(builder: Builder, dims: Dims) -> ShardedVar:
        value = ShardedVar(0, shape, dtype, dims)
        local = value.local(builder.axes)
        emitted = builder.emit("aten.full.default", (list(local.shape), number), {"dtype": dtype}, [local])
        return replace(value, number=emitted[0])

    return Deferred(shape, dtype, emit)


def deferred(op: Any, args: Any, kwargs: Any, result_type: ShapedType) -> Deferred | None:
    """The result of an op on whole tensors, deferred; None for an op whose operands say where it is."""
    if op in _FILLS:
        number, position = _FILLS[op]
        return fill(result_type.shape, result_type.dtype, number if position is None else args[position])
    return elementwise(op, args, kwargs, result_type) if is_elementwise(op, args, kwargs) else None


def is_elementwise(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the op makes one tensor, each element from the same element of deferred operands and single numbers."""
    if not computes_each_element(op):
        return False
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar | Deferred)]
    single = all(isinstance(x, Deferred) or (math.prod(x.shape) == 1 and x.is_whole) for x in operands)
    return single and any(isinstance(x, Deferred) for x in operands) and len(op._schema.returns) == 1


def elementwise(op: Any, args: Any, kwargs: Any, result_type: ShapedType) -> Deferred:
    """An op on deferred operands, deferred."""

    def emit(builder: Builder, dims: Dims) -> ShardedVar:
        def materialize(x: Deferred) -> ShardedVar:
            return x.materialize(builder, aligned(x.shape, result_type.shape, dims))

        placed_args, placed_kwargs = tree_map_only(Deferred, materialize, (args, kwargs))
        result = partitioner.apply(builder, op, placed_args, placed_kwargs)[0]
        assert result is not None
        return reshard(builder, result, dims)

    return Deferred(result_type.shape, result_type.dtype, emit)


def aligned(shape: Sequence[int], result: Sequence[int], dims: Dims) -> Dims:
    """The cuts of an operand for these cuts of the result; its dims are the last ones of the result, 1 for any size."""
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
