"""How one op on whole tensors runs on shards: which layout each operand must have, and how the result lies.

Where the answer is plain (one device, copies everywhere, a pointwise op on operands that are cut alike, items of a
batch) it is given here; otherwise DTensor's rules give it (`dtensor`), for the ops whose rule the sweep has
held against torch's values (`verified`). What a rule says is tried on meta tensors. An op without a rule, or
whose local op does not make shards of the promised shape, gathers its operands and runs everywhere, which is always
right; the plan says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core import collector
from tinyshard.core.layout import Axes
from tinyshard.core.types import ShapedType
from tinyshard.partition.on_meta import run_on_meta
from tinyshard.partition.op_table import (
    AS_RESHAPE,
    BATCHED,
    FILLED,
    INSTEAD,
    NEEDS_WHOLE,
    combined_by,
    not_by_rule,
    op_traits,
    with_positive_dims,
)
from tinyshard.partition.planning_axes import planning_axes
from tinyshard.partition.reshard import Dims, ShardedVar
from tinyshard.partition.verified import RULES
from tinyshard.runtime import lifecycle

aten = torch.ops.aten


@lifecycle.at_start
def _load_rules() -> None:
    """Load what the first op needs (a second of imports) now, while the workers start, so that no op waits for it."""
    with collector.paused():
        from tinyshard.partition import dtensor

        dtensor.warm_up()


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


def plan(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes) -> Plan:
    """Decide how one op runs on shards. Pure: nothing is emitted, nothing communicates.

    Raises:
        UnknownShape: only running tells the shape of the result.
    """
    op = INSTEAD.get(op, op)
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    whole = run_on_meta(op, args, kwargs, axes, local=False)
    if operands:
        args, kwargs = with_positive_dims(op, args, kwargs, len(operands[0].shape))
    planned = _plan(op, args, kwargs, whole, axes)
    kept = [x for x in tree_leaves((planned.args, planned.kwargs)) if isinstance(x, ShardedVar)]
    if any(_is_to_be_combined(op, x, whole) for x in kept):

        def combined(x: ShardedVar) -> ShardedVar:
            return replace(x, partial=()) if _is_to_be_combined(op, x, whole) else x

        args, kwargs = tree_map_only(ShardedVar, combined, (args, kwargs))
        planned = _plan(op, args, kwargs, whole, axes)
    return planned


def _plan(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], whole: tuple[ShapedType | None, ...], axes: Axes
) -> Plan:
    """As `plan`, with the shapes of the results; it may leave operands partial that must be combined."""
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    if op in NEEDS_WHOLE or all(x.is_whole for x in operands):
        return _everywhere(op, args, kwargs, whole, "it reads the memory of the whole tensor")
    if any(math.prod(x.shape) == 0 for x in operands):  # DTensor's rule for views never returns on a size of 0
        return _everywhere(op, args, kwargs, whole, "an operand is empty")
    if op in BATCHED:
        batched = _batched(op, args, kwargs, whole, axes)
        return batched or _everywhere(op, args, kwargs, whole, "only its batch dims can stay sharded")
    has_rule = str(op) in RULES
    quick = _pointwise(op, args, kwargs, whole, axes, insist=not has_rule)
    if quick is not None:
        return quick
    other = not_by_rule(op, args)
    if other:
        return _everywhere(op, args, kwargs, whole, other)
    if not has_rule:
        return _everywhere(op, args, kwargs, whole, "no rule for it has passed the sweep")
    from tinyshard.partition import dtensor

    led = _led(args[0], whole[0]) if op in AS_RESHAPE and not args[0].partial else None
    if led is not None:
        try:
            return _by_rule(op, (led, *args[1:]), kwargs, whole, axes, set())
        except dtensor.NoRule:
            pass  # then as it lies
    hidden: set[int] = set()  # axes whose cuts are gathered because no rule can keep them
    used = {a for x in operands for cut in x.dims for a in cut} | {a for x in operands for a, _ in x.partial}
    reason = ""
    while hidden < used:
        try:
            return replace(_by_rule(op, args, kwargs, whole, axes, hidden), why=reason)
        except dtensor.NoRule as why:
            reason = str(why)
            hidden |= set(why.axes) - hidden or used
    return _everywhere(op, args, kwargs, whole, reason)


def known(meta: ShapedType | None) -> ShapedType:
    """The meta of a result that is there."""
    assert meta is not None
    return meta


def _everywhere(op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], why: str) -> Plan:
    """Every device runs the op on whole operands."""
    args, kwargs = tree_map_only(ShardedVar, gathered, (args, kwargs))
    results = tuple(None if m is None else (((),) * len(m.shape), ()) for m in whole)
    return Plan(op, args, kwargs, results, whole, whole, why)


def gathered(x: ShardedVar) -> ShardedVar:
    """The operand, wanted whole and final on every device."""
    return replace(x, dims=((),) * len(x.shape), partial=())


def _is_to_be_combined(op: Any, x: ShardedVar, whole: tuple[ShapedType | None, ...]) -> bool:
    """Whether an operand is partial, and the op of each part is no part of the op's result.

    A conversion rounds, wraps or clips: int8(200) and int8(100) are -56 and 100, and 100 is not int8(200). Of a maximum
    no op but a view keeps the parts: max(-inf, 2) + inf is inf, and max(-inf + inf, 2 + inf) is NaN. So with integers:
    a pool, linear of floats, rounds; of parts (1, 0) and (0, 1) the means are 0 and 0, and of their sum (1, 1) it is 1.
    """
    if not x.partial or op in FILLED:
        return bool(x.partial)
    converts = any(m is not None and m.dtype != x.dtype for m in whole)
    only_sums = all(how in ("sum", "avg") for _, how in x.partial)
    rounds = not (x.dtype.is_floating_point or x.dtype.is_complex)
    return converts or not (op_traits(op).is_view or (only_sums and not rounds))


def _pointwise(
    op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], axes: Axes, *, insist: bool
) -> Plan | None:
    """A pointwise op whose operands are cut alike, or not at all, needs no rule: each shard is computed alone.

    Parts of a sum along an axis that cuts another operand are combined first: left partial, the op would gather that
    operand. Where operands are cut in different ways a rule chooses, or the first operand does if `insist`.
    """
    if torch.Tag.pointwise not in op.tags or any(m is None for m in whole):
        return None
    shape = known(whole[0]).shape
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    cuts: list[Axes] = [()] * len(shape)
    cutting = {a for x in operands for cut in x.dims for a in cut}
    for x in operands:
        if not insist and not {a for a, _ in x.partial} <= cutting:  # a rule may know how to leave it partial
            return None
        for dim, cut in enumerate(x.dims, start=len(shape) - len(x.dims)):
            if not cut or cuts[dim] == cut:
                continue
            if cuts[dim] or any(a in other for other in cuts for a in cut):
                if insist:
                    continue
                return None
            cuts[dim] = cut
    dims = tuple(cuts)

    def aligned(x: ShardedVar) -> ShardedVar:
        tail = dims[len(dims) - len(x.dims) :]
        return replace(x, dims=tuple(cut if n > 1 else () for n, cut in zip(x.shape, tail, strict=True)), partial=())

    args, kwargs = tree_map_only(ShardedVar, aligned, (args, kwargs))
    results = ((dims, ()),) * len(whole)
    return Plan(op, args, kwargs, results, _promised(whole, results, axes), whole)


def _batched(op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], axes: Axes) -> Plan | None:
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
        return len(x.shape) == len(first.shape) or x.shape[:count] == batch

    cuts = next((x.dims[:count] for x in operands if has_batch(x) and any(x.dims[:count])), ())
    cuts = cuts or next(filter(None, (_on_batch(x, count, axes) for x in operands if has_batch(x))), ())
    summed = {i for i in row.sums if whole[i] is not None}
    if not cuts or any(m is not None and i not in summed and m.shape[:count] != batch for i, m in enumerate(whole)):
        return None

    def cut(x: ShardedVar) -> ShardedVar:
        if not has_batch(x):
            return gathered(x)
        kept = tuple(c if n == b else () for c, n, b in zip(cuts, x.shape, batch, strict=False))
        return replace(x, dims=kept + ((),) * (len(x.shape) - count), partial=())

    args, kwargs = tree_map_only(ShardedVar, cut, (args, kwargs))
    parts = tuple((a, "sum") for by in cuts for a in by)
    results = tuple(
        None
        if m is None
        else (((),) * len(m.shape), parts)
        if i in summed
        else (cuts + ((),) * (len(m.shape) - count), ())
        for i, m in enumerate(whole)
    )
    promised = _promised(whole, results, axes)
    if run_on_meta(op, args, kwargs, axes, local=True) != promised:
        return None
    return Plan(op, args, kwargs, results, promised, whole)


def _on_batch(x: ShardedVar, count: int, axes: Axes) -> Dims:
    """The cuts of an operand's items, on a dim of its batch instead: an all_to_all in place of a gather; () if none."""
    inner = tuple(a for cut in x.dims[count:] for a in cut)
    parts = math.prod(axes[a] for a in inner)
    fitting = next((d for d in range(count) if inner and x.shape[d] and x.shape[d] % parts == 0), None)
    return () if fitting is None else tuple(inner if d == fitting else () for d in range(count))


