"""vmap: a function of one example becomes a function of many, over torch.func's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.placement import as_tensor
from tinyshard.compile.capture import capture_arguments
from tinyshard.compile.intercept import distributions_unchecked, transform_scope
from tinyshard.core import axis_names
from tinyshard.core.errors import DtypeError, MappingError, StatefulRandomError, TinyshardError, TracedValueError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.users_line import users_line, users_line_of
from tinyshard.primitives.collective import is_mapped
from tinyshard.transforms.axes import checked_axis_size, mapped_dims, placed_dims


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
    spmd_axis_name: str | tuple[str, ...] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """Map a function over an axis of its arguments: all examples at once, without a loop.

    Args:
        fun: a function of trees of tensors that returns a tree of tensors; written for one example. An unmapped
            argument without a shape (a number, a string, a function) is passed unchanged.
        in_axes: the dim of each argument that counts the examples: an int (negative ones count from the end), None for
            an argument that all examples share, or a tuple with one entry for each positional argument, each a tree
            that is a prefix of the argument. Arguments by name are mapped over dim 0.
        out_axes: likewise the dim of the results; None for a result that is the same for all examples.
        axis_name: the name of the axis, for collectives inside `fun`.
        axis_size: the number of examples, needed where no argument is mapped.
        spmd_axis_name: the axis, or axes, of a mesh that cut the examples: in each sharding that `fun` names in
            `lax.with_sharding_constraint`, `reshard` or `device_put`, and of the blocks of a shard_map in it.
        others: none; an argument that JAX or torch has is refused with what to write in its place.

    Returns:
        A function of the batched arguments. Plain tensors give plain tensors, which have no `.sharding` and no
        `.block_until_ready()`; Arrays, as `ts.array` makes them, give Arrays. A cut batch dim stays cut where the ops
        allow it.

    Raises:
        MappingError: sizes that differ, a dim that does not exist, or in_axes that do not fit the arguments.
        TracedValueError: `fun` reads a value that differs between examples, as `if` does.
        StatefulRandomError: it draws from torch's own generator.
        DtypeError: `fun` is not a function, or a mapped argument is not a tensor.

    Communication: that of the batched ops; for plain tensors none.

    Example:
        >>> xs, w = torch.arange(6.0).reshape(2, 3), torch.ones(3)
        >>> vmap(torch.dot, in_axes=(0, None))(xs, w)
        tensor([ 3., 12.])
    """
    check_others(vmap, others)
    if not callable(fun):
        raise DtypeError("vmap takes a function", got=f"{fun!r} ({type(fun).__name__})", try_="ts.vmap(f)")

    if not (axis_name is None or isinstance(axis_name, str)):
        raise MappingError("an axis name is a string", got=f"{axis_name!r} ({type(axis_name).__name__})")
    asked = checked_axis_size(axis_size)
    cut = (spmd_axis_name,) if isinstance(spmd_axis_name, str) else tuple(spmd_axis_name or ())
    if not all(isinstance(each, str) for each in cut):
        raise MappingError("an axis name is a string", got=f"spmd_axis_name={spmd_axis_name!r}")

    @functools.wraps(fun)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        leaves = [_operand(x) for x in leaves]
        args, kwargs = tree_unflatten(leaves, form)
        dims, size = mapped_dims("vmap", fun, in_axes, args, kwargs, asked)
        return _run(fun, leaves, form, dims, out_axes, axis_name, size, cut)

    return batched


def _operand(x: Any) -> Any:
    """A leaf of the arguments as a tensor; anything without a shape unchanged."""
    if isinstance(x, torch.Tensor):
        return capture_arguments(x)
    return as_tensor(x) if hasattr(x, "shape") else x


def _run(
    fun: Any,
    leaves: Sequence[Any],
    form: Any,
    dims: Sequence[int | None],
    out_axes: Any,
    name: str | None,
    size: int,
    cut: tuple[str, ...],
) -> Any:
    found: list[Any] = []  # the tree of the results, and those that are the same for all examples

    def flat(index: torch.Tensor, *xs: Any) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree_unflatten(xs, form)
        with contextlib.ExitStack() as bound:
            if name is not None:
                bound.enter_context(axis_names.mapped_by_vmap(name, size, index))
            if cut:
                bound.enter_context(axis_names.cut_by(cut))
            out = fun(*args, **kwargs)
        results, out_form = tree_flatten(out)
        results = [x if x is None or isinstance(x, torch.Tensor) else as_tensor(x) for x in results]
        axes = placed_dims("vmap", out_axes, out)
        for i, (x, axis) in enumerate(zip(results, axes, strict=True)):
            if x is not None and axis is None:
                _check_same_for_all(x, i)
        found[:] = [results, out_form, axes]
        return tuple(x for x, axis in zip(results, axes, strict=True) if x is not None and axis is not None)

    if not size:  # torch's rules fail for no example: they get one of zeros, whose results are cut away
        leaves = [x if d is None else _one_example(x, d) for x, d in zip(leaves, dims, strict=True)]
    with transform_scope(), _as_own_errors(), distributions_unchecked():
        index = torch.arange(size or 1, dtype=torch.int32)
        mapped = torch.func.vmap(flat, in_dims=(0, *dims), out_dims=0)(index, *leaves)
    results, out_form, axes = found
    outputs = iter(mapped)
    whole = [
        x if x is None or axis is None else next(outputs)[:size].movedim(0, axis)
        for x, axis in zip(results, axes, strict=True)
    ]
    return tree_unflatten(whole, out_form)


def _one_example(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]))


def _check_same_for_all(x: torch.Tensor, number: int) -> None:
    if is_mapped(x, axis_names.level()):
        raise MappingError(
            "vmap's out_axes is None for a result that differs between examples",
            got=f"result {number}, shape {tuple(x.shape)} for each example",
            try_="out_axes=0 for it; or reduce it with psum or pmean over axis_name",
        )


# ---- refusals of torch.func.vmap, in four parts: torch's own errors name neither the user's line nor a fix -----------

_A_VALUE = (
    "Python asks for a value that differs between examples",
    "under vmap if, while, float(), item() see no example of their own",
    "torch.where(condition, a, b), torch.cond, or in_axes=None for an argument that all share",
    TracedValueError,
)
_A_SHAPE = (
    "the shape of a result depends on values, and differs between examples",
    "all examples have results of one shape",
    "torch.where(mask, x, 0); torch.sort or torch.topk for a fixed number of them",
    DtypeError,
)
_IN_PLACE = (
    "a value is changed in place, and has no room for what is written",
    "what all examples share, by in_axes=None or as torch.zeros(n), is one value: it cannot hold one result for each",
    "a new value in place of a changed one: s = s + x, not s += x;\n"
    "x.new_zeros(n), which is one for each, in place of torch.zeros(n)",
    DtypeError,
)
_REFUSALS: dict[str, tuple[str, str, str, type[TinyshardError]]] = {
    "data-dependent control flow": _A_VALUE,
    "calling .item()": _A_VALUE,
    "output dynamic shape": _A_SHAPE,
    "can support dynamic shape": _A_SHAPE,
    "doesn't match the broadcast shape": _IN_PLACE,
    "inplace arithmetic": _IN_PLACE,
    "has more elements than `self`": _IN_PLACE,
    "called random operation": (
        "a stateful random op under vmap",
        "whether examples draw the same numbers or different ones is for the caller to say",
        "draw with ts.random, from one key for all or from ts.random.split(key, n)",
        StatefulRandomError,
    ),
}


@contextlib.contextmanager
def _as_own_errors() -> Iterator[None]:
    """Raise torch's refusals as errors with the user's line, the rule and a fix."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, TinyshardError):
            raise
        for words, (problem, rule, try_, kind) in _REFUSALS.items():
            if words in str(error):
                own = kind(problem, got=str(users_line_of(error) or users_line()), rule=rule, try_=try_)
                raise own.with_traceback(error.__traceback__) from None
        raise
