"""Looks at the ops that will use a partial sum, so that it is combined once, and decides where.

An op that is linear in a partial sum may leave it partial, so that it is combined later. Where several ops take the
sum, it may be combined several times. In a step of Adam the gradient g of a weight is a partial sum over the batch:

    m = 0.9 * m + 0.1 * g              0.1 * g is combined
    v = 0.999 * v + 0.001 * g * g      g is combined, and so is 0.001 * g * g

Here the ops ahead of g are followed to those that need it combined. If g itself is needed, or if what is combined in
its place is more than g, then g is combined before its first use: by a reduce_scatter to the layout of m, where that is
sharded, and else by an all_reduce.

A scan that adds up gradients, from zeros, adds up their parts, and what it returns is combined once:

    total = total + g.float()    neither g nor total is combined, nor is g before it gets a wider dtype
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx.node import Node

from tinyshard.core.layout import Axes
from tinyshard.partition.layouts import widens
from tinyshard.partition.op_table import computes_each_element, op_traits
from tinyshard.partition.reshard import Dims, ShardedVar, bytes_between
from tinyshard.partition.rules import RULES
from tinyshard.partition.rules.elementwise import scales_parts, unread

aten = torch.ops.aten

_SCALES = {aten.mul.Tensor, aten.div.Tensor}
_ADDS = {aten.add.Tensor, aten.sub.Tensor}  # of operands that are partial along the same axes


class LookAhead:
    """Decides for each partial sum of a graph, at its first use, whether to combine it.

    Args:
        axes: sizes of the program's axes.
        values: the value of each node so far.
        sums: in the body of a scan the nodes that add to a carry which may hold parts of a sum; for each into how many
            blocks its carry is cut, None if it takes the layout of what is added.
    """

    def __init__(self, axes: Axes, values: Mapping[Node, Any], sums: Mapping[Node, int | None]) -> None:
        self.axes = axes
        self.values = values
        self.sums = sums
        self._decided: dict[Node, Dims | None] = {}

    def wanted(self, node: Node) -> Dims | None:
        """The layout in which a partial sum should be combined before its first use; None if it may stay partial."""
        if node not in self._decided:
            self._decided[node] = self._layout(node) if self._is_combined(node) else None
        return self._decided[node]

    def _is_combined(self, node: Node) -> bool:
        """Whether a sum that stays partial would later be combined anyway, by itself or as larger values."""
        cone, needed = {node}, dict[Node, None]()  # nodes linear in the sum; nodes that are combined in its place
        sums = self._sums_of(self.values[node])
        ahead = [node]
        for reached in ahead:  # grows
            for user in reached.users:
                if user in cone or reached in sums or RULES.get(str(user.target)) is unread:
                    continue
                is_op = user.op != "output" and isinstance(user.target, torch._ops.OpOverload)
                if not is_op or _numel(user) > _numel(reached):  # in a larger value each copy of it would be combined
                    needed[reached] = None
                elif user in sums or self._is_linear(user, reached, cone) or _is_widened(user, into=sums):
                    cone.add(user)
                    ahead.append(user)
                else:
                    needed[reached if computes_each_element(user.target) else user] = None
            if node in needed or sum(map(_numel, needed)) > _numel(node):
                return True
            if len(node.users) == 1:  # the result of that op is decided on by itself
                return False
        return bool(needed) and not sums.isdisjoint(cone)  # what is combined in each round is added up as it is

    def _sums_of(self, part: ShardedVar) -> set[Node]:
        """The nodes that may add such a part to a carry: those whose carry is not smaller than the part."""
        taken = (None, part.blocks(self.axes))
        return {add for add, blocks in self.sums.items() if blocks in taken} if part.is_sum else set()

    def _is_linear(self, user: Node, node: Node, cone: set[Node]) -> bool:
        """Whether an op leaves the sum `node` partial."""
        op: Any = user.target
        if op in _SCALES:
            return scales_parts(op, user.args[1], node.meta["val"].dtype)
        others = [x for x in user.all_input_nodes if x is not node]
        if op in _ADDS:
            return bool(others) and all(x in cone or self._is_partial(x, unknown=True) for x in others)
        return op is aten.neg.default or op_traits(op).is_view

    def _is_partial(self, node: Node, *, unknown: bool = False) -> bool:
        value = self.values.get(node)
        return bool(value.partial) if isinstance(value, ShardedVar) else value is None and unknown

    def _layout(self, node: Node) -> Dims:
        """The layout of the first sharded value that an elementwise op uses with the sum, if it does not send more."""
        have: ShardedVar = self.values[node]
        stays = bytes_between(have, replace(have, partial=()), self.axes)
        seen, ahead = {node}, [node]
        for reached in ahead:  # grows
            for user in reached.users:
                if user in seen or not _is_elementwise(user, have.shape):
                    continue
                seen.add(user)
                ahead.append(user)
                for x in map(self.values.get, user.all_input_nodes):
                    if not isinstance(x, ShardedVar) or x.shape != have.shape or x.partial or not any(x.dims):
                        continue
                    if bytes_between(have, replace(have, dims=x.dims, partial=()), self.axes) <= stays:
                        return x.dims
        return have.dims


def _is_widened(node: Node, into: Container[Node]) -> bool:
    """Whether a node converts to a wider dtype, only to be added to sums."""
    if node.target is not aten._to_copy.default or not all(user in into for user in node.users):
        return False
    return widens(node.all_input_nodes[0].meta["val"].dtype, node.meta["val"].dtype)


def _is_elementwise(node: Node, shape: tuple[int, ...]) -> bool:
    value = node.meta.get("val")
    is_alike = isinstance(value, torch.Tensor) and tuple(value.shape) == shape
    return is_alike and computes_each_element(node.target)


def _numel(node: Node) -> int:
    value = node.meta.get("val")  # a check of values has no result
    return math.prod(value.shape) if isinstance(value, torch.Tensor) else 0
