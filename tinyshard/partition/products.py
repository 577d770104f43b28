"""Products: where a rule moves an operand, the plan that sends the fewest bytes, of results that are reduced too.

DTensor's rules weigh what it costs to move the operands, not what it costs to reduce a result that they leave partial.

    g [2048 in 8 parts, 512] @ w [512 in 8 parts, 128]

    as the rule has it    g by all_to_all to columns, then a sum over all devices of 1 MB
    w gathered            256 KB to each device, and the result is in 8 parts as g is: ZeRO's way
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core.layout import Axes
from tinyshard.partition.plan import Plan, gathered
from tinyshard.partition.reshard import ShardedVar, bytes_between

aten = torch.ops.aten

PRODUCTS = {aten.mm.default, aten.bmm.default}  # others are planned as one of these and an addition
WHY = "to gather it sends less than to move the other operand and to reduce the result"


def cheapest(
    op: Any, args: Any, kwargs: Any, planned: Plan, plan_again: Callable[[Any, Any], Plan], axes: Axes
) -> Plan:
    """The plan of a product, or one with an operand gathered that sends fewer bytes.

    A plan that moves no operand stays: the gradient of a weight is a sum over the devices of a batch, which to gather
    the batch would spare, and every device would compute it all.

    Args:
        op, args, kwargs: the op, with a ShardedVar for each operand as it is.
        planned: its plan.
        plan_again: plans it for other operands.
        axes: sizes of the program's axes.
    """
    if op not in PRODUCTS:
        return planned
    operands = {x.number: x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)}
    moved = _bytes_to_move(operands, planned, axes)
    if not moved:
        return planned
    best, least = planned, moved + _bytes_to_reduce(operands, planned, axes)
    for x in operands.values():
        if x.partial or not any(x.dims) or bytes_between(x, gathered(x), axes) >= least:
            continue
        other = plan_again(*_with_gathered(x, args, kwargs))
        sent = _bytes_to_move(operands, other, axes) + _bytes_to_reduce(operands, other, axes)
        if sent < least:
            best, least = replace(other, why=other.why or WHY), sent
    return best


def _with_gathered(x: ShardedVar, args: Any, kwargs: Any) -> Any:
    return tree_map_only(ShardedVar, lambda y: gathered(y) if y is x else y, (args, kwargs))


def _bytes_to_move(operands: dict[int, ShardedVar], planned: Plan, axes: Axes) -> int:
    """Bytes that a device sends to bring the operands."""
    wanted = [x for x in tree_leaves((planned.args, planned.kwargs)) if isinstance(x, ShardedVar)]
    return sum(bytes_between(operands[x.number], x, axes) for x in wanted)


def _bytes_to_reduce(operands: dict[int, ShardedVar], planned: Plan, axes: Axes) -> int:
    """Bytes that a device sends to reduce what the op leaves partial, at least."""
    already = {a for x in operands.values() for a, _ in x.partial}
    sent = 0
    for result, local in zip(planned.results, planned.local, strict=True):
        parts = 1 if result is None else math.prod(axes[a] for a, _ in result[1] if a not in already)
        sent += 0 if local is None else local.nbytes * (parts - 1) // parts
    return sent
