"""The plan of one op: the layout that each operand must have, and the layout of each result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils._pytree import tree_map_only

from tinyshard.core.layout import Axes
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import ShardedVar


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one op.

    Attributes:
        op: the op to run on shards.
        args, kwargs: its arguments with a ShardedVar for each operand, in the layout that it must have.
        results: for each flat result how it lies, number 0; None for a result that is None.
        why: why operands are gathered that a rule might have kept in parts; empty where a rule decided.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[ShardedVar | None, ...]
    why: str = ""


def everywhere(op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], why: str) -> Plan:
    """Every device runs the op on whole operands."""
    args, kwargs = tree_map_only(ShardedVar, gathered, (args, kwargs))
    results = tuple(None if m is None else ShardedVar(0, m.shape, m.dtype, ((),) * len(m.shape)) for m in whole)
    return Plan(op, args, kwargs, results, why)


def gathered(x: ShardedVar) -> ShardedVar:
    """The operand, wanted whole and final on every device."""
    return replace(x, dims=((),) * len(x.shape), partial=())


def local_types(results: Sequence[ShardedVar | None], axes: Axes) -> tuple[ShapedType | None, ...]:
    """Shape and dtype of one device's results."""
    return tuple(None if x is None else x.local(axes) for x in results)