def _led(x: ShardedVar, made: ShapedType | None) -> ShardedVar | None:
    """The operand of a view that joins dims, with the cuts of the later dims on the first one: there they stay.

    A block of [8, 4 in two parts] is not a block of [32]; one of [8 in two parts, 4] is. To swap dims by all_to_all
    moves a block of each device; to gather would bring all blocks to all. None where no later dim is cut.
    """
    shape, want = list(x.shape), list(known(made).shape)
    dims = list(x.dims)
    first = target = 0
    while first < len(shape) and target < len(want):
        last, have, goal = first, shape[first], want[target]
        while have != goal and last + 1 < len(shape) + 1:
            if have < goal and last + 1 < len(shape):
                last += 1
                have *= shape[last]
            elif have > goal and target + 1 < len(want):
                target += 1
                goal *= want[target]
            else:
                return None
        later = tuple(a for d in range(first + 1, last + 1) for a in dims[d])
        if later:
            dims[first : last + 1] = [dims[first] + later, *[()] * (last - first)]
        first, target = last + 1, target + 1
    led = replace(x, dims=tuple(dims), partial=x.partial)
    return None if led.dims == x.dims else led


def _promised(whole: Sequence[ShapedType | None], results: Sequence[Any], axes: Axes) -> tuple[ShapedType | None, ...]:
    """The metas of one device's results, if they lie as is said."""
    return tuple(
        None if m is None else ShardedVar(0, m.shape, m.dtype, *r).local(axes)
        for m, r in zip(whole, results, strict=True)
    )


