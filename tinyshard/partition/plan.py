"""The plan of one op: the layout that each operand must have, and the layout of each result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils._pytree import tree_map_only

from tinyshard.core.layout import Axes
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import Dims, ShardedVar


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one op.

    Attributes:
        op: the op to run on shards.
        args, kwargs: its arguments with a ShardedVar for each operand, in the layout that it must have.
        results: for each flat result (dims, partial); None for a result that is None.
        local: metas of the results on one device.
        whole: metas of the results as whole tensors.
        why: why operands are gathered that a rule might have kept in parts; empty where a rule decided.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[Dims, tuple[tuple[int, str], ...]] | None, ...]
    local: tuple[ShapedType | None, ...]
    whole: tuple[ShapedType | None, ...]
    why: str = ""


def known(meta: ShapedType | None) -> ShapedType:
    """The meta of a result that is there."""
    assert meta is not None
    return meta


def everywhere(op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], why: str) -> Plan:
    """Every device runs the op on whole operands."""
    args, kwargs = tree_map_only(ShardedVar, gathered, (args, kwargs))
    results = tuple(None if m is None else (((),) * len(m.shape), ()) for m in whole)
    return Plan(op, args, kwargs, results, whole, whole, why)


def gathered(x: ShardedVar) -> ShardedVar:
    """The operand, wanted whole and final on every device."""
    return replace(x, dims=((),) * len(x.shape), partial=())


def promised_types(
    whole: Sequence[ShapedType | None], results: Sequence[Any], axes: Axes
) -> tuple[ShapedType | None, ...]:
    """The metas of one device's results, if they lie as is said."""
    return tuple(
        None if m is None else ShardedVar(0, m.shape, m.dtype, *r).local(axes)
        for m, r in zip(whole, results, strict=True)
    )
