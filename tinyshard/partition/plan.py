"""The plan of one op: the layout that each operand must have, and the layout of each result.

An op without a rule gathers its operands and runs on every device, which is always right; the plan says why.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from tinyshard.core import collector
from tinyshard.core.cache import frozen_leaf
from tinyshard.core.layout import Axes
from tinyshard.core.trace_thread import in_trace_thread
from tinyshard.core.types import ShapedType
from tinyshard.partition.cat_split import JOINED
from tinyshard.partition.decompositions import is_replaced_where_cut
from tinyshard.partition.layouts import choose
from tinyshard.partition.op_table import INSTEAD
from tinyshard.partition.reshard import ShardedVar
from tinyshard.partition.rule import Dim, Rule
from tinyshard.partition.rules import Call, rule_of
from tinyshard.partition.shape_inference import run_on_meta
from tinyshard.runtime import lifecycle

aten = torch.ops.aten

# rows looked up in a table cut by columns would be gathered in all later ops: gather the table, like other parameters
_GATHERED = {aten.embedding.default}


MOST_PLANS = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one op.

    Attributes:
        op: the op to run on shards.
        leaves: its arguments, flat, with a ShardedVar for each operand, in the layout that it must have, its number
            being its position among the operands.
        form: of the arguments: `tree_unflatten(leaves, form)` is (args, kwargs).
        results: the layout of each flat result, number 0; None for a result that is None.
        why: for each operand why it is gathered, if it is.
        order: of a view that gives the dims of its operand another order, these dims in that order; else None.
    """

    op: Any
    leaves: tuple[Any, ...]
    form: TreeSpec
    results: tuple[ShardedVar | None, ...]
    why: tuple[str, ...]
    order: tuple[int, ...] | None = None


@lifecycle.at_start
@lru_cache(maxsize=1)
@in_trace_thread(collector.paused_for_imports)
def warm_up() -> None:
    """Plan once while the workers start: torch imports a second of itself when the first op runs on meta tensors."""
    # the interpreter's last collection would walk all of that, for half a second, and free memory that the system frees
    atexit.register(gc.freeze)
    rows = ShardedVar(0, (2, 2), torch.float32, ((0,), ()))
    for op, args in ((aten.add.Tensor, (rows, 1)), (aten.mm.default, (rows, rows))):
        plan(op, args, {}, (2,))


def plan(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes) -> Plan:
    """Decide how one op runs on shards. Pure: nothing is emitted, nothing communicates.

    Args:
        op: an OpOverload.
        args, kwargs: its arguments, with a ShardedVar for each operand in its present layout.
        axes: sizes of the program's axes.

    Returns:
        The plan; the number of an operand in it is its position among the operands.

    Raises:
        UnknownShape: only running tells the shape of the result.
    """
    leaves, form = tree_flatten((args, kwargs))
    positions = itertools.count()
    leaves = [replace(x, number=next(positions)) if isinstance(x, ShardedVar) else x for x in leaves]
    return _plan(op, tuple(leaves), tuple(map(frozen_leaf, leaves)), form, axes, torch.get_default_dtype())


@lru_cache(maxsize=MOST_PLANS)
def _plan(op: Any, leaves: tuple[Any, ...], key: Any, form: TreeSpec, axes: Axes, default: torch.dtype) -> Plan:
    """The plan, shared by the equal layers of a network. `key` distinguishes leaves that are equal, as 1 and 1.0."""
    args, kwargs = tree_unflatten(leaves, form)
    op = INSTEAD.get(op, op)
    whole = run_on_meta(op, args, kwargs)
    operands = [x for x in leaves if isinstance(x, ShardedVar)]
    if all(x.is_whole for x in operands):
        return replicated_plan(op, args, kwargs, whole, "")
    if any(0 in x.shape for x in operands):
        return replicated_plan(op, args, kwargs, whole, "an operand is empty")
    rule = rule_of(Call.of(op, args, kwargs, whole))
    if rule is None:
        return replicated_plan(op, args, kwargs, whole, "there is no rule for it")
    moves = not is_replaced_where_cut(op) and op not in JOINED | _GATHERED
    chosen = choose(rule, operands, [r for r in whole if r is not None], axes, moves=moves)
    wanted, results = iter(chosen.operands), iter(chosen.results)
    args, kwargs = tree_unflatten([next(wanted) if isinstance(x, ShardedVar) else x for x in leaves], form)
    parts = {f: math.prod(axes[a] for a in cut) for f, cut in chosen.cut.items()}
    order = _order(op, rule, operands[0], whole[0]) if op.is_view and not kwargs else None
    op, args, kwargs = on_shards(op, rule, args, kwargs, parts)
    why = [_why_gathered(rule, *each) for each in zip(rule.operands, operands, chosen.operands, strict=True)]
    leaves, form = _flat(args, kwargs)
    return Plan(op, leaves, form, tuple(None if r is None else next(results) for r in whole), tuple(why), order)


