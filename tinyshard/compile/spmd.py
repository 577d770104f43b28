"""From a graph of ops on whole tensors to a Program: `partition.partitioner` partitions each node in order."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.arrays.strided import check_traced
from tinyshard.arrays.transfer import transfer
from tinyshard.compile.executable import DeviceAssignment, Elsewhere, Executable, InputSpec, close_program, open_program
from tinyshard.compile.intercept import STOP
from tinyshard.compile.tracing import Traced
from tinyshard.core.errors import DtypeError, message
from tinyshard.core.layout import Layout, coarsest
from tinyshard.core.program import Builder, Literal, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition import partitioner
from tinyshard.partition.reshard import ShardedVar, reduce_partial
from tinyshard.primitives import deferred
from tinyshard.primitives.constraint import CONSTRAIN, constraint
from tinyshard.primitives.deferred import Deferred
from tinyshard.primitives.inlining import Axes, inline
from tinyshard.primitives.manual_region import MAPPED, ManualRegion, NamedDims, region_of, regions_in
from tinyshard.sharding import Sharding

aten = torch.ops.aten

# ops that fill a tensor with one number: op -> (position of the size, the number, or the position of the number)
_FILLS = {
    aten.zeros.default: (0, 0, None),
    aten.ones.default: (0, 1, None),
    aten.full.default: (0, None, 1),
    aten.empty.memory_format: (0, 0, None),
    aten.new_zeros.default: (1, 0, None),
    aten.new_ones.default: (1, 1, None),
    aten.new_full.default: (1, None, 2),
    aten.new_empty.default: (1, 0, None),
}
_SAME = (
    aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.detach.default, aten.alias.default, STOP,
)  # fmt: skip


def constraints_of(traced: Traced) -> list[Sharding]:
    """The shardings that the function's constraints ask for, in the order of the nodes."""
    return [constraint(int(str(node.args[1]))) for node in _constrained(traced)]


def _constrained(traced: Traced) -> list[torch.fx.Node]:
    return [node for node in traced.graph.graph.nodes if node.target is CONSTRAIN]


def partition_graph(
    traced: Traced, assignment: DeviceAssignment, specs: Sequence[InputSpec], outputs: Sequence[Layout | None]
) -> Executable:
    """Partition a traced function.

    Args:
        traced: the function.
        assignment: where it will run.
        specs: its tensor arguments, then what it closes over.
        outputs: the layout that each tensor output is to have; None where the partitioner chooses.

    Returns:
        The executable; its inputs are the specs.
    """
    constraints = [
        sharding.layout(len(node.meta["val"].shape))
        for sharding, node in zip(constraints_of(traced), _constrained(traced), strict=True)
    ]
    wanted = [layout for layout in outputs if layout is not None]
    # a layout with one dim for each axis of a region's mesh: it shows which of the program's axes that is
    regions = regions_in(traced)
    meshes = [r.sharding(tuple((name,) for name in r.mesh.axis_names)).layout(len(r.mesh.axis_names)) for r in regions]
    builder, inputs, targets, written = open_program(assignment, specs, [*constraints, *wanted], meshes)
    region_axes = [
        Axes(r.mesh.shape, None if layout is None else dict(zip(r.mesh.axis_names, layout.dims, strict=True)))
        for r, layout in zip(regions, written, strict=True)
    ]
    goals = list(zip([*constraints, *wanted], targets, strict=True))
    walk = _Walk(builder, traced, inputs, goals[: len(constraints)], region_axes)
    results = walk.run()
    finals = iter(goals[len(constraints) :])
    done = []
    for x, layout in zip(results, outputs, strict=True):
        x = x if layout is None else walk.brought(x, *next(finals))
        x = walk.emitted(x)
        done.append(reduce_partial(builder, x) if isinstance(x, ShardedVar) else x)
    return close_program(builder, assignment, inputs, done, [x.number for x in done])


@dataclass(eq=False)
class _Constrained:
    """A value that is to have a layout which the program's axes cannot say.

    Attributes:
        plain: the value as ops take it.
        layout: its layout, should it be returned.
    """

    plain: ShardedVar
    layout: Layout


