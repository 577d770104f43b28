"""A region's graph, written into a program: its ops unchanged, its collectives over the program's axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.function_overrides.memory import check_traced
from tinyshard.core import config
from tinyshard.core.collectives import group_positions
from tinyshard.core.evaluate import Interpreter, evaluate, line_of
from tinyshard.core.primitive import primitive_of
from tinyshard.core.program import Builder, Value
from tinyshard.partition.op_table import ALIASES, INSTEAD
from tinyshard.partition.partitioner import emitted
from tinyshard.partition.strides import needs_contiguous
from tinyshard.primitives.collective import Groups
from tinyshard.primitives.manual_region import ManualRegion
from tinyshard.primitives.varying import compare_copies

aten = torch.ops.aten


@dataclass(frozen=True)
class Axes:
    """The axes of a program for the names of a region's mesh.

    Attributes:
        mesh: the size of each axis of the mesh.
        named: the program's axes for each name, none for an axis of size 1; None if the program's axes cannot express
            them, as (2, 3) cannot express a mesh of (3, 2). Then a collective is over all axes, in groups.
    """

    mesh: Mapping[str, int]
    named: Mapping[str, tuple[int, ...]] | None

    def of(
        self, over: Sequence[str], within: Groups | None, axes: Sequence[int]
    ) -> tuple[tuple[int, ...], Groups | None]:
        """The axes of a program with these `axes` for a collective, and its groups along them."""
        if self.named is not None:
            return tuple(a for name in over for a in self.named[name]), within
        sizes, names = tuple(self.mesh.values()), list(self.mesh)
        along = [names.index(name) for name in over]
        if all(sizes[a] == 1 for a in along):
            return (), None
        count = range(math.prod(sizes))
        groups = dict.fromkeys(tuple(group_positions(sizes, along, p, within)) for p in count)
        return tuple(range(len(axes))), tuple(groups)


def inline(builder: Builder, region: ManualRegion, axes: Axes, inputs: Sequence[int]) -> list[int]:
    """Write a region into a program.

    Args:
        builder: the program.
        region: the region.
        axes: the program's axes for the names of the region's mesh.
        inputs: the numbers of its inputs, on their shards.

    Returns:
        The numbers of its results, on their shards.
    """
    numbers = [x.number for x in evaluate(region.traced.graph, Inliner(builder, axes), map(Value, inputs))]
    if config.read("check_replicated"):
        compare_copies(builder, region, lambda names: axes.of(names, None, builder.axes), numbers)
    return numbers


class Inliner(Interpreter):
    """The walk over a region's graph; nodes become Values of the program."""

    def __init__(self, builder: Builder, axes: Axes) -> None:
        self.builder = builder
        self.axes = axes
        self._around = builder.where

    def literal(self, values: torch.Tensor) -> Value:
        return Value(self.builder.literal(values))

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        op: Any = node.target
        self.builder.where = line_of(node, self._around)
        primitive = primitive_of(op)
        if primitive is not None:
            result = primitive.inline(self, node, args, kwargs)
            if result is not NotImplemented:
                return result
        if op in ALIASES:
            return args[0]
        key = ("step", str(op), repr(args), repr(sorted(kwargs.items())))
        # gradients recompute their region: in one program steps with the same operands are merged
        return self.builder.once(key, lambda: _local(self.builder, node, op, args, kwargs))


def _local(builder: Builder, node: torch.fx.Node, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if op is aten.as_strided.default:
        check_traced(node.args, node.kwargs)
    op = INSTEAD.get(op, op)
    value = node.meta.get("val")
    if needs_contiguous(op):
        args = tree_map_only(Value, lambda x: _contiguous(builder, x), args)
    # an op that is called for its effect has no result: `_linalg_check_errors` raises if a matrix is singular
    several = value if isinstance(value, list | tuple) else [] if value is None else [value]
    types = [shaped_type_of(x) if isinstance(x, torch.Tensor) else None for x in several]
    values = [None if n < 0 else Value(n) for n in emitted(builder, op, args, kwargs, types)]
    return values if isinstance(value, list | tuple) else next(iter(values), None)


def _contiguous(builder: Builder, x: Value) -> Value:
    meta = builder.metas[x.number]
    return Value(builder.emit("aten.contiguous.default", (x,), {}, [meta])[0])
