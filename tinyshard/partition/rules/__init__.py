"""The rule of each op: tables, a row an op.

call           one call of an op, as a rule reads it
elementwise    each element computed from those at its position
lines          each line along some dims by itself
reductions     dims that are summed, averaged, compared; losses
views          dims that are permuted, split, joined
indices        elements by index
matrices       products, and matrices of a batch
layers         normalizations, attention, convolutions, losses of classes, random draws
images         pools, resampling
strides        exceptions: kernels that need contiguous memory, or take any strides

A row has the names of ops, and their rule: a text as `partition.rule` has it, or a function of the call where the rule
depends on arguments or shapes. An op that is not in these tables gathers its operands, unless torch tags it pointwise,
or `decompositions` replaces it: addmm becomes a product and a sum. An op with a rule is passed shards of any
strides, one without a rule contiguous ones, except as `strides` says. The sweep of the rules tests each new row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tinyshard.partition.rule import RanksDifferError, Rule
from tinyshard.partition.rules import elementwise, images, indices, layers, lines, matrices, reductions, views
from tinyshard.partition.rules.call import Call, Row
from tinyshard.partition.rules.strides import ANY_STRIDES, CONTIGUOUS

__all__ = ["RULES", "Call", "rule_of"]

aten = torch.ops.aten


def _by_op(rows: dict[str, Row], namespace: str) -> dict[str, Row]:
    """The row of each op, by str(op)."""
    return {
        f"{namespace}.{name if '.' in name else f'{name}.default'}": row
        for names, row in rows.items()
        for name in names.split()
    }


_TABLES = (elementwise, images, indices, layers, lines, matrices, reductions, views)
RULES: dict[str, Row] = _by_op(layers.DRAWS, "tinyshard")
for _table in _TABLES:
    RULES |= _by_op(_table.ROWS, "aten")


def has_rule(op: torch._ops.OpOverload) -> bool:
    """Whether an op has a rule, at least for some calls."""
    return str(op) in RULES or torch.Tag.pointwise in op.tags


@cache
def needs_contiguous(op: Any) -> bool:
    """Whether an op is passed contiguous operands: one without a rule is; `strides` has the exceptions.

    Example:
        >>> needs_contiguous(aten.sin.default)
        False
        >>> needs_contiguous(aten.mkldnn_rnn_layer.default)
        True
    """
    if op in CONTIGUOUS:
        return True
    return bool(op.namespace != "tinyshard" and op not in ANY_STRIDES and not has_rule(op))


def rule_of(call: Call) -> Rule | None:
    """The rule for this call; None if there is none."""
    row = RULES.get(str(call.op))
    if row is None:
        return elementwise.elementwise(call) if torch.Tag.pointwise in call.op.tags else None
    try:
        return call.text(row) if isinstance(row, str) else row(call)
    except RanksDifferError:
        return None
