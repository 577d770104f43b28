"""From ops on whole tensors to steps on shards: the plan of each op (`tinyshard.plan`), written into a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from tinyshard.operators import AS_RESHAPE, NEEDS_CONTIGUOUS, decomposition
from tinyshard.plan import UnknownShape, gathered, known, plan
from tinyshard.program import Builder, Value
from tinyshard.reshard import Cuts, Placed, reduce_pending, reshard

__all__ = ["UnknownShape", "apply", "apply_unknown", "bring", "decomposition", "finish", "place", "plan"]

aten = torch.ops.aten


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
            leaf = bring(builder, numbers[leaf.number], leaf, op)
        leaves.append(leaf)
    local_args, local_kwargs = tree_unflatten(leaves, form)
    name = str(aten.reshape.default if planned.op in AS_RESHAPE else planned.op)
    if op in AS_RESHAPE:
        local_args = (local_args[0], list(known(planned.local[0]).shape))
    made = [m for m in planned.local if m is not None]
    numbers_made = iter(builder.emit(name, tuple(local_args), local_kwargs, made))
    out: list[Placed | None] = []
    slots: list[int] = []
    for result, whole in zip(planned.results, planned.whole, strict=True):
        number = -1 if result is None else next(numbers_made)
        slots.append(number)
        out.append(None if result is None else Placed(number, known(whole).shape, known(whole).dtype, *result))
    if -1 in slots:
        builder.steps[-1] = replace(builder.steps[-1], results=tuple(slots))
    return out


def place(builder: Builder, have: Placed, dims: Cuts) -> Placed:
    """Emit what brings a value to `dims`, pending parts combined; an input that lies nowhere yet is put there."""
    have = _settled(builder, have, replace(have, dims=dims))
    return reshard(builder, have, dims)


def _settled(builder: Builder, have: Placed, want: Placed) -> Placed:
    """An input that is not on the devices yet lies where the first op wants it."""
    if have.number in builder.free and have.number not in builder.wanted:
        builder.wanted[have.number] = want.dims
        builder.metas[have.number] = want.local(builder.axes)
    return replace(have, dims=builder.wanted.get(have.number, have.dims))


def bring(builder: Builder, have: Placed, want: Placed, op: Any) -> Value:
    """Emit what brings an operand to the layout that the op needs."""
    have = _settled(builder, have, want)
    x = have if have.pending == want.pending and have.dims == want.dims else None
    if x is None:
        x = _keep_pending(builder, have, want) if want.pending else reshard(builder, have, want.dims)
    if op in NEEDS_CONTIGUOUS:
        return Value(builder.emit("aten.contiguous.default", (Value(x.number),), {}, [x.local(builder.axes)])[0])
    return Value(x.number)


def _keep_pending(builder: Builder, have: Placed, want: Placed) -> Placed:
    """The op wants some axes pending as they are: combine only the others."""
    rest = replace(have, pending=tuple(p for p in have.pending if p not in want.pending))
    done = reshard(builder, rest, want.dims)
    return replace(done, pending=want.pending)


def apply_unknown(
    builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> tuple[int, ...]:
    """Emit an op whose result only running can tell the shape of: every device runs it on whole operands.

    Returns:
        The numbers of its `count` results.
    """

    def whole(x: Placed) -> Value:
        return bring(builder, x, gathered(x), op)

    new_args, new_kwargs = tree_map_only(Placed, whole, (args, kwargs))
    return builder.emit(str(op), new_args, new_kwargs, [None] * count)


def finish(builder: Builder, results: Sequence[Placed | None]) -> list[Placed | None]:
    """Combine what is still pending: only final values leave a program."""
    return [None if x is None else reduce_pending(builder, x) for x in results]
