"""How one op on whole tensors runs on shards: which layout each operand must have, and how the result lies.

Where the answer is plain (one device, copies everywhere, a pointwise op on operands that are cut alike, items of a
batch) it is given here; otherwise DTensor's rules give it (`dtensor`), for the ops whose rule the sweep has
held against torch's values (`verified`). What a rule says is tried on meta tensors. An op without a rule, or
whose local op does not make shards of the promised shape, gathers its operands and runs everywhere, which is always
right; the plan says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core import collector
from tinyshard.core.layout import Axes
from tinyshard.core.trace_thread import in_trace_thread
from tinyshard.core.types import ShapedType
from tinyshard.partition import batches
from tinyshard.partition.on_meta import run_on_meta
from tinyshard.partition.op_table import (
    AS_RESHAPE,
    BATCHED,
    FILLED,
    INSTEAD,
    NEEDS_WHOLE,
    SCALES,
    not_by_rule,
    op_traits,
    scales_parts,
    with_positive_dims,
)
from tinyshard.partition.plan import Plan, everywhere, gathered
from tinyshard.partition.reshard import ShardedVar, bytes_between
from tinyshard.partition.verified import RULES
from tinyshard.runtime import lifecycle

aten = torch.ops.aten


@lifecycle.at_start
@in_trace_thread(collector.paused_for_imports)
def _load_rules() -> None:
    """Load what the first op needs (a second of imports) now, while the workers start, so that no op waits for it."""
    from tinyshard.partition import dtensor

    dtensor.warm_up()


def plan(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes) -> Plan:
    """Decide how one op runs on shards. Pure: nothing is emitted, nothing communicates.

    Raises:
        UnknownShape: only running tells the shape of the result.
    """
    op = INSTEAD.get(op, op)
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    whole = run_on_meta(op, args, kwargs, axes, local=False)
    if operands:
        # of a list the largest: torch's cat takes empty tensors of one dim beside those of more
        first = args[0] if args and isinstance(args[0], list | tuple) else operands[:1]
        ndim = max((len(x.shape) for x in first if isinstance(x, ShardedVar)), default=len(operands[0].shape))
        args, kwargs = with_positive_dims(op, args, kwargs, ndim)
    planned = _plan(op, args, kwargs, whole, axes)
    kept = [x for x in tree_leaves((planned.args, planned.kwargs)) if isinstance(x, ShardedVar)]
    if any(_is_to_be_combined(op, args, x, whole) for x in kept):

        def combined(x: ShardedVar) -> ShardedVar:
            return replace(x, partial=()) if _is_to_be_combined(op, args, x, whole) else x

        args, kwargs = tree_map_only(ShardedVar, combined, (args, kwargs))
        planned = _plan(op, args, kwargs, whole, axes)
    return _cheapest(op, args, kwargs, planned, lambda args, kwargs: _plan(op, args, kwargs, whole, axes), axes)


def _plan(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], whole: tuple[ShapedType | None, ...], axes: Axes
) -> Plan:
    """As `plan`, with the shapes of the results; it may leave operands partial that must be combined."""
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    if op in NEEDS_WHOLE or all(x.is_whole for x in operands):
        return everywhere(op, args, kwargs, whole, "it reads the memory of the whole tensor")
    if any(math.prod(x.shape) == 0 for x in operands):  # DTensor's rule for views never returns on a size of 0
        return everywhere(op, args, kwargs, whole, "an operand is empty")
    if op in BATCHED:
        batched = batches.batched(op, args, kwargs, whole, axes)
        return batched or everywhere(op, args, kwargs, whole, "only its batch dims can stay sharded")
    has_rule = str(op) in RULES
    quick = _pointwise(op, args, kwargs, whole, axes, insist=not has_rule)
    if quick is not None:
        return quick
    other = not_by_rule(op, args)
    if other:
        return everywhere(op, args, kwargs, whole, other)
    if not has_rule:
        return everywhere(op, args, kwargs, whole, "no rule for it has passed the sweep")
    from tinyshard.partition import dtensor

    led = _led(args[0], whole[0]) if op in AS_RESHAPE and not args[0].partial else None
    if led is not None:
        try:
            return dtensor.by_rule(op, (led, *args[1:]), kwargs, whole, axes, set())
        except dtensor.NoRule:
            pass  # then as it lies
    hidden: set[int] = set()  # axes whose cuts are gathered because no rule can keep them
    used = {a for x in operands for cut in x.dims for a in cut} | {a for x in operands for a, _ in x.partial}
    reason = ""
    while hidden < used:
        try:
            return replace(dtensor.by_rule(op, args, kwargs, whole, axes, hidden), why=reason)
        except dtensor.NoRule as why:
            reason = str(why)
            hidden |= set(why.axes) - hidden or used
    return everywhere(op, args, kwargs, whole, reason)


def _is_to_be_combined(op: Any, args: tuple[Any, ...], x: ShardedVar, whole: tuple[ShapedType | None, ...]) -> bool:
    """Whether an operand is partial, and the op of each part is no part of the op's result.

    A conversion rounds, wraps or clips: int8(200) and int8(100) are -56 and 100, and 100 is not int8(200). Of a maximum
    no op but a view keeps the parts: max(-inf, 2) + inf is inf, and max(-inf + inf, 2 + inf) is NaN. So with integers:
    a pool, linear of floats, rounds; of parts (1, 0) and (0, 1) the means are 0 and 0, and of their sum (1, 1) it is 1.
    """
    if not x.partial:
        return False
    if op in FILLED:
        return True
    if op in SCALES and not scales_parts(op, args, x.dtype):
        return True
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
    made = [m for m in whole if m is not None]
    if torch.Tag.pointwise not in op.tags or len(made) < len(whole):
        return None
    shape = made[0].shape
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
    return Plan(op, args, kwargs, tuple(ShardedVar(0, m.shape, m.dtype, dims) for m in made))


def _led(x: ShardedVar, made: ShapedType | None) -> ShardedVar | None:
    """The operand of a view that joins dims, with the cuts of the later dims on the first one: there they stay.

    A block of [8, 4 in two parts] is not a block of [32]; one of [8 in two parts, 4] is. To swap dims by all_to_all
    moves a block of each device; to gather would bring all blocks to all. None where no later dim is cut.
    """
    assert made is not None
    shape, want = list(x.shape), list(made.shape)
    dims = list(x.dims)
    first = target = 0
    while first < len(shape) and target < len(want):
        last, have, goal = first, shape[first], want[target]
        while have != goal:
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
    led = replace(x, dims=tuple(dims))
    return None if led.dims == x.dims else led


# ---- products: where a rule moves an operand, the plan that sends the fewest bytes, of results that are reduced too --
#
# DTensor's rules weigh what it costs to move the operands, not to reduce a result that they leave partial.
#
#     g [2048 in 8 parts, 512] @ w [512 in 8 parts, 128]
#
#     as the rule has it    g by all_to_all to columns, then a sum over all devices of 1 MB
#     w gathered            256 KB to each device, and the result is in 8 parts as g is: ZeRO's way

_PRODUCTS = {aten.mm.default, aten.bmm.default}  # others are planned as one of these and an addition
_WHY = "to gather it sends less than to move the other operand and to reduce the result"


def _cheapest(
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
    if op not in _PRODUCTS:
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
            best, least = replace(other, why=other.why or _WHY), sent
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
    for result in filter(None, planned.results):
        parts = math.prod(axes[a] for a, _ in result.partial if a not in already)
        sent += result.local(axes).nbytes * (parts - 1) // parts
    return sent
