"""How the results of an op are cut if its operands do not move: the rule for the types of explicit axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from tinyshard.core.evaluate import Interpreter, evaluate
from tinyshard.core.layout import Axes
from tinyshard.core.program import Builder
from tinyshard.core.types import ShapedType
from tinyshard.partition.cat_split import joined
from tinyshard.partition.decompositions import always, where_cut
from tinyshard.partition.op_table import ALIASES
from tinyshard.partition.partitioner import graph_of
from tinyshard.partition.plan import Plan, plan
from tinyshard.partition.reshard import Dims, ShardedVar
from tinyshard.partition.rule import Rule
from tinyshard.partition.rules import Call, rule_of

aten = torch.ops.aten

# sums over a dim that two operands have: cut on both, the sum may be whole on every device, or cut again
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.vdot.default}
PRODUCTS |= {aten.convolution.default}


@dataclass(eq=False)
class Conflict(Exception):
    """The operands of an op leave open how its results are cut.

    Attributes:
        op: the op.
        operands: its operands, in their present layouts.
        rule: the text of its rule; "" if it does not have one.
        kind: the conflict: the "sum" of a product that is cut on both sides; a dim that must be "whole"; "blocks"
            that would not be blocks of the result; or operands that are cut "apart".
    """

    op: Any
    operands: Sequence[ShardedVar]
    rule: str
    kind: Literal["sum", "whole", "blocks", "apart"]


def dims_of_results(op: Any, args: Any, kwargs: Any, axes: Axes, *, refuses: bool) -> list[Dims | None]:
    """How each result of an op is cut, None for a result that is None.

    Args:
        op: an OpOverload.
        args, kwargs: its arguments, with a ShardedVar for each tensor.
        axes: sizes of the axes.
        refuses: whether an operand that would have to move is an error; else it moves.

    Raises:
        Conflict: an operand would have to move, or a product leaves a choice.
        UnknownShape: only running tells the shape of the result.
    """
    return [None if x is None else x.dims for x in _results(op, args, kwargs, axes, refuses)]


def _results(op: Any, args: Any, kwargs: Any, axes: Axes, refuses: bool) -> list[ShardedVar | None]:
    if op in ALIASES:
        return [args[0]]
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    function = always(op, args, kwargs)
    if function is None:
        planned = plan(op, args, kwargs, axes)
        if any(planned.why):
            function = where_cut(op)
            if function is None and not kwargs:
                blocks = joined(Builder(tuple(range(math.prod(axes))), axes), op, args)
                if blocks is not None:
                    return blocks
        if function is None:
            if refuses:
                _check(op, args, kwargs, operands, planned)
            return [None if x is None else replace(x, partial=()) for x in planned.results]
    graph = graph_of(function, args, kwargs)
    return tree_flatten(evaluate(graph, _Parts(axes, refuses), operands))[0]


class _Parts(Interpreter):
    """The walk over the graph of a function that replaces an op."""

    def __init__(self, axes: Axes, refuses: bool) -> None:
        self._axes = axes
        self._refuses = refuses

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        results = _results(node.target, args, kwargs, self._axes, self._refuses)
        return results if isinstance(node.meta["val"], list | tuple) else results[0]


def _check(op: Any, args: Any, kwargs: Any, operands: Sequence[ShardedVar], planned: Plan) -> None:
    """Raise Conflict if the plan moves an operand, or reduces the sum of a product that is cut on both sides."""
    results = [None if x is None else ShapedType(x.shape, x.dtype) for x in planned.results]
    rule = rule_of(Call.of(op, args, kwargs, results))
    wanted = [x for x in planned.leaves if isinstance(x, ShardedVar)]
    pairs = [(h, w) for x, y in zip(operands, wanted, strict=True) for h, w in zip(x.dims, y.dims, strict=True)]
    if any(w[: len(h)] != h for h, w in pairs):
        raise Conflict(op, operands, str(rule or ""), _kind(rule, operands))
    summed = {a for x in planned.results if x is not None for a, _ in x.partial}
    cutting = [{a for cut in x.dims for a in cut} for x in operands]
    if op in PRODUCTS and any(sum(a in cuts for cuts in cutting) > 1 for a in summed):
        raise Conflict(op, operands, str(rule), "sum")


def _kind(rule: Rule | None, operands: Sequence[ShardedVar]) -> Literal["whole", "blocks", "apart"]:
    if rule is None:
        return "whole"
    pairs = [pair for x, dims in zip(operands, rule.operands, strict=True) for pair in zip(x.dims, dims, strict=True)]
    cut = [dim for axes, dim in pairs if axes]
    if any(not dim or rule.whole & set(dim) for dim in cut):
        return "whole"
    factors = {f for dim in cut for f in dim}
    merged = [dim for dims in (*rule.operands, *rule.results) for dim in dims if len(dim) > 1]
    return "blocks" if any(factors & set(dim) for dim in merged) else "apart"
