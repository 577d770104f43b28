"""vmap: a function of one example becomes a function of many, over torch.func's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard import names
from tinyshard.array import one_call
from tinyshard.errors import DtypeError, MappingError, message
from tinyshard.mapped.axes import axis_length, checked_in_axes, checked_out_axes
from tinyshard.placement import as_tensor
from tinyshard.trace import lift_outer


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """Map a function over an axis of its arguments: all examples at once, no loop.

    Args:
        fun: a function of trees of tensors that returns a tree of tensors; written for one example.
        in_axes: the dim of each argument that counts the examples: an int (negative ones count from the end), None for
            an argument that all examples share, or a tuple with one entry for each positional argument, each a tree
            that is a prefix of the argument. Arguments by name are mapped over dim 0.
        out_axes: likewise the dim of the results; None for a result that is the same for all examples.
        axis_name: what collectives inside `fun` call the axis.
        axis_size: the number of examples, needed where no argument is mapped.

    Returns:
        A function of the batched arguments. Plain tensors give plain tensors, Arrays give Arrays; a cut batch dim
        stays cut where the ops allow it.

    Raises:
        MappingError: sizes that differ, a dim that is not there, or in_axes that do not fit the arguments.
        DtypeError: `fun` is no function.

    Communication: that of the batched ops; for plain tensors none.

    Example:
        >>> xs, w = torch.arange(6.0).reshape(2, 3), torch.ones(3)
        >>> vmap(torch.dot, in_axes=(0, None))(xs, w)
        tensor([ 3., 12.])
    """
    if not callable(fun):
        raise DtypeError(message("vmap takes a function", got=f"{fun!r} ({type(fun).__name__})", try_="ts.vmap(f)"))

    @functools.wraps(fun)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        leaves = [None if x is None else lift_outer(x) if isinstance(x, torch.Tensor) else as_tensor(x) for x in leaves]
        args, kwargs = tree_unflatten(leaves, form)
        dims = checked_in_axes("vmap", fun, in_axes, args, kwargs)
        size = axis_length("vmap", fun, args, kwargs, dims, axis_size)
        return _run(fun, leaves, form, dims, out_axes, axis_name, size)

    return batched


def _run(
    fun: Any, leaves: Sequence[Any], form: Any, dims: Sequence[int | None], out_axes: Any, name: str | None, size: int
) -> Any:
    found: list[Any] = []  # how the results are put together, and those that are the same for all examples

    def flat(index: torch.Tensor, *xs: Any) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree_unflatten(xs, form)
        if name is None:
            out = fun(*args, **kwargs)
        else:
            with names.mapped_by_vmap(name, size, index):
                out = fun(*args, **kwargs)
        results, out_form = tree_flatten(out)
        results = [x if x is None or isinstance(x, torch.Tensor) else as_tensor(x) for x in results]
        axes = checked_out_axes("vmap", out_axes, out)
        for i, (x, axis) in enumerate(zip(results, axes, strict=True)):
            if x is not None and axis is None:
                _check_same_for_all(x, i)
        found[:] = [results, out_form, axes]
        return tuple(x for x, axis in zip(results, axes, strict=True) if x is not None and axis is not None)

    with one_call():
        index = torch.arange(size, dtype=torch.int32)
        mapped = torch.func.vmap(flat, in_dims=(0, *dims), out_dims=0)(index, *leaves) if size else ()
    if not size:
        raise MappingError(message("vmap over an axis of size 0", got="no example", try_="at least one example"))
    results, out_form, axes = found
    made = iter(mapped)
    whole = [
        x if x is None or axis is None else _at(next(made), axis, x.dim())
        for x, axis in zip(results, axes, strict=True)
    ]
    return tree_unflatten(whole, out_form)


def _at(x: torch.Tensor, axis: int, ndim: int) -> torch.Tensor:
    if not -ndim - 1 <= axis <= ndim:
        raise MappingError(
            message("out_axes names a dim that the result does not have", got=f"{axis}, a result of {ndim + 1} dims")
        )
    return x.movedim(0, axis) if axis else x


def _check_same_for_all(x: torch.Tensor, number: int) -> None:
    functorch = torch._C._functorch
    level = names.level()
    below = x
    while functorch.is_functorch_wrapped_tensor(below):
        if functorch.is_batchedtensor(below) and functorch.maybe_get_level(below) == level:
            raise MappingError(
                message(
                    "vmap's out_axes is None for a result that differs between examples",
                    got=f"result {number}, shape {tuple(x.shape)} for each example",
                    try_="out_axes=0 for it; or reduce it with psum or pmean over axis_name",
                )
            )
        below = functorch.get_unwrapped(below)
