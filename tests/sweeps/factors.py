"""A rule held without devices: an op run on each block of its operands, the results joined or combined."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.sweeps.aten_calls import Call, same
from tinyshard.core.types import ShapedType
from tinyshard.partition import rules
from tinyshard.partition.op_table import AS_RESHAPE
from tinyshard.partition.plan import on_shards
from tinyshard.partition.rule import SAME, Dims, Rule

COMBINED = {
    "sum": sum,
    "avg": lambda parts: sum(parts) / len(parts),
    "max": lambda parts: torch.stack(parts).amax(0),
    "min": lambda parts: torch.stack(parts).amin(0),
    "product": math.prod,
}


def problems(op: Any, call: Call) -> Iterator[str]:
    """What a rule says wrongly of a call: along which factor, or of parts of a sum."""
    rule, expected = rule_for(op, call)
    if rule is None:
        return
    told = f"`{rule}` for {[x for x in tree_flatten(call)[0] if not isinstance(x, torch.Tensor)]}"
    for cut in cuts(rule):
        wrong = wrong_along(op, call, rule, cut, expected)
        if wrong:
            yield f"{wrong}, cut {cut} by {told}"
    wrong = wrong_of_parts(op, call, rule, expected) if rule.passes else ""
    if wrong:
        yield f"{wrong}, {rule.passes} by {told}"


def rule_for(op: Any, call: Call) -> tuple[Rule | None, list[Any]]:
    """The rule of a call, and what torch makes of it; no rule where the partitioner would not ask for one."""
    args, kwargs = call
    out = op(*args, **kwargs)
    results = list(out) if isinstance(out, list | tuple) else [out]
    types = [ShapedType(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else None for x in results]
    operands = [x for x in tree_flatten(call)[0] if isinstance(x, torch.Tensor)]
    if any(x.numel() == 0 for x in operands):
        return None, results
    return rules.rule_of(rules.Call.of(op, args, kwargs, types)), results


def cuts(rule: Rule) -> Iterator[dict[str, int]]:
    """For each factor that may be cut one cut of it; those before it in a dim are cut whole."""
    for f, size in rule.sizes.items():
        dims = [dim for of in (*rule.operands, *rule.results) for dim in of if f in dim]
        before = dict.fromkeys(g for dim in dims for g in dim[: dim.index(f)])
        further = {h for g in before for of in (*rule.operands, *rule.results) for dim in of if g in dim
                   for h in dim[: dim.index(g)]}  # fmt: skip
        if f in rule.whole or rule.whole & before.keys() or not further <= before.keys():
            continue
        if not any(f in dim for of in rule.operands for dim in of):
            continue
        parts = next((n for n in (2, 3, 5, 7) if size % n == 0), size)
        yield {**{g: rule.sizes[g] for g in before}, f: parts}


def wrong_along(op: Any, call: Call, rule: Rule, cut: Mapping[str, int], expected: Sequence[Any]) -> str:
    """How what is made of blocks differs from what torch makes; empty if it does not."""
    leaves, form = tree_flatten(call)
    made: dict[tuple[int, ...], list[Any]] = {}
    places = [()]
    for n in cut.values():
        places = [(*place, i) for place in places for i in range(n)]
    for place in places:
        at = dict(zip(cut, place, strict=True))
        dims = iter(rule.operands)
        local = [_block(x, next(dims), cut, at) if isinstance(x, torch.Tensor) else x for x in leaves]
        args, kwargs = tree_unflatten(local, form)
        out = _on_block(op, rule, args, kwargs, cut)
        made[place] = [x for x in (out if isinstance(out, list | tuple) else [out]) if isinstance(x, torch.Tensor)]
    tensors = [x for x in expected if isinstance(x, torch.Tensor)]
    for number, want in enumerate(tensors):
        got = _assembled(made, number, rule, list(cut.items()), ())
        if isinstance(got, str):
            return got
        if got.dtype != want.dtype and rule.combined[number]:
            got = got.to(want.dtype)
        if got.shape != want.shape or not same(got, want, want):
            return f"result {number} is wrong"
    return ""


def _on_block(op: Any, rule: Rule, args: Any, kwargs: Any, cut: Mapping[str, int]) -> Any:
    op, args, kwargs = on_shards(op, rule, args, kwargs, cut)
    op = torch.ops.aten.reshape.default if op in AS_RESHAPE else op
    return op(*args, **kwargs)


def _block(x: torch.Tensor, dims: Dims, cut: Mapping[str, int], at: Mapping[str, int]) -> torch.Tensor:
    for d, dim in enumerate(dims):
        for f in dim:
            if f in cut:
                x = x.chunk(cut[f], d)[at[f]]
    return x.contiguous()


def _assembled(
    made: Mapping[tuple[int, ...], Sequence[torch.Tensor]],
    number: int,
    rule: Rule,
    left: Sequence[tuple[str, int]],
    place: tuple[int, ...],
) -> Any:
    if not left:
        return made[place][number]
    (f, count), *rest = left
    parts = [_assembled(made, number, rule, rest, (*place, i)) for i in range(count)]
    complaint = next((p for p in parts if isinstance(p, str)), None)
    if complaint is not None:
        return complaint
    how = rule.combined[number].get(f)
    if how is None:
        return torch.cat(parts, next(d for d, dim in enumerate(rule.results[number]) if f in dim))
    if how == SAME:
        alike = all(same(p, parts[0], parts[0]) for p in parts)
        return parts[0] if alike else f"result {number} is not the same for each block of {f}"
    return COMBINED[how](parts)


def wrong_of_parts(op: Any, call: Call, rule: Rule, expected: Sequence[Any]) -> str:
    """How the op on parts of a sum is no part of its result, where the rule says that it is; empty if it is."""
    leaves, form = tree_flatten(call)
    tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    split = set(tensors[:1] if rule.passes == "first" else tensors)
    dtypes = {x.dtype for x in (*(leaves[i] for i in split), *expected) if x is not None}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        return ""
    generator = torch.Generator().manual_seed(0)
    parts = {i: torch.randint(-64, 64, leaves[i].shape, generator=generator).to(leaves[i].dtype) / 16 for i in split}
    made = []
    for k in range(2):
        local = [x if i not in split else parts[i] if k else x - parts[i] for i, x in enumerate(leaves)]
        args, kwargs = tree_unflatten(local, form)
        out = op(*args, **kwargs)
        made.append(list(out) if isinstance(out, list | tuple) else [out])
    for number, want in enumerate(expected):
        one, other = (m[number] for m in made)
        total = one if rule.passes == "unread" else one + other
        if not same(total, want, want):
            return f"result {number} of parts of a sum is no part of a sum"
    return ""
