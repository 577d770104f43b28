"""From ops on whole tensors to steps on shards: the plan of each op (`partition.plan`), written into a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from tinyshard.core.cache import frozen_leaf
from tinyshard.core.evaluate import Interpreter, evaluate, without_source
from tinyshard.core.program import Builder, Reason, Value
from tinyshard.core.trace_thread import in_trace_thread, in_turn
from tinyshard.core.types import ShapedType
from tinyshard.partition.cat_split import joined
from tinyshard.partition.decompositions import Function, always, where_cut
from tinyshard.partition.foreach import FOREACH, one_by_one
from tinyshard.partition.op_table import AS_RESHAPE
from tinyshard.partition.plan import as_replicated, local_types, plan
from tinyshard.partition.reshard import Dims, ShardedVar, note_reordered, noted, reshard
from tinyshard.partition.rules import needs_contiguous
from tinyshard.partition.rules.call import is_tensor
from tinyshard.partition.shape_inference import UnknownShape, check_takes

__all__ = ["UnknownShape", "apply", "apply_unknown", "bring", "place", "plan", "settled"]

aten = torch.ops.aten


def apply(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[ShardedVar | None]:
    """Emit one op on whole tensors as steps on shards.

    Args:
        builder: the program being built.
        op: an OpOverload.
        args, kwargs: its arguments, with a `ShardedVar` for each tensor.

    Returns:
        A ShardedVar for each result, None for a result that is None, in flat order.

    Raises:
        UnknownShape: only running tells the shape of the result.
        DtypeError: the op itself takes no operands of these dtypes.

    Communication: the collectives that move the operands to their planned layouts; results may be left partial.
    """
    if op in FOREACH:
        return [result for call in one_by_one(op, args, kwargs) for result in apply(builder, *call)]
    function = always(op, args, kwargs)
    if function is not None:
        return _apply_function(builder, op, function, args, kwargs)
    planned = plan(op, args, kwargs, builder.axes)
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    if any(planned.why):
        function = where_cut(op)
        if function is not None:
            return _apply_function(builder, op, function, args, kwargs)
        moved = None if kwargs else joined(builder, op, args)
        if moved is not None:
            return moved
    leaves: list[Any] = []
    why = iter(planned.why)
    for leaf in planned.leaves:
        if isinstance(leaf, ShardedVar):
            leaf = _brought(builder, operands[leaf.number], leaf, op, next(why))
        leaves.append(leaf)
    local_args, local_kwargs = tree_unflatten(leaves, planned.form)
    local = local_types(planned.results, builder.axes)
    slots = emitted(builder, planned.op, tuple(local_args), local_kwargs, local)
    if planned.order is not None:
        operand = replace(planned.leaves[0], number=leaves[0].number)
        note_reordered(builder, planned.op, tuple(local_args[1:]), planned.order, operand, slots[0])
    return [
        None if result is None else noted(builder, replace(result, number=number))
        for result, number in zip(planned.results, slots, strict=True)
    ]


def emitted(
    builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[ShapedType | None]
) -> tuple[int, ...]:
    """Emit an op on shards.

    Args:
        results: for each result its type; None for one that is None.

    Returns:
        The numbers of the results, -1 for one that is None.
    """
    types = [m for m in results if m is not None]
    if kwargs.get("device") is not None:  # a trace may have named another, as meta; devices compute where they are
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if op in AS_RESHAPE:
        op, args = aten.reshape.default, (args[0], list(types[0].shape))
    numbers = iter(builder.emit(str(op), args, kwargs, types))
    slots = tuple(-1 if m is None else next(numbers) for m in results)
    if -1 in slots:
        builder.steps[-1] = replace(builder.steps[-1], results=slots)
    return slots


def _brought(builder: Builder, have: ShardedVar, want: ShardedVar, op: Any, why: str) -> Value:
    """Move an operand to its planned layout; if that gathers it, record why."""
    first = len(builder.steps)
    value = bring(builder, have, want, op)
    if why:
        for number in range(first, len(builder.steps)):
            if builder.steps[number].op == "all_gather":
                builder.reasons[number] = Reason(str(op), why, builder.where)
    return value


def _apply_function(builder: Builder, op: Any, function: Function, args: Any, kwargs: Any) -> list[ShardedVar | None]:
    """Partition a function of whole tensors in place of an op, if the op takes these: its graph, node by node."""
    graph = graph_of(function, args, kwargs)
    check_takes(op, args, kwargs)
    operands = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, ShardedVar)]
    outputs = evaluate(graph, _Decomposed(builder), operands)
    return tree_flatten(outputs)[0]


def graph_of(function: Function, args: Any, kwargs: Any) -> torch.fx.GraphModule:
    """The graph of a function of whole tensors that replaces an op.

    Args:
        function: the function.
        args, kwargs: its arguments; a tensor among them is anything that has a shape and a dtype.
    """
    leaves, form = tree_flatten((tuple(args), dict(kwargs)))
    described = tuple(ShapedType(tuple(x.shape), x.dtype) if is_tensor(x) else x for x in leaves)
    return _graph(function, described, tuple(map(frozen_leaf, described)), form, torch.get_default_dtype())


class _Decomposed(Interpreter):
    """The walk over the graph of a function that replaces an op."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        outputs = apply(self._builder, node.target, args, kwargs)
        return outputs if isinstance(node.meta["val"], list | tuple) else outputs[0]