def _by_rule(op: Any, args: Any, kwargs: Any, whole: Any, axes: Axes, hidden: set[int]) -> Plan:
    """Ask DTensor, and try its answer on meta tensors."""
    from tinyshard.partition import dtensor

    def visible(x: ShardedVar) -> ShardedVar:
        dims = []
        for cut in x.dims:
            kept = next((i for i, a in enumerate(cut) if a in hidden), len(cut))
            dims.append(cut[:kept])
        return replace(x, dims=tuple(dims), partial=tuple(p for p in x.partial if p[0] not in hidden))

    args, kwargs = tree_map_only(ShardedVar, visible, (args, kwargs))
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    groups, refused = planning_axes(operands, merge=op not in AS_RESHAPE)
    sizes = tuple(math.prod(axes[a] for a in group) for group in groups)

    def as_operand(x: ShardedVar) -> dtensor.Operand:
        x = replace(x, dims=tuple(() if (x.number, d) in refused else cut for d, cut in enumerate(x.dims)))
        return dtensor.Operand(x.shape, x.dtype, tuple(_placement(x, group) for group in groups))

    try:
        asked_args, asked_kwargs = tree_map_only(ShardedVar, as_operand, (args, kwargs))
        answer = dtensor.ask(op, asked_args, asked_kwargs, sizes)
    except dtensor.NoRule as why:
        raise dtensor.NoRule(str(why), tuple(a for number in why.axes for a in groups[number])) from why

    def blocks(shape: Sequence[int], dtype: torch.dtype, placements: Any) -> tuple[Dims, tuple[tuple[int, str], ...]]:
        dims: list[Axes] = [()] * len(shape)
        partial: list[tuple[int, str]] = []
        for number, (group, placement) in enumerate(zip(groups, placements, strict=True)):
            if placement[0] == "shard":
                dims[placement[1]] += group
            elif placement[0] == "partial":
                partial += [(a, combined_by(op, dtype, placement[1])) for a in group]
            if placement[0] == "shard" and shape[placement[1]] % math.prod(axes[a] for a in dims[placement[1]]):
                raise dtensor.NoRule("an uneven shard", groups[number])
        return tuple(dims), tuple(partial)

    old = iter(operands)

    def as_placed(x: dtensor.Operand) -> ShardedVar:
        dims, partial = blocks(x.shape, x.dtype, x.placements)
        before = next(old)
        if not set(partial) <= set(before.partial):
            raise dtensor.NoRule("an operand as a partial sum", tuple(a for a, _ in partial))
        return replace(before, dims=dims, partial=partial)

    new_args, new_kwargs = tree_map_only(dtensor.Operand, as_placed, (answer.args, answer.kwargs))
    placements = answer.results if len(answer.results) == len(whole) else answer.results * len(whole)
    if len(placements) != len(whole):
        raise dtensor.NoRule("other results than the op has")
    results = tuple(
        None if m is None else blocks(m.shape, m.dtype, p if p is not None else (dtensor.REPLICATE,) * len(groups))
        for m, p in zip(whole, placements, strict=True)
    )
    promised = _promised(whole, results, axes)
    try:
        local = run_on_meta(answer.op, new_args, new_kwargs, axes, local=True)
    except RuntimeError as error:  # torch's word that shards of these shapes are no operands of the op
        raise dtensor.NoRule(f"the op refuses its shards: {error}") from error
    if local != promised:
        raise dtensor.NoRule(f"the op makes {local} of its shards, not {promised}")
    return Plan(answer.op, new_args, new_kwargs, results, local, whole)


def _placement(x: ShardedVar, group: Axes) -> tuple[Any, ...]:
    for dim, cut in enumerate(x.dims):
        if group[0] in cut:
            return ("shard", dim)
    ops = [op for a, op in x.partial if a == group[0]]
    return ("partial", ops[0]) if ops else ("replicate",)
