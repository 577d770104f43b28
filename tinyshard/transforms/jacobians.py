"""Whole Jacobians: a derivative of every result by every argument, row by row or column by column."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.arrays.levels import innermost
from tinyshard.arrays.placement import array
from tinyshard.compile.intercept import transform_scope
from tinyshard.core.errors import DtypeError
from tinyshard.core.ints import as_int
from tinyshard.core.jax_hints import check_others
from tinyshard.transforms.autodiff import (
    Function,
    by_chosen,
    check_function,
    checked_argnums,
    chosen_of,
    load_jvp_rules,
)
from tinyshard.transforms.tangents import OfLeaves


def jacrev(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    **others: Any,
) -> Function:
    """The Jacobian, row by row in reverse: for functions with few results.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        chunk_size: how many rows are computed at a time, as in torch: fewer take less memory; None for all.
        others: as for `grad`.

    Returns:
        A function that returns the Jacobian: for each leaf of the result the tree of the argument (a tuple of trees for
        a tuple of argnums), with leaves of shape (*shape of the result, *shape of the argument). With has_aux
        (Jacobian, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point, an argnums that names one twice, a complex result, or
            a chunk_size below 1.
        RuntimeError: a result that is not a tensor, or one of integers.

    Communication: that of the function and its transpose.

    In JAX: also holomorphic= and allow_int=, no chunk_size=.

    Example:
        >>> jacrev(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_others(jacrev, others)
    chunk = None if chunk_size is None else as_int(chunk_size)
    if chunk_size is not None and (chunk is None or chunk < 1):
        raise DtypeError("chunk_size is a number of rows", got=f"chunk_size={chunk_size!r}", rule="at least 1, or None")
    return _jacrev("jacrev", fun, argnums, has_aux, chunk)


def _jacrev(what: str, fun: Function, argnums: Any, has_aux: bool, chunk_size: int | None = None) -> Function:
    check_function(fun, what)
    numbers = checked_argnums(argnums)

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of = by_chosen(what, fun, args, kwargs, numbers, has_aux)
        with transform_scope():
            found: Any = torch.func.vjp(of, *of.leaves, has_aux=has_aux)
        results = found[0]
        _check_real(what, results)
        with transform_scope():
            rows = torch.func.vmap(found[1], chunk_size=chunk_size)(_basis(results)) if results else ()
        # of each argument the rows for all elements of all results -> for each result the tree of the arguments
        sizes = [x.numel() for x in results]
        by_output = [
            [row.reshape((*x.shape, *row.shape[1:])) for x, row in zip(results, column.split(sizes), strict=True)]
            for column in rows
        ]
        blocks = of.results([chosen_of(of.arguments(block), numbers) for block in zip(*by_output, strict=True)])
        return (blocks, of.aux(found[2])) if has_aux else blocks

    return jacobian


def jacfwd(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **others: Any) -> Function:
    """The Jacobian, column by column forwards: for functions with few arguments.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        others: as for `grad`.

    Returns:
        A function that returns the Jacobian: for each leaf of the result the tree of the argument (a tuple of trees for
        a tuple of argnums), with leaves of shape (*shape of the result, *shape of the argument). With has_aux
        (Jacobian, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point, or an argnums that names one twice.
        RuntimeError: a result that is not a tensor.

    Communication: that of the function.

    In JAX: also holomorphic=.

    Example:
        >>> jacfwd(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_others(jacfwd, others)
    return _jacfwd("jacfwd", fun, argnums, has_aux)


def _jacfwd(what: str, fun: Function, argnums: Any, has_aux: bool) -> Function:
    check_function(fun, what)
    numbers = checked_argnums(argnums)

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        load_jvp_rules()
        of = by_chosen(what, fun, args, kwargs, numbers, has_aux)

        def push(*tangents: torch.Tensor) -> Any:
            return torch.func.jvp(of, tuple(of.leaves), tangents, has_aux=has_aux)[1:]

        out_dims: Any = (0, None) if has_aux else (0,)  # a constant result is not mapped: only dim 0 is then made up
        with transform_scope():
            out = torch.func.vmap(push, out_dims=out_dims)(*_basis(of.leaves))
        blocks = of.results([chosen_of(_apart(of, columns.movedim(0, -1)), numbers) for columns in out[0]])
        return (blocks, of.aux(out[1])) if has_aux else blocks

    return jacobian


def hessian(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **others: Any) -> Function:
    """The matrix of second derivatives, forwards over reverse.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        others: as for `grad`.

    Returns:
        A function that returns, for each leaf of the result and each pair of leaves of the argument, a tensor of shape
        (*shape of the result, *shape of the one, *shape of the other). With has_aux (these, anything else).

    Raises:
        DtypeError, RuntimeError: as `jacrev`.

    Communication: that of the function and its transpose.

    In JAX: also holomorphic=.

    Example:
        >>> hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
    """
    check_others(hessian, others)
    return _jacfwd("hessian", _jacrev("hessian", fun, argnums, has_aux), argnums, has_aux)


def _check_real(what: str, results: Sequence[torch.Tensor]) -> None:
    """Refuse complex results: a gradient by a real number has no room for the derivative of the imaginary part."""
    for x in results:
        if x.is_complex():
            raise DtypeError(
                f"{what} needs a function with real results",
                got=f"a result of {x.dtype}",
                try_="ts.jacfwd(f); or torch.view_as_real(...) of the result",
            )


def _basis(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """All unit vectors of several tensors taken as one: each with a new first dim that counts the elements of all."""
    sizes = [x.numel() for x in xs]
    unit = torch.eye(sum(sizes))
    if any(isinstance(innermost(x), Array) for x in xs):
        unit = array(unit)  # uncommitted: it moves to where the values are, and the result is an Array
    rows = unit.split(sizes, 1)
    return tuple(row.to(x.dtype).reshape((len(unit), *x.shape)) for row, x in zip(rows, xs, strict=True))


def _apart(of: OfLeaves, columns: torch.Tensor) -> Any:
    """The arguments, with the columns of each in its place: the last dim counts the elements of all."""
    parts = columns.split([x.numel() for x in of.leaves], -1)
    lead = columns.shape[:-1]
    return of.arguments([part.reshape((*lead, *x.shape)) for part, x in zip(parts, of.leaves, strict=True)])
