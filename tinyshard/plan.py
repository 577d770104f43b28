"""How one op on whole tensors runs on shards: which layout each operand must have, and how the result lies.

Where the answer is plain (one device, copies everywhere, a pointwise op on operands that are cut alike, items of a
batch) it is given here; otherwise DTensor's rules give it (`tinyshard.rules`). Whatever they say is tried on meta
tensors: if the local op does not make shards of the promised shape, the op gathers its operands and runs everywhere,
which is always right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.holdable import check_makes_holdable, check_result
from tinyshard.layout import Axes
from tinyshard.operators import AS_RESHAPE, BATCHED, INSTEAD, NEEDS_WHOLE, with_positive_dims
from tinyshard.planning_axes import planning_axes
from tinyshard.program import Meta
from tinyshard.reshard import Cuts, Placed

aten = torch.ops.aten


class UnknownShape(Exception):
    """The shape of the result depends on values (nonzero, boolean masks): only running the op tells it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one op.

    Attributes:
        op: the op to run on shards.
        args, kwargs: its arguments with a Placed for each operand, in the layout that it must have.
        results: for each flat result (dims, pending); None for a result that is None.
        local: metas of the results on one device.
        whole: metas of the results as whole tensors.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[Cuts, tuple[tuple[int, str], ...]] | None, ...]
    local: tuple[Meta | None, ...]
    whole: tuple[Meta | None, ...]


def plan(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes) -> Plan:
    """Decide how one op runs on shards. Pure: nothing is emitted, nothing communicates.

    Raises:
        UnknownShape: only running tells the shape of the result.
    """
    op = INSTEAD.get(op, op)
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Placed)]
    whole = _run_on_meta(op, args, kwargs, axes, local=False)
    if operands:
        args, kwargs = with_positive_dims(op, args, kwargs, len(operands[0].shape))
    if op in NEEDS_WHOLE or all(x.is_whole for x in operands):
        return _everywhere(op, args, kwargs, whole)
    if any(math.prod(x.shape) == 0 for x in operands):  # DTensor's rule for views never returns on a size of 0
        return _everywhere(op, args, kwargs, whole)
    if op in BATCHED:
        return _batched(op, args, kwargs, whole, axes) or _everywhere(op, args, kwargs, whole)
    quick = _pointwise(op, args, kwargs, whole, axes)
    if quick is not None:
        return quick
    from tinyshard import rules

    hidden: set[int] = set()  # axes whose cuts are gathered because no rule can keep them
    used = {a for x in operands for cut in x.dims for a in cut} | {a for x in operands for a, _ in x.pending}
    while hidden < used:
        try:
            return _by_rule(op, args, kwargs, whole, axes, hidden)
        except rules.NoRule as why:
            hidden |= set(why.axes) - hidden or used
    return _everywhere(op, args, kwargs, whole)


def known(meta: Meta | None) -> Meta:
    """The meta of a result that is there."""
    assert meta is not None
    return meta


def _everywhere(op: Any, args: Any, kwargs: Any, whole: tuple[Meta | None, ...]) -> Plan:
    """Every device runs the op on whole operands."""
    args, kwargs = tree_map_only(Placed, gathered, (args, kwargs))
    results = tuple(None if m is None else (((),) * len(m.shape), ()) for m in whole)
    return Plan(op, args, kwargs, results, whole, whole)


def gathered(x: Placed) -> Placed:
    """The operand, wanted whole and final on every device."""
    return replace(x, dims=((),) * len(x.shape), pending=())


def _pointwise(op: Any, args: Any, kwargs: Any, whole: tuple[Meta | None, ...], axes: Axes) -> Plan | None:
    """A pointwise op whose operands are cut alike, or not at all, needs no rule: each shard is computed alone."""
    if torch.Tag.pointwise not in op.tags or any(m is None for m in whole):
        return None
    shape = known(whole[0]).shape
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Placed)]
    cuts: list[Axes] = [()] * len(shape)
    for x in operands:
        if x.pending:
            return None
        for dim, cut in enumerate(x.dims, start=len(shape) - len(x.dims)):
            if cut and cuts[dim] not in ((), cut):
                return None
            cuts[dim] = cut or cuts[dim]
    used = [a for cut in cuts for a in cut]
    if len(set(used)) < len(used):
        return None
    dims = tuple(cuts)

    def aligned(x: Placed) -> Placed:
        tail = dims[len(dims) - len(x.dims) :]
        return replace(x, dims=tuple(cut if n > 1 else () for n, cut in zip(x.shape, tail, strict=True)))

    args, kwargs = tree_map_only(Placed, aligned, (args, kwargs))
    results = ((dims, ()),) * len(whole)
    return Plan(op, args, kwargs, results, _promised(whole, results, axes), whole)


def _batched(op: Any, args: Any, kwargs: Any, whole: tuple[Meta | None, ...], axes: Axes) -> Plan | None:
    """An op that computes each item of a batch alone: cuts of the batch dims stay, the other dims are gathered."""
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Placed)]
    count = BATCHED[op] if BATCHED[op] > 0 else len(operands[0].shape) + BATCHED[op]
    batch = operands[0].shape[:count]
    cuts = next((x.dims[:count] for x in operands if x.shape[:count] == batch and any(x.dims[:count])), ())
    if not cuts or any(m is not None and m.shape[:count] != batch for m in whole):
        return None

    def cut(x: Placed) -> Placed:
        if len(x.shape) != len(operands[0].shape) and x.shape[:count] != batch:
            return gathered(x)
        lead = tuple(c if n == b else () for c, n, b in zip(cuts, x.shape, batch, strict=False))
        return replace(x, dims=lead + ((),) * (len(x.shape) - count), pending=())

    args, kwargs = tree_map_only(Placed, cut, (args, kwargs))
    results = tuple(None if m is None else (cuts + ((),) * (len(m.shape) - count), ()) for m in whole)
    promised = _promised(whole, results, axes)
    if _run_on_meta(op, args, kwargs, axes, local=True) != promised:
        return None
    return Plan(op, args, kwargs, results, promised, whole)


