"""Ops that compute each item of a batch alone: the batch dims stay sharded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core.layout import Axes
from tinyshard.core.types import ShapedType
from tinyshard.partition.on_meta import run_on_meta
from tinyshard.partition.op_table import BATCHED
from tinyshard.partition.plan import Plan, gathered, local_types
from tinyshard.partition.reshard import Dims, ShardedVar


def batched(op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], axes: Axes) -> Plan | None:
    """An op that computes each item of a batch alone: cuts of the batch dims stay, the other dims are gathered."""
    row = BATCHED[op]
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    first = operands[0]
    lead = row.lead if row.inner is None else -len(args[row.inner])
    count = min(lead, len(first.shape)) if lead > 0 else len(first.shape) + lead
    batch = first.shape[:count]
    chosen = None if row.operands is None else {args[i].number for i in row.operands if isinstance(args[i], ShardedVar)}

    def has_batch(x: ShardedVar) -> bool:
        if chosen is not None:
            return x.number in chosen
        # of the batch and part of an item; or a number for each item, as what is folded into each key
        has_prefix = (len(x.shape) > count if lead > 0 else len(x.shape) == count) and x.shape[:count] == batch
        return len(x.shape) == len(first.shape) or has_prefix

    cuts = next((x.dims[:count] for x in operands if has_batch(x) and any(x.dims[:count])), ())
    cuts = cuts or next(filter(None, (_on_batch(x, count, axes) for x in operands if has_batch(x))), ())
    # a dim of 1 is repeated for all items. Another size is that of groups: each head of keys serves several of queries,
    # which stay on one device if both numbers of heads can be cut
    sizes = [{x.shape[d] for x in operands if has_batch(x) and x.shape[d] != 1} | {n} for d, n in enumerate(batch)]
    cuts = tuple(_dividing(cut, sizes[d], axes) for d, cut in enumerate(cuts))
    summed = {i for i in row.sums if whole[i] is not None}
    made_of_items = [m for i, m in enumerate(whole) if m is not None and i not in summed]
    if not any(cuts) or any(cuts[d] and m.shape[d] not in sizes[d] for m in made_of_items for d in range(count)):
        return None

    def cut(x: ShardedVar) -> ShardedVar:
        if not has_batch(x):
            return gathered(x)
        kept = tuple(c if n in of else () for c, n, of in zip(cuts, x.shape, sizes, strict=False))
        return replace(x, dims=kept + ((),) * (len(x.shape) - count), partial=())

    args, kwargs = tree_map_only(ShardedVar, cut, (args, kwargs))
    parts = tuple((a, "sum") for by in cuts for a in by)

    def made(i: int, m: ShapedType) -> ShardedVar:
        of_items = cuts + ((),) * (len(m.shape) - count)
        return ShardedVar(0, m.shape, m.dtype, *((((),) * len(m.shape), parts) if i in summed else (of_items, ())))

    results = tuple(None if m is None else made(i, m) for i, m in enumerate(whole))
    try:
        if run_on_meta(op, args, kwargs, axes, local=True) != local_types(results, axes):
            return None
    except RuntimeError:  # an operand of fewer dims is repeated along a dim that is cut here
        return None
    return Plan(op, args, kwargs, results)


def _dividing(cut: tuple[int, ...], sizes: set[int], axes: Axes) -> tuple[int, ...]:
    """The first axes of a cut, as many as cut dims of all these sizes evenly."""
    while cut and any(size % math.prod(axes[a] for a in cut) for size in sizes):
        cut = cut[:-1]
    return cut


def _on_batch(x: ShardedVar, count: int, axes: Axes) -> Dims:
    """The cuts of an operand's items, on a dim of its batch instead: an all_to_all in place of a gather; () if none."""
    inner = tuple(a for cut in x.dims[count:] for a in cut)
    parts = math.prod(axes[a] for a in inner)
    fitting = next((d for d in range(count) if inner and x.shape[d] and x.shape[d] % parts == 0), None)
    return () if fitting is None else tuple(inner if d == fitting else () for d in range(count))
