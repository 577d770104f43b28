"""A manual region: code that every device runs on its own shard, traced; its shapes on devices and as a whole.

    on whole tensors     f32[8, 3] x  ->  mapped(x, region)  ->  f32[8, 3]
    on each device       f32[1, 3] x  ->  the region's graph ->  f32[1, 3]

`inline` writes its graph into a program: its ops unchanged, its collectives over the program's axes.
`transforms.manual_region_rules` has the primitive: how it is partitioned, differentiated and vmapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.function_overrides.memory import check_traced
from tinyshard.compile.tracing import Traced, is_effective
from tinyshard.core.collectives import group_positions
from tinyshard.core.evaluate import Interpreter, evaluate, line_of
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import bound_in, primitive_of
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.op_table import ALIASES, INSTEAD
from tinyshard.partition.partitioner import emitted
from tinyshard.partition.rules import needs_contiguous
from tinyshard.primitives.collective import Groups
from tinyshard.sharding.mesh import Mesh, layout_on

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class ManualRegion:
    """A per-device function, traced.

    Attributes:
        traced: its graph on local shapes; the placeholders are its inputs and then the tensors that it closes over.
        mesh: the devices, and the names that the graph's collectives use.
        names: the axes of the mesh that the region is for: along the others its values are whole, and the partitioner
            decides.
        ins: the layout of each input, on the mesh's axes; closed-over tensors are whole.
        outs: the layout of each result.
        is_typed: whether the graph says, by pcast, where values begin to vary between devices: that of check_vma.
        derived: what was made of it: its handle, its entry of the trace cache, its derivatives.
    """

    traced: Traced
    mesh: Mesh
    names: frozenset[str]
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    is_typed: bool = False
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def is_of_part(self) -> bool:
        """Whether the partitioner decides along some axes of the mesh."""
        return len(self.names) < len(self.mesh.axis_names)

    @property
    def all_ins(self) -> tuple[Layout, ...]:
        """The layout of each placeholder."""
        closed = self.traced.inputs[len(self.ins) :]
        return (*self.ins, *(layout_on(self.mesh, ((),) * node.meta["val"].dim()) for node in closed))

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each whole result."""
        values = [node.meta["val"] for node in self.traced.results]
        return [ShapedType(layout.global_shape(x.shape), x.dtype) for x, layout in zip(values, self.outs, strict=True)]

    @property
    def has_effect(self) -> bool:
        """Whether an op of its graph is called for its effect, as a check of values is."""
        return is_effective(self.traced.graph)

    @property
    def asks(self) -> bool:
        """Whether the devices read a value to choose what they run."""
        return any(primitive.asks for _, primitive, _ in bound_in(self.traced.graph))

    def unmentioned(self, layout: Layout) -> tuple[str, ...]:
        """The names of the region's axes along which devices hold copies, except those of size 1."""
        names = (self.mesh.axis_names[a] for a in layout.free_axes if layout.axes[a] > 1)
        return tuple(name for name in names if name in self.names)


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
    return [x.number for x in evaluate(region.traced.graph, Inliner(builder, axes), map(Value, inputs))]


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