def _flat(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], TreeSpec]:
    leaves, form = tree_flatten((args, kwargs))
    return tuple(leaves), form


def _order(op: Any, rule: Rule, operand: ShardedVar, result: ShapedType | None) -> tuple[int, ...] | None:
    """Of a view the dims of its operand in the order that they have in its result, if that is all that it changes."""
    is_alone = len(rule.operands) == len(rule.results) == 1 and rule.passes == "moved"
    if not is_alone or rule.arguments or result is None or result.dtype != operand.dtype:
        return None
    before = [dim or (n,) for dim, n in zip(rule.operands[0], operand.shape, strict=True)]  # of size 1 it has no factor
    after = [dim or (n,) for dim, n in zip(rule.results[0], result.shape, strict=True)]
    order: list[int] = []
    for dim in after:
        order += [d for d, other in enumerate(before) if other == dim and d not in order][:1]
    shape = tuple(operand.shape[d] for d in order)
    return tuple(order) if len(order) == len(before) and shape == result.shape else None


def clear_plans() -> None:
    """Drop the plans that are kept."""
    _plan.cache_clear()


def on_shards(
    op: Any, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any], parts: Mapping[str, int]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The op and its arguments for one device's shards: sizes among the arguments are those of blocks.

    Args:
        op: the op.
        rule: its rule.
        args, kwargs: its arguments.
        parts: factor -> into how many parts it is cut.
    """
    if rule.on_shards is not None:
        return rule.on_shards[0], (args[0], *rule.on_shards[1]), {}
    new_args, new_kwargs = list(args), dict(kwargs)
    names = [a.name for a in op._schema.arguments]
    for name, dims in rule.arguments.items():
        place = names.index(name)
        if name not in kwargs and place >= len(args):
            continue  # it is not given
        counts = [math.prod(parts.get(f, 1) for f in dim) for dim in dims]
        size = kwargs[name] if name in kwargs else args[place]
        if isinstance(size, int):
            local: Any = size // counts[0]
        else:
            local = [n // k if n > 0 else n for n, k in itertools.zip_longest(size, counts, fillvalue=1)]
        if name in kwargs:
            new_kwargs[name] = local
        else:
            new_args[place] = local
    return op, tuple(new_args), new_kwargs


def _why_gathered(rule: Rule, dims: Sequence[Dim], have: ShardedVar, want: ShardedVar) -> str:
    """The reason for each dim of an operand that loses cuts; empty if none does."""
    reasons: dict[str, None] = {}
    for d, (dim, had, wanted) in enumerate(zip(dims, have.dims, want.dims, strict=True)):
        if len(wanted) >= len(had):
            continue
        names = " ".join(dim) or f"dim {d} of an operand"
        if not dim or rule.whole & set(dim):
            reason = f"{next((f for f in dim if f in rule.whole), names)} of `{rule}` must be whole"
        elif len(dim) > 1:
            reason = f"blocks of ({names}) are not blocks of its result in `{rule}`"
        else:
            reason = f"to gather {names} of `{rule}` sends the fewest bytes"
        reasons[reason] = None
    return "; ".join(reasons)


def replicated_plan(op: Any, args: Any, kwargs: Any, whole: tuple[ShapedType | None, ...], why: str) -> Plan:
    """The plan in which every device runs the op on whole operands, for the given reason."""
    reasons = [why if any(x.dims) else "" for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    args, kwargs = tree_map_only(ShardedVar, as_replicated, (args, kwargs))
    results = tuple(None if m is None else ShardedVar(0, m.shape, m.dtype, ((),) * len(m.shape)) for m in whole)
    return Plan(op, *_flat(args, kwargs), results, tuple(reasons))


def as_replicated(x: ShardedVar) -> ShardedVar:
    """The operand, whole and final on every device."""
    return replace(x, dims=((),) * len(x.shape), partial=())


def local_types(results: Sequence[ShardedVar | None], axes: Axes) -> tuple[ShapedType | None, ...]:
    """Shape and dtype of one device's results."""
    return tuple(None if x is None else x.local(axes) for x in results)