class _Walk:
    """One pass over the nodes."""

    def __init__(
        self,
        builder: Builder,
        traced: Traced,
        inputs: Sequence[ShardedVar],
        constraints: Sequence[tuple[Layout, Layout | None]],
        region_axes: Sequence[Axes],
    ) -> None:
        self._builder = builder
        self._graph = traced.graph
        self._inputs = iter(inputs)
        self._constraints = iter(constraints)
        self._region_axes = iter(region_axes)
        self._values: dict[torch.fx.Node, Any] = {}

    def run(self) -> list[Any]:
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(self._inputs)
            elif node.op == "get_attr":
                self._values[node] = self._literal(getattr(self._graph, str(node.target)))
            elif node.op == "output":
                return [self._as_it_is(x) for x in node.args[0]]
            else:
                self._values[node] = self._call(node)
        raise AssertionError("a graph ends with its output")

    def _literal(self, values: torch.Tensor) -> ShardedVar:
        whole = ShardedVar(0, tuple(values.shape), values.dtype, ((),) * values.dim())
        made = [whole.local(self._builder.axes)]
        return replace(whole, number=self._builder.emit("literal", (Literal(values.detach()),), {}, made)[0])

    def _as_it_is(self, node: torch.fx.Node) -> Any:
        """What a node made; an input that was put where an earlier op wanted it lies there."""
        x = self._values[node]
        return _as_it_lies(self._builder, x) if isinstance(x, ShardedVar) else x

    def _value(self, node: torch.fx.Node) -> Any:
        """What a node made, as an op takes it: on the program's axes."""
        return self._on_axes(self._as_it_is(node))

    def _on_axes(self, x: Any) -> Any:
        if isinstance(x, _Constrained):
            return x.plain
        if not isinstance(x, Elsewhere):
            return x
        whole = ShardedVar(x.number, x.shape, x.dtype, ((),) * len(x.shape))
        return replace(whole, number=self._transferred(x.number, x.layout, self._layout(whole.dims), x.shape))

    def _layout(self, dims: Any) -> Layout:
        return Layout(self._builder.devices, self._builder.axes, dims)

    def _transferred(self, number: int, have: Layout, want: Layout, shape: tuple[int, ...]) -> int:
        """The number of a value under another layout; brought there once."""
        have, want = (replace(coarsest(layout), platform="") for layout in (have, want))
        key = ("transfer", number, have, want)
        if key not in self._builder.copies:
            is_there = have == want or not math.prod(shape)
            self._builder.copies[key] = number if is_there else transfer(self._builder, number, have, want, shape)
        made: int = self._builder.copies[key]
        return made

    def brought(self, x: Any, layout: Layout, written: Layout | None) -> Any:
        """A value that is to have a layout, which is `written` on the program's axes, if they can say it."""
        if written is None:
            is_elsewhere = isinstance(x, Elsewhere)
            return self._elsewhere(x, layout) if is_elsewhere else _Constrained(self._placed(self._on_axes(x)), layout)
        x = self._on_axes(x)
        if isinstance(x, Deferred):
            return x.laid(self._builder, written.dims)
        return partitioner.place(self._builder, x, written.dims)

    def emitted(self, x: Any) -> ShardedVar | Elsewhere:
        """A value that is to be returned."""
        if not isinstance(x, _Constrained):
            return x if isinstance(x, Elsewhere) else self._placed(x)
        return self._elsewhere(x.plain, x.layout)

    def _elsewhere(self, x: Any, layout: Layout) -> Elsewhere:
        if isinstance(x, Elsewhere):
            return replace(x, number=self._transferred(x.number, x.layout, layout, x.shape), layout=layout)
        x = self._placed(self._on_axes(x))
        x = partitioner.place(self._builder, x, _as_it_lies(self._builder, x).dims)
        return Elsewhere(self._transferred(x.number, self._layout(x.dims), layout, x.shape), x.shape, x.dtype, layout)

    def _call(self, node: torch.fx.Node) -> Any:
        op: Any = node.target
        if op is aten.as_strided.default:
            check_traced(node.args, node.kwargs)
        if op is CONSTRAIN:
            return self.brought(self._as_it_is(node.args[0]), *next(self._constraints))  # type: ignore[arg-type]
        if op is MAPPED:
            xs, number = cast(tuple[list[torch.fx.Node], int], node.args)
            return self._region(region_of(number), next(self._region_axes), [self._as_it_is(x) for x in xs])
        if op is operator.getitem:
            return self._values[node.args[0]][node.args[1]]  # type: ignore[index]
        args, kwargs = tree_map_only(torch.fx.Node, self._value, (node.args, node.kwargs))
        if op in _FILLS:
            return self._fill(node, op, args)
        if op in deferred.DRAWS:
            key = self._placed(args[0])
            if not any(key.dims):
                return deferred.draw(op, key, args[1:], _meta(node))
        if deferred.is_elementwise(op, args, kwargs):
            return deferred.elementwise(op, args, partitioner.on_cpu(kwargs), _meta(node))
        if op in _SAME:
            return args[0]
        args, kwargs = self._laid(node, op, args, kwargs)
        self._builder.where = node.meta.get("custom", {}).get("where")
        try:
            made = partitioner.apply(self._builder, op, args, partitioner.on_cpu(kwargs))
        except partitioner.UnknownShape as error:
            raise DtypeError(
                message(
                    "the shape of a result depends on values",
                    got=f"{op} in {self._builder.where}" if self._builder.where else str(op),
                    rule="a program has static shapes",
                    try_="torch.where(mask, x, 0), or call it outside of jit",
                )
            ) from error
        returns = op._schema.returns
        single = len(returns) == 1 and "List" not in str(returns[0].type)
        return made[0] if single else made

    def _region(self, region: ManualRegion, axes: Axes, operands: Sequence[Any]) -> Sequence[ShardedVar | Elsewhere]:
        """Bring the operands to where the region wants them, and write its steps."""
        if axes.named is None:
            return self._region_elsewhere(region, axes, operands)
        named = axes.named

        def dims(cut: NamedDims) -> Any:
            return tuple(tuple(a for name in names for a in named[name]) for names in cut)

        numbers = []
        for x, cut in zip(map(self._on_axes, operands), region.all_in_dims, strict=True):
            x = x.laid(self._builder, dims(cut)) if isinstance(x, Deferred) else x
            numbers.append(partitioner.place(self._builder, x, dims(cut)).number)
        made = inline(self._builder, region, axes, numbers)
        return [
            ShardedVar(self._apart(number, dims(cut)), meta.shape, meta.dtype, dims(cut))
            for number, meta, cut in zip(made, region.outputs, region.out_dims, strict=True)
        ]

    def _region_elsewhere(self, region: ManualRegion, axes: Axes, operands: Sequence[Any]) -> list[Elsewhere]:
        """A region on a mesh that the program's axes cannot say."""
        numbers = []
        for x, cut in zip(operands, region.all_in_dims, strict=True):
            layout = region.sharding(cut).layout(len(cut))
            numbers.append(self._elsewhere(x, layout).number)
        made = inline(self._builder, region, axes, numbers)
        return [
            Elsewhere(number, meta.shape, meta.dtype, region.sharding(cut).layout(len(cut)))
            for number, meta, cut in zip(made, region.outputs, region.out_dims, strict=True)
        ]

    def _apart(self, number: int, dims: Any) -> int:
        """A region's result; where it is an input that is to lie otherwise as a result, a value of its own."""
        if self._builder.wanted.get(number, dims) == dims:
            return number
        return self._builder.emit("aten.clone.default", (Value(number),), {}, [self._builder.metas[number]])[0]

    def _fill(self, node: torch.fx.Node, op: Any, args: Any) -> Deferred:
        _, number, position = _FILLS[op]
        made = _meta(node)
        return deferred.fill(made.shape, made.dtype, number if position is None else args[position])

    def _laid(self, node: torch.fx.Node, op: Any, args: Any, kwargs: Any) -> Any:
        """Give each deferred operand the layout that the op wants of it."""
        if not any(isinstance(x, Deferred) for x in tree_leaves((args, kwargs))):
            return args, kwargs
        value = node.meta["val"]
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        dims = deferred.wanted_by(op, args, kwargs, shape)

        def laid(x: Deferred) -> ShardedVar:
            fits = any(dims) and len(x.shape) <= len(shape)
            return x.laid(self._builder, deferred.aligned(x.shape, shape, dims) if fits else None)

        return tree_map_only(Deferred, laid, (args, kwargs))

    def _placed(self, x: Any) -> ShardedVar:
        return x.laid(self._builder) if isinstance(x, Deferred) else x


def _meta(node: torch.fx.Node) -> ShapedType:
    value = node.meta["val"]
    return ShapedType(tuple(value.shape), value.dtype)


def _as_it_lies(builder: Builder, x: ShardedVar) -> ShardedVar:
    """A free input as it lies since the first op that took it."""
    return replace(x, dims=builder.wanted.get(x.number, x.dims))
