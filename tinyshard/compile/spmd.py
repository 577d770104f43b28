"""From a graph of ops on whole tensors to an Executable: `partition.partitioner` partitions each node in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.function_overrides.memory import check_traced
from tinyshard.arrays.transfer import transfer
from tinyshard.compile.executable import (
    DeviceAssignment,
    Executable,
    InputSpec,
    UnalignedVar,
    close_program,
    open_program,
)
from tinyshard.compile.look_ahead import LookAhead
from tinyshard.compile.trace_errors import unknown_shape_error
from tinyshard.core import collector
from tinyshard.core.activity import spanned
from tinyshard.core.cache import frozen
from tinyshard.core.evaluate import Interpreter, evaluate, line_of
from tinyshard.core.layout import Layout, coarsest
from tinyshard.core.primitive import bound_in, primitive_of
from tinyshard.core.program import Builder, Value
from tinyshard.core.trace_thread import in_trace_thread
from tinyshard.core.types import ShapedType
from tinyshard.partition import deferred, partitioner
from tinyshard.partition.deferred import Deferred
from tinyshard.partition.op_table import ALIASES
from tinyshard.partition.reshard import Dims, ShardedVar, noted, reduce_partial, reshard

aten = torch.ops.aten

Goal = tuple[Layout, Layout | None]  # a layout, and the same on the program's axes, None if they cannot express it


@dataclass(frozen=True)
class PartOfMesh:
    """The axes of a mesh that a region is for; along the others its values are whole, and are partitioned.

    Attributes:
        axes: the program's axes for the names that its collectives use, a `primitives.manual_region.Axes`.
        mesh: for each axis of the mesh those of the program.
        taken: the program's axes along which values are blocks: those of the region, and of the regions around it.
        uneven: the graphs in its control flow that some of its devices may run, and others not.
    """

    axes: Any
    mesh: Dims
    taken: frozenset[int]
    uneven: frozenset[torch.fx.GraphModule]

    def on_program(self, layout: Layout) -> Dims:
        """The dims of a layout on the mesh, cut by axes of the program."""
        return tuple(tuple(a for number in cut for a in self.mesh[number]) for cut in layout.dims)


@spanned("plan", lambda graph, *_: _ops_in_words(graph))
@in_trace_thread(collector.paused)
def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[InputSpec],
    assignment: DeviceAssignment,
    outputs: Sequence[Layout | None] | None = None,
) -> Executable:
    """Partition a graph on whole tensors: that of a traced function, or of one op.

    Args:
        graph: the ops on whole tensors. Its output is one node, or a list of nodes.
        inputs: the tensors that it takes.
        assignment: where it will run.
        outputs: the layout that each tensor output should have; None where the partitioner chooses.

    Returns:
        The executable; its inputs are `inputs`.
    """
    bound = [(node, primitive, primitive.goal(params, _rank(node))) for node, primitive, params in bound_in(graph)]
    required = [(node, goal) for node, primitive, goal in bound if goal is not None and primitive.fixes_axes]
    targets = [(node, goal) for node, primitive, goal in bound if goal is not None and not primitive.fixes_axes]
    wanted = [layout for layout in outputs or () if layout is not None]
    builder, variables, written, musts = open_program(
        assignment, inputs, [*(layout for _, layout in targets), *wanted], [layout for _, layout in required]
    )
    asked = zip([*required, *targets], [*musts, *written[: len(targets)]], strict=True)
    walk = Partitioner(builder, {node: (layout, on_axes) for (node, layout), on_axes in asked}, assignment)
    results = evaluate(graph, walk, variables, walk.values)
    results = results if isinstance(results, list | tuple) else [results]
    finals = iter(zip(wanted, written[len(targets) :], strict=True))
    placed = [
        x if asked is None else walk.constrained_to(x, *next(finals))
        for x, asked in zip(results, outputs or [None] * len(results), strict=True)
    ]
    done = []
    for x in placed:  # after all of them: then it is known where each input is put
        x = walk.settled_layout(x)
        if x is not None:
            done.append(x if isinstance(x, UnalignedVar | Value) else reduce_partial(builder, walk.placed(x)))
    walk.note_cuts()
    gaps = tuple(i for i, x in enumerate(placed) if x is None)
    return replace(close_program(builder, assignment, variables, done), gaps=gaps)


def _ops_in_words(graph: torch.fx.GraphModule) -> str:
    ops = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return ops[0] if len(ops) == 1 else f"{len(ops)} ops"


def _rank(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return value.dim() if isinstance(value, torch.Tensor) else 0


class Partitioner(Interpreter):
    """The walk over a graph on whole tensors; nodes become values of the program.

    A value is a ShardedVar; a Deferred, which its first consumer places; or one whose layout the program's axes cannot
    express.

    Attributes:
        builder: the program.
        goals: for each node of a primitive the layout that it asks for.
        assignment: where the program will run.
        part: in a shard_map over a part of a mesh's axes, which; there, values are blocks along them.
        sums: in the body of a scan the nodes that add to a carry which may hold parts of a sum -> the carry's node.
        values: the value of each node.
    """

    def __init__(
        self,
        builder: Builder,
        goals: Mapping[torch.fx.Node, Goal],
        assignment: DeviceAssignment,
        part: PartOfMesh | None = None,
        sums: Mapping[torch.fx.Node, torch.fx.Node] = MappingProxyType({}),
    ) -> None:
        self.part = part
        self.sums = sums
        self.builder = builder
        self.goals = goals
        self.assignment = assignment
        self._around = builder.where
        self.values: dict[torch.fx.Node, Any] = {}

    @cached_property
    def _ahead(self) -> LookAhead:
        return LookAhead(self.builder.axes, self.values, {add: self._blocks(c) for add, c in self.sums.items()})

    def _blocks(self, carry: torch.fx.Node) -> int | None:
        x = self.values[carry]
        return None if x.number in self.builder.free else x.blocks(self.builder.axes)

    # ---- nodes ------------------------------------------------------------------------------------------------

    def literal(self, values: torch.Tensor) -> ShardedVar:
        return ShardedVar(self.builder.literal(values), tuple(values.shape), values.dtype, ((),) * values.dim())

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        primitive = primitive_of(node.target)
        if self.part is None or (primitive is not None and primitive.has_effect(args)):
            return self._called(node, args, kwargs)
        # a gradient recomputes its region: in one program ops with the same operands are merged
        same = tree_map_only(Deferred, lambda x: ("deferred", id(x)), (args, kwargs))
        key = "on blocks", node.target, frozen(same)
        return self.builder.once(key, lambda: self._called(node, args, kwargs))

    def _called(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        op: Any = node.target
        self.builder.where = line_of(node, self._around)
        if op is aten.as_strided.default:
            check_traced(node.args, node.kwargs)
        if self._combined(node) | self._holds_parts(node):
            args, kwargs = map_arg(node.args, self.values.__getitem__), map_arg(node.kwargs, self.values.__getitem__)
        primitive = primitive_of(op)
        result = NotImplemented if primitive is None else primitive.partition(self, node, args, kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = (map_arg(given, lambda n: self.value(self.values[n])) for given in (node.args, node.kwargs))
        if len(op._schema.returns) == 1 and isinstance(node.meta.get("val"), torch.Tensor):
            later = deferred.deferred(op, args, kwargs, self.type_of(node))
            if later is not None:
                return later
        return args[0] if op in ALIASES else self._applied(node, *self._materialized(node, op, args, kwargs))

    def _combined(self, node: torch.fx.Node) -> bool:
        """Combine the partial operands that later ops need combined; whether there are any."""
        partial = [n for n in node.all_input_nodes if isinstance(self.values[n], ShardedVar) and self.values[n].partial]
        combined = [(n, dims) for n in partial if (dims := self._ahead.wanted(n)) is not None]
        for operand, dims in combined:
            self.values[operand] = reshard(self.builder, self.values[operand], dims)
        return bool(combined)

    def _holds_parts(self, node: torch.fx.Node) -> bool:
        """At an addition to a carry that may be a sum: let it hold parts, if what is added does; whether it does.

        Maxima do not add up in parts: max(1, 2) + max(3, 0) is not max(1 + 3, 2 + 0).
        """
        carry = self.sums.get(node)
        if carry is None or carry not in node.all_input_nodes:
            return False
        (added,) = (self.values[n] for n in node.all_input_nodes if n is not carry)
        if not isinstance(added, ShardedVar) or not added.is_sum:
            return False
        total = self.values[carry]
        if total.number in self.builder.free:
            self.builder.free.remove(total.number)
        elif total.dims != added.dims:
            return False
        self.values[carry] = held = replace(added, number=total.number)
        self.builder.metas[held.number] = held.local(self.builder.axes)
        self.builder.cuts[held.number] = held.dims, held.partial
        return True

    def _applied(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        op: Any = node.target
        try:
            outputs: Sequence[Any] = partitioner.apply(self.builder, op, args, kwargs)
        except partitioner.UnknownShape as error:
            if "val" in node.meta:
                raise unknown_shape_error(op, self.builder.where) from error
            outputs = partitioner.apply_unknown(self.builder, op, args, kwargs)  # alone in its graph: nothing follows
        returns = op._schema.returns
        single = len(returns) == 1 and "List" not in str(returns[0].type)
        return outputs[0] if single else outputs

    def _materialized(self, node: torch.fx.Node, op: Any, args: Any, kwargs: Any) -> Any:
        """Emit each deferred operand in the layout that the op needs."""
        if not any(isinstance(self.values[n], Deferred) for n in node.all_input_nodes):
            return args, kwargs
        value = node.meta["val"]
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        dims = deferred.wanted_by(op, args, kwargs, shape)

        def materialized(x: Deferred) -> ShardedVar:
            fits = any(dims) and len(x.shape) <= len(shape)
            return x.materialize(self.builder, deferred.aligned(x.shape, shape, dims) if fits else None)

        return tree_map_only(Deferred, materialized, (args, kwargs))

    @staticmethod
    def type_of(node: torch.fx.Node) -> ShapedType:
        """Shape and dtype of the whole result of a node."""
        return shaped_type_of(node.meta["val"])

    def note_cuts(self) -> None:
        """Note in the program how each value of the walk is cut."""
        for x in tree_leaves(list(self.values.values())):
            if isinstance(x, ShardedVar):
                noted(self.builder, x)

    def within(
        self, builder: Builder, sums: Mapping[torch.fx.Node, torch.fx.Node] = MappingProxyType({})
    ) -> Partitioner:
        """A walk over the graph of a body, whose program is another one on the same axes; `sums` as above."""
        return Partitioner(builder, self.goals, self.assignment, self.part, sums)

    def on_blocks(self, graph: torch.fx.GraphModule, part: PartOfMesh) -> Partitioner:
        """A walk over the graph of a region for a part of the axes: it partitions along the others."""
        goals: dict[torch.fx.Node, Goal] = {}
        for node, primitive, params in bound_in(graph):
            goal = primitive.goal(params, _rank(node))
            if goal is not None:
                goals[node] = goal, self._layout(part.on_program(goal))
        return Partitioner(self.builder, goals, self.assignment, part)

    # ---- values, for this walk and for the rules of primitives ------------------------------------------------

    def settled_layout(self, x: Any) -> Any:
        """The value of a node; an input is in the layout that an earlier op has placed it in."""
        return partitioner.settled(self.builder, x) if isinstance(x, ShardedVar) else x

    def value(self, x: Any) -> Any:
        """The value of a node as an operand: on the program's axes."""
        if not isinstance(x, UnalignedVar):
            return self.settled_layout(x)
        whole = ShardedVar(x.number, x.shape, x.dtype, ((),) * len(x.shape))
        return replace(whole, number=self._transferred(x.number, x.layout, self._layout(whole.dims), x.shape))

    def placed(self, x: Any) -> ShardedVar:
        """A value, emitted if it was deferred."""
        placed: ShardedVar = x.materialize(self.builder) if isinstance(x, Deferred) else x
        return placed

    def reshard_to(self, x: Any, dims: Dims) -> ShardedVar:
        """The value of a node in this sharding."""
        x = self.value(x)
        return partitioner.place(
            self.builder, x.materialize(self.builder, dims) if isinstance(x, Deferred) else x, dims
        )

    def copy_if_relaid(self, number: int, dims: Dims) -> int:
        """A result; a copy if it is an input whose layout as a result differs."""
        if self.builder.wanted.get(number, dims) == dims:
            return number
        return self.builder.emit("aten.clone.default", (Value(number),), {}, [self.builder.metas[number]])[0]

    def constrained_to(self, x: Any, layout: Layout, written: Layout | None) -> Any:
        """A value in a layout, which is `written` on the program's axes if they can express it."""
        return self.unaligned(x, layout) if written is None else self.reshard_to(x, written.dims)

    def unaligned(self, x: Any, layout: Layout) -> UnalignedVar:
        """A value in a layout that the program's axes cannot express."""
        if isinstance(x, UnalignedVar):
            return replace(x, number=self._transferred(x.number, x.layout, layout, x.shape), layout=layout)
        x = self.placed(self.value(x))
        x = partitioner.place(self.builder, x, self.settled_layout(x).dims)
        return UnalignedVar(
            self._transferred(x.number, self._layout(x.dims), layout, x.shape), x.shape, x.dtype, layout
        )

    def _layout(self, dims: Dims) -> Layout:
        return Layout(self.builder.devices, self.builder.axes, dims)

    def _transferred(self, number: int, have: Layout, want: Layout, shape: tuple[int, ...]) -> int:
        """The number of a value in another layout; resharded only once."""
        have, want = (replace(coarsest(layout), platform="") for layout in (have, want))
        if have == want or not math.prod(shape):
            return number
        key = ("transfer", number, have, want)
        return self.builder.once(key, lambda: transfer(self.builder, number, have, want, shape))