def _promised(whole: Sequence[Meta | None], results: Sequence[Any], axes: Axes) -> tuple[Meta | None, ...]:
    """The metas of one device's results, if they lie as is said."""
    return tuple(
        None if m is None else Placed(0, m.shape, m.dtype, *r).local(axes) for m, r in zip(whole, results, strict=True)
    )


def _by_rule(op: Any, args: Any, kwargs: Any, whole: Any, axes: Axes, hidden: set[int]) -> Plan:
    """Ask DTensor, and try its answer on meta tensors."""
    from tinyshard import rules

    def visible(x: Placed) -> Placed:
        dims = []
        for cut in x.dims:
            kept = next((i for i, a in enumerate(cut) if a in hidden), len(cut))
            dims.append(cut[:kept])
        return replace(x, dims=tuple(dims), pending=tuple(p for p in x.pending if p[0] not in hidden))

    args, kwargs = tree_map_only(Placed, visible, (args, kwargs))
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Placed)]
    groups, refused = planning_axes(operands, merge=op not in AS_RESHAPE)
    sizes = tuple(math.prod(axes[a] for a in group) for group in groups)

    def as_operand(x: Placed) -> rules.Operand:
        x = replace(x, dims=tuple(() if (x.number, d) in refused else cut for d, cut in enumerate(x.dims)))
        return rules.Operand(x.shape, x.dtype, tuple(_placement(x, group) for group in groups))

    try:
        asked_args, asked_kwargs = tree_map_only(Placed, as_operand, (args, kwargs))
        answer = rules.ask(op, asked_args, asked_kwargs, sizes)
    except rules.NoRule as why:
        raise rules.NoRule(str(why), tuple(a for number in why.axes for a in groups[number])) from why

    def blocks(shape: Sequence[int], placements: Any) -> tuple[Cuts, tuple[tuple[int, str], ...]]:
        dims: list[Axes] = [()] * len(shape)
        pending: list[tuple[int, str]] = []
        for number, (group, placement) in enumerate(zip(groups, placements, strict=True)):
            if placement[0] == "shard":
                dims[placement[1]] += group
            elif placement[0] == "partial":
                pending += [(a, placement[1]) for a in group]
            if placement[0] == "shard" and shape[placement[1]] % math.prod(axes[a] for a in dims[placement[1]]):
                raise rules.NoRule("an uneven shard", groups[number])
        return tuple(dims), tuple(pending)

    old = iter(operands)

    def as_placed(x: rules.Operand) -> Placed:
        dims, pending = blocks(x.shape, x.placements)
        before = next(old)
        if not set(pending) <= set(before.pending):
            raise rules.NoRule("an operand as a partial sum", tuple(a for a, _ in pending))
        return replace(before, dims=dims, pending=pending)

    new_args, new_kwargs = tree_map_only(rules.Operand, as_placed, (answer.args, answer.kwargs))
    placements = answer.results if len(answer.results) == len(whole) else answer.results * len(whole)
    if len(placements) != len(whole):
        raise rules.NoRule("other results than the op has")
    results = tuple(
        None if m is None else blocks(m.shape, p if p is not None else (rules.REPLICATE,) * len(groups))
        for m, p in zip(whole, placements, strict=True)
    )
    promised = _promised(whole, results, axes)
    try:
        local = _run_on_meta(answer.op, new_args, new_kwargs, axes, local=True)
    except Exception as error:
        raise rules.NoRule(f"the op refuses its shards: {error}") from error
    if local != promised:
        raise rules.NoRule(f"the op makes {local} of its shards, not {promised}")
    return Plan(answer.op, new_args, new_kwargs, results, local, whole)


def _placement(x: Placed, group: Axes) -> tuple[Any, ...]:
    for dim, cut in enumerate(x.dims):
        if group[0] in cut:
            return ("shard", dim)
    ops = [op for a, op in x.pending if a == group[0]]
    return ("partial", ops[0]) if ops else ("replicate",)


def _run_on_meta(op: Any, args: Any, kwargs: Any, axes: Axes, *, local: bool) -> tuple[Meta | None, ...]:
    """Shapes and dtypes of the results, on whole tensors or on shards.

    Raises:
        UnknownShape: the shape depends on values.
        DtypeError: no device can hold such a result.
    """
    check_makes_holdable(op)

    def empty(x: Placed) -> torch.Tensor:
        return torch.empty(x.local(axes).shape if local else x.shape, dtype=x.dtype, device="meta")

    by_values = torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags
    if by_values and not _masks_are_plain(op, args):
        raise UnknownShape(str(op))
    meta_args, meta_kwargs = tree_map_only(Placed, empty, (args, kwargs))
    if "device" in meta_kwargs:
        meta_kwargs = {**meta_kwargs, "device": torch.device("meta")}
    op = aten.reshape.default if op in AS_RESHAPE else op
    try:
        out = op(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise UnknownShape(str(op)) from error
    flat = out if isinstance(out, list | tuple) else (out,)
    for t in flat:
        if isinstance(t, torch.Tensor):
            check_result(op, t)
    return tuple(Meta(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in flat)


def _masks_are_plain(op: Any, args: Any) -> bool:
    """index.Tensor has a shape of its own only where it is given a boolean mask."""
    if op not in (aten.index.Tensor, aten._unsafe_index.Tensor):
        return False
    return all(x is None or x.dtype not in (torch.bool, torch.uint8) for x in args[1])
