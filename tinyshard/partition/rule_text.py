"""A rule in words, for a reader: a line for each factor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core.primitive import Rules, primitive_of
from tinyshard.draw.tables import rules_html
from tinyshard.partition.decompositions import always
from tinyshard.partition.op_table import ALIASES
from tinyshard.partition.partitioner import graph_of
from tinyshard.partition.rule import SAME, Rule
from tinyshard.partition.rules import Call, rule_of

_COMBINED = {"sum": "sum", "avg": "mean", "max": "maximum", "min": "minimum", "product": "product"}


def in_words(rule: Rule) -> list[str]:
    """The meaning of each factor of a rule.

    Example:
        >>> from tinyshard.partition.rule import parsed
        >>> print(*in_words(parsed("i k, k j -> i j +k", [(2, 3), (3, 4)], [(2, 4)])), sep="\\n")
        i: cut along an axis, each device has its block of the result
        k: cut along an axis, each device has a part of the sum
        j: cut along an axis, each device has its block of the result
    """
    tensors = (*rule.operands, *rule.results)
    lines = [f"{f}: {_factor_in_words(rule, f)}" for f in rule.sizes]
    if any(() in dims for dims in tensors):
        lines.append("_: must be whole")
    return lines


def _factor_in_words(rule: Rule, f: str) -> str:
    if f in rule.whole:
        return "must be whole"
    before = {g for dims in (*rule.operands, *rule.results) for dim in dims if f in dim for g in dim[: dim.index(f)]}
    when = f", where {' and '.join(sorted(before))} is cut into single elements" if before else ""
    has = [_result_in_words(rule, number, f) for number in range(len(rule.results))]
    listed = " and ".join(filter(None, [", ".join(has[:-1]), *has[-1:]]))
    return f"cut along an axis{when}" + (f", each device has {listed}" if has else "")


def _result_in_words(rule: Rule, number: int, f: str) -> str:
    result = f"result {number}" if len(rule.results) > 1 else "result"
    how = rule.combined[number].get(f)
    if how is None:
        return f"its block of {result if len(rule.results) > 1 else 'the result'}"
    if how == SAME:
        return f"the whole {result}"
    return f"a part of the {_COMBINED[how]}" + (f" that is {result}" if len(rule.results) > 1 else "")


@dataclass(frozen=True)
class OpRule:
    """The rule of one op that a function calls.

    Attributes:
        op: its name.
        rule: its rule; None if it does not have one.
        is_primitive: whether it is a primitive of this package, as a loop is, partitioned by a method of its class.
    """

    op: str
    rule: Rule | None
    is_primitive: bool = False

    @property
    def shown(self) -> tuple[str, str, list[tuple[str, str]]]:
        """The op, its rule or what it has instead, and for each factor what it means."""
        if self.is_primitive:
            return self.op, "a primitive of tinyshard, partitioned by a method of its class", []
        if self.rule is None:
            return self.op, "no rule, its operands are gathered", []
        lines = (line.partition(": ") for line in in_words(self.rule))
        return self.op, str(self.rule), [(factor, meaning) for factor, _, meaning in lines]

    def __str__(self) -> str:
        op, rule, factors = self.shown
        if self.rule is None:
            return f"{op}: {rule}"
        return "\n".join([f"{op}    {rule}", *(f"  {factor}: {meaning}" for factor, meaning in factors)])


class OpRules(tuple[OpRule, ...]):
    """The rules of the ops that a function calls, in order; printed, a line for each factor."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return rules_html([each.shown for each in self])


def rules_in(graph: GraphModule) -> OpRules:
    """The rule of each op of a graph on whole tensors; for an op that is decomposed, the rules of its parts."""
    return OpRules(_rules_in(graph))


def _rules_in(graph: GraphModule) -> Iterator[OpRule]:
    for node in graph.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        args, kwargs = tree_map_only(Node, lambda x: x.meta["val"], (node.args, node.kwargs))
        if not any(isinstance(x, torch.Tensor) for x in tree_leaves((args, kwargs))):
            continue
        if node.target in ALIASES:
            continue
        primitive = primitive_of(node.target)
        if primitive is not None and type(primitive).partition is not Rules.partition:
            yield OpRule(str(node.target), None, is_primitive=True)
            continue
        function = always(node.target, args, kwargs)
        if function is not None:
            yield from _rules_in(graph_of(function, args, kwargs))
            continue
        value = node.meta["val"]
        results = value if isinstance(value, list | tuple) else [value]
        yield OpRule(str(node.target), rule_of(Call.of(node.target, args, kwargs, results)))
