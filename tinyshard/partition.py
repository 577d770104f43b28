"""From ops on whole tensors to steps on shards.

For each op: which layout must each operand have, what does a device then compute, and how does the result lie? Where the
answer is plain (one device, copies everywhere, a pointwise op on operands that are cut alike) it is given here; otherwise
DTensor's rules give it (`tinyshard.rules`). Whatever they say is tried on meta tensors: if the local op does not make
shards of the promised shape, the op gathers its operands and runs everywhere, which is always right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from tinyshard.layout import Axes
from tinyshard.program import Builder, Meta, Value
from tinyshard.reshard import Cuts, Placed, reduce_pending, reshard

aten = torch.ops.aten

# ops that look at strides: on a device they get contiguous shards; the views among them run as reshape
_AS_RESHAPE = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
_NEEDS_CONTIGUOUS = {aten.as_strided.default, aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default}
_NEEDS_WHOLE = {aten.as_strided.default}

_DECOMPOSED: dict[Any, Callable[..., Any]] = {  # DTensor wants their bias as a partial sum; apart, each has a rule
    aten.addmm.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.mm(a, b), alpha) + _scaled(c, beta),
    aten.addmv.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.mv(a, b), alpha) + _scaled(c, beta),
    aten.addbmm.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.bmm(a, b).sum(0), alpha) + _scaled(c, beta),
    aten.baddbmm.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.bmm(a, b), alpha) + _scaled(c, beta),
}


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1 else x * factor


def decomposition(op: Any) -> Callable[..., Any] | None:
    """The function that says `op` in ops that shard better, or None."""
    return _DECOMPOSED.get(op)


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


def apply(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Placed | None]:
    """Emit one op on whole tensors as steps on shards.

    Args:
        builder: the program being built.
        op: an OpOverload.
        args, kwargs: its arguments, with a `Placed` for each tensor.

    Returns:
        A Placed for each result, None for a result that is None, in flat order.

    Raises:
        UnknownShape: only running tells the shape of the result.

    Communication: what the plan needs to bring the operands into place; results may be left pending.
    """
    planned = plan(op, args, kwargs, builder.axes)
    given, _ = tree_flatten((args, kwargs))
    wanted, form = tree_flatten((planned.args, planned.kwargs))
    numbers = {x.number: x for x in given if isinstance(x, Placed)}
    leaves: list[Any] = []
    for leaf in wanted:
        if isinstance(leaf, Placed):
            leaf = _bring(builder, numbers[leaf.number], leaf, op)
        leaves.append(leaf)
    local_args, local_kwargs = tree_unflatten(leaves, form)
    name = str(aten.reshape.default if planned.op in _AS_RESHAPE else planned.op)
    if op in _AS_RESHAPE:
        local_args = (local_args[0], list(_meta(planned.local[0]).shape))
    made = [m for m in planned.local if m is not None]
    numbers_made = iter(builder.emit(name, _plain(local_args), local_kwargs, made))
    out: list[Placed | None] = []
    slots: list[int] = []
    for result, whole in zip(planned.results, planned.whole, strict=True):
        number = -1 if result is None else next(numbers_made)
        slots.append(number)
        out.append(None if result is None else Placed(number, _meta(whole).shape, _meta(whole).dtype, *result))
    if -1 in slots:
        builder.steps[-1] = replace(builder.steps[-1], results=tuple(slots))
    return out


def _meta(meta: Meta | None) -> Meta:
    assert meta is not None
    return meta


def _plain(args: Any) -> tuple[Any, ...]:
    return tuple(args)


def _bring(builder: Builder, have: Placed, want: Placed, op: Any) -> Value:
    """Emit what brings an operand to the layout that the op needs."""
    if have.number in builder.free and have.number not in builder.wanted:
        builder.wanted[have.number] = want.dims
        builder.metas[have.number] = want.local(builder.axes)
        have = want
    x = have if have.pending == want.pending and have.dims == want.dims else None
    if x is None:
        x = _keep_pending(builder, have, want) if want.pending else reshard(builder, have, want.dims)
    if op in _NEEDS_CONTIGUOUS:
        args = ((Value(x.number),), {"memory_format": torch.contiguous_format}, [x.local(builder.axes)])
        return Value(builder.emit("aten.clone.default", *args)[0])
    return Value(x.number)


def _keep_pending(builder: Builder, have: Placed, want: Placed) -> Placed:
    """The op wants some axes pending as they are: combine only the others."""
    rest = replace(have, pending=tuple(p for p in have.pending if p not in want.pending))
    done = reshard(builder, rest, want.dims)
    return replace(done, pending=want.pending)


def plan(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Axes) -> Plan:
    """Decide how one op runs on shards. Pure: nothing is emitted, nothing communicates.

    Raises:
        UnknownShape: only running tells the shape of the result.
    """
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Placed)]
    whole = _run_on_meta(op, args, kwargs, axes, local=False)
    if op in _NEEDS_WHOLE or all(x.is_whole for x in operands):
        return _everywhere(op, args, kwargs, whole)
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


def _everywhere(op: Any, args: Any, kwargs: Any, whole: tuple[Meta | None, ...]) -> Plan:
    """Every device runs the op on whole operands."""
    args, kwargs = tree_map_only(Placed, _gathered, (args, kwargs))
    results = tuple(None if m is None else (((),) * len(m.shape), ()) for m in whole)
    return Plan(op, args, kwargs, results, whole, whole)


def _gathered(x: Placed) -> Placed:
    return replace(x, dims=((),) * len(x.shape), pending=())


def _pointwise(op: Any, args: Any, kwargs: Any, whole: tuple[Meta | None, ...], axes: Axes) -> Plan | None:
    """A pointwise op whose operands are cut alike, or not at all, needs no rule: each shard is computed alone."""
    if torch.Tag.pointwise not in op.tags or any(m is None for m in whole):
        return None
    shape = _meta(whole[0]).shape
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
    local = tuple(Placed(0, _meta(m).shape, _meta(m).dtype, dims).local(axes) for m in whole)
    return Plan(op, args, kwargs, ((dims, ()),) * len(whole), local, whole)


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
    groups, refused = planning_axes(operands, merge=op not in _AS_RESHAPE)
    sizes = tuple(math.prod(axes[a] for a in group) for group in groups)

    def as_operand(x: Placed) -> rules.Operand:
        x = replace(x, dims=tuple(() if (x.number, d) in refused else cut for d, cut in enumerate(x.dims)))
        return rules.Operand(x.shape, x.dtype, tuple(_placement(x, group) for group in groups))

    try:
        answer = rules.ask(op, *tree_map_only(Placed, as_operand, (args, kwargs)), sizes)
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
    promised = tuple(
        None if m is None or r is None else Placed(0, m.shape, m.dtype, *r).local(axes)
        for m, r in zip(whole, results, strict=True)
    )
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


def planning_axes(operands: Sequence[Placed], *, merge: bool = True) -> tuple[list[Axes], set[tuple[int, int]]]:
    """The axes to plan on: as few as the operands need, ordered so that each cut names them in ascending order.

    Args:
        operands: the tensors that the op takes.
        merge: join axes that all operands use as one; a view may need them apart.

    Returns:
        Groups of axes that all operands use as one, and the (value number, dim) whose cut fits no such order.

    Example:
        >>> x = Placed(0, (8, 8), torch.float32, ((2, 0), (1,)))
        >>> planning_axes([x])
        ([(2, 0), (1,)], set())
    """
    cuts = [(x, d, cut) for x in sorted(operands, key=lambda x: -math.prod(x.shape)) for d, cut in enumerate(x.dims)]
    refused: set[tuple[int, int]] = set()
    after: dict[int, set[int]] = {}
    for x, d, cut in cuts:
        trial = {a: set(b) for a, b in after.items()}
        for a in cut:
            trial.setdefault(a, set())
        for a, b in zip(cut, cut[1:], strict=False):
            trial[a].add(b)
        if _order(trial) is None:
            refused.add((x.number, d))
        else:
            after = trial
    for x in operands:
        for a, _ in x.pending:
            after.setdefault(a, set())
    order = _order(after) or []
    kept = [cut for x, d, cut in cuts if (x.number, d) not in refused]
    reduced = [dict(x.pending) for x in operands]
    groups: list[Axes] = []
    for a in order:
        if merge and groups and _used_as_one(groups[-1][-1], a, kept, reduced):
            groups[-1] += (a,)
        else:
            groups.append((a,))
    return groups, refused


def _used_as_one(a: int, b: int, cuts: Sequence[Axes], pending: Sequence[dict[int, str]]) -> bool:
    for cut in cuts:
        if (a in cut or b in cut) and (a, b) not in zip(cut, cut[1:], strict=False):
            return False
    return all(p.get(a) == p.get(b) for p in pending)


def _order(after: dict[int, set[int]]) -> list[int] | None:
    """A topological order, neighbours of one cut kept together where possible; None if there is a cycle."""
    order: list[int] = []
    left = {a: set(b) for a, b in after.items()}
    while left:
        blocked = {b for bs in left.values() for b in bs}
        free = [a for a in left if a not in blocked]
        if not free:
            return None
        follows = [a for a in free if order and a in after.get(order[-1], ())]
        chosen = min(follows or free)
        order.append(chosen)
        del left[chosen]
    return order


def _run_on_meta(op: Any, args: Any, kwargs: Any, axes: Axes, *, local: bool) -> tuple[Meta | None, ...]:
    """Shapes and dtypes of the results, on whole tensors or on shards.

    Raises:
        UnknownShape: the shape depends on values.
    """

    def empty(x: Placed) -> torch.Tensor:
        return torch.empty(x.local(axes).shape if local else x.shape, dtype=x.dtype, device="meta")

    if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
        if not _masks_are_plain(op, args):
            raise UnknownShape(str(op))
    meta_args, meta_kwargs = tree_map_only(Placed, empty, (args, kwargs))
    if "device" in meta_kwargs:
        meta_kwargs = {**meta_kwargs, "device": torch.device("meta")}
    if op in _AS_RESHAPE:
        op = aten.reshape.default
    try:
        out = op(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise UnknownShape(str(op)) from error
    flat = out if isinstance(out, list | tuple) else (out,)
    return tuple(Meta(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in flat)


def _masks_are_plain(op: Any, args: Any) -> bool:
    """index.Tensor has a shape of its own only where it is given a boolean mask."""
    if op not in (aten.index.Tensor, aten._unsafe_index.Tensor):
        return False
    return all(x is None or x.dtype not in (torch.bool, torch.uint8) for x in args[1])


def apply_unknown(
    builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> tuple[int, ...]:
    """Emit an op whose result only running can tell the shape of: every device runs it on whole operands.

    Returns:
        The numbers of its `count` results.
    """

    def whole(x: Placed) -> Value:
        return _bring(builder, x, _gathered(x), op)

    new_args, new_kwargs = tree_map_only(Placed, whole, (args, kwargs))
    return builder.emit(str(op), new_args, new_kwargs, [None] * count)


def finish(builder: Builder, results: Sequence[Placed | None]) -> list[Placed | None]:
    """Combine what is still pending: only final values leave a program."""
    return [None if x is None else reduce_pending(builder, x) for x in results]