@lru_cache(maxsize=1024)
@in_trace_thread(in_turn)
def _graph(
    function: Function, described: tuple[Any, ...], key: Any, form: TreeSpec, default: torch.dtype
) -> torch.fx.GraphModule:
    """The graph of a function on tensors of these shapes; integers that become floats get torch's default dtype."""
    from torch.fx.experimental.proxy_tensor import make_fx

    metas = [x for x in described if isinstance(x, ShapedType)]

    def flat(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        args, kwargs = tree_unflatten([next(given) if isinstance(x, ShapedType) else x for x in described], form)
        return function(*args, **kwargs)

    with _disable_current_modes(), temporarily_clear_interpreter_stack(), torch.no_grad(), without_source():
        graph: torch.fx.GraphModule = make_fx(flat)(
            *[torch.empty(m.shape, dtype=m.dtype, device="meta") for m in metas]
        )
    graph.graph.eliminate_dead_code()
    return graph


def place(builder: Builder, have: ShardedVar, dims: Dims) -> ShardedVar:
    """Reshard a value to `dims` and combine its parts; an input without a layout yet is placed there."""
    have = _settled(builder, have, replace(have, dims=dims))
    return reshard(builder, have, dims)


def _settled(builder: Builder, have: ShardedVar, want: ShardedVar) -> ShardedVar:
    """An input that is not on the devices yet gets the layout that its first op needs."""
    if have.number in builder.free and have.number not in builder.wanted:
        builder.wanted[have.number] = want.dims
        builder.metas[have.number] = want.local(builder.axes)
    return settled(builder, have)


def settled(builder: Builder, x: ShardedVar) -> ShardedVar:
    """The value; an input is in the layout that an earlier op has placed it in."""
    dims = builder.wanted.get(x.number)
    return x if dims is None else replace(x, dims=dims)


def bring(builder: Builder, have: ShardedVar, want: ShardedVar, op: Any) -> Value:
    """Reshard an operand to the layout that the op needs."""
    have = _settled(builder, have, want)
    x = reshard(builder, have, want.dims, want.partial)
    if needs_contiguous(op):
        return Value(builder.emit("aten.contiguous.default", (Value(x.number),), {}, [x.local(builder.axes)])[0])
    return Value(x.number)


def apply_unknown(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value]:
    """Emit an op whose result has a shape that depends on values: every device runs it on whole operands.

    Returns:
        The numbers of its results.
    """
    count = len(args[1]) if op is aten._histogramdd_bin_edges.default else len(op._schema.returns)

    def whole(x: ShardedVar) -> Value:
        return _brought(builder, x, as_replicated(x), op, "the shape of its result depends on values")

    new_args, new_kwargs = tree_map_only(ShardedVar, whole, (args, kwargs))
    return [Value(number) for number in builder.emit(str(op), new_args, new_kwargs, [None] * count)]
