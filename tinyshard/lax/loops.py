"""fori_loop, and map: scans of a counter, and of rows without a carry."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.core.jax_hints import check_others
from tinyshard.lax.scan import flat, scan
from tinyshard.lax.while_loop import while_loop
from tinyshard.transforms.vmap import vmap


def fori_loop(
    lower: int, upper: int, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool = 1, **others: Any
) -> Any:
    """Loop over the numbers from `lower` to `upper` - 1: `val = body_fun(i, val)`.

    Between ints it is a `scan` of the numbers: one step of a program, differentiable, and a Python loop on plain
    tensors. With a computed bound it is a `while_loop`, which has no reverse-mode gradient.

    Args:
        lower: the first number, an int or an int[].
        upper: one more than the last number, an int or an int[].
        body_fun: `body_fun(i, val)`: a round; i is an int64[], and the result has the tree, shapes and dtypes of val.
        init_val: the first value, a tree of tensors and numbers.
        unroll: the number of rounds in one body, between ints; True for all of them.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        The last value; init_val if there are no rounds.

    Raises:
        DtypeError: bounds that are not whole numbers, or a value that changes its tree, shape or dtype from round to
            round.

    Communication: that of `scan`; with a computed bound that of `while_loop`.

    Example:
        >>> fori_loop(0, 5, lambda i, total: total + i, torch.tensor(0))
        tensor(10)
    """
    check_others(fori_loop, others)
    first, last = _bound(lower, "lower"), _bound(upper, "upper")
    if isinstance(first, torch.Tensor) or isinstance(last, torch.Tensor):
        start = torch.as_tensor(first, dtype=torch.int64), torch.as_tensor(last, dtype=torch.int64), init_val
        return while_loop(_is_below, _Next(body_fun), start)[2]
    return scan(_Counted(body_fun), init_val, torch.arange(first, max(first, last)), unroll=unroll)[0]


@dataclass(frozen=True)
class _Counted:
    """A body of fori_loop as one of scan; equal for equal bodies, so that it is traced once."""

    body: Callable[[Any, Any], Any]

    def __call__(self, val: Any, i: Any) -> tuple[Any, None]:
        return self.body(i, val), None


def _is_below(value: tuple[torch.Tensor, torch.Tensor, Any]) -> torch.Tensor:
    return value[0] < value[1]


@dataclass(frozen=True)
class _Next:
    """A body of fori_loop as one of while_loop, likewise."""

    body: Callable[[Any, Any], Any]

    def __call__(self, value: tuple[torch.Tensor, torch.Tensor, Any]) -> Any:
        i, last, val = value
        return i + 1, last, self.body(i, val)


def _bound(value: Any, name: str) -> Any:
    """A bound: an int, or a tensor. Raises DtypeError."""
    if isinstance(value, torch.Tensor):
        if not value.dim() and value.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            return value.to(torch.int64)
    elif hasattr(value, "__index__"):
        return operator.index(value)
    raise DtypeError(
        "the bounds of fori_loop are whole numbers",
        got=f"{name}: {shaped_type_of(value) if isinstance(value, torch.Tensor) else type(value).__name__}",
        rule="it counts from lower to upper - 1",
    )


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None, **others: Any) -> Any:
    """Call a function on each row of some operands, one after the other, and stack the results.

    As `vmap(f)(xs)`, in the memory of one row: it is a `scan` without a carry.

    Args:
        f: a function of a row, a tree as xs; its result is a tree of tensors.
        xs: a tree of tensors with the same dim 0.
        batch_size: how many rows are computed at once, by vmap; the remaining rows come last.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        The results, stacked along a new dim 0.

    Raises:
        MappingError: no rows, rows whose numbers differ, or a batch_size below 1.

    Communication: that of the function, for each row. Operands are gathered along dim 0.

    Example:
        >>> map(lambda x: x * 2, torch.arange(3))
        tensor([0, 2, 4])
        >>> map(lambda x: x * 2, torch.arange(3), batch_size=2)
        tensor([0, 2, 4])
    """
    check_others(map, others)
    rows, form = flat(xs)
    if not rows:
        raise MappingError("map has no rows", got="xs without a tensor", rule="f is called on each row of xs")
    if batch_size is None or not all(x.dim() and len(x) for x in rows):
        return scan(_OnRows(f), None, xs)[1]
    size = operator.index(batch_size)
    if size < 1:
        raise MappingError("map's batch_size is at least 1", got=f"batch_size={size}")
    whole = len(rows[0]) // size * size
    parts = []
    if whole:
        grouped = tree_unflatten([x[:whole].unflatten(0, (-1, size)) for x in rows], form)
        results, form_of_results = flat(scan(_OnRows(f, is_batched=True), None, grouped)[1])
        parts.append([x.flatten(0, 1) for x in results])
    if whole < len(rows[0]):
        results, form_of_results = flat(vmap(f)(tree_unflatten([x[whole:] for x in rows], form)))
        parts.append(results)
    return tree_unflatten([torch.cat(some) for some in zip(*parts, strict=True)], form_of_results)


@dataclass(frozen=True)
class _OnRows:
    """A function of a row as a body of scan; of several rows at once, if it is batched."""

    function: Callable[[Any], Any]
    is_batched: bool = False

    def __call__(self, carry: None, row: Any) -> tuple[None, Any]:
        return carry, (vmap(self.function) if self.is_batched else self.function)(row)
