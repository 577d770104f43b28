"""Whole Jacobians: the derivative of every result with respect to every argument, by rows or by columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.arrays.placement import array
from tinyshard.compile.intercept import transform_scope
from tinyshard.core.errors import DtypeError
from tinyshard.core.ints import as_int
from tinyshard.core.jax_hints import check_others
from tinyshard.core.thread_state import innermost
from tinyshard.transforms.autodiff import (
    Function,
    by_chosen,
    check_function,
    checked_argnums,
    chosen_of,
    load_jvp_rules,
)
from tinyshard.transforms.tangents import REAL, Kinds, OfLeaves


def jacrev(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    chunk_size: int | None = None,
    **others: Any,
) -> Function:
    """The Jacobian, row by row in reverse: for functions with few results.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate with respect to, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        holomorphic: whether `fun` is a holomorphic function of complex tensors, as for `grad`.
        allow_int: whether integers are allowed among the tensors; their derivative is zeros of their dtype.
        chunk_size: how many rows are computed at a time, as in torch: fewer take less memory; None for all.
        others: as for `grad`.

    Returns:
        A function that returns the Jacobian: for each leaf of the result the tree of the argument (a tuple of trees for
        a tuple of argnums), with leaves of shape (*shape of the result, *shape of the argument). With has_aux
        (Jacobian, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point (or complex with holomorphic), an argnums that names
            one twice, a complex result without holomorphic, or a chunk_size below 1.
        RuntimeError: a result that is not a tensor, or one of integers.

    Communication: that of the function and its transpose.

    In JAX: also named `jacobian`, as here; no chunk_size=. The derivative with respect to an integer has dtype float0.

    Example:
        >>> jacrev(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_others(jacrev, others)
    return _jacrev("jacrev", fun, argnums, has_aux, Kinds(holomorphic, allow_int), _checked_chunk(chunk_size))


jacobian = jacrev


def _checked_chunk(chunk_size: Any) -> int | None:
    chunk = None if chunk_size is None else as_int(chunk_size)
    if chunk_size is not None and (chunk is None or chunk < 1):
        rule = "how many rows or columns at a time: at least 1, or None for all"
        raise DtypeError("chunk_size is a number", got=f"chunk_size={chunk_size!r}", rule=rule)
    return chunk


def _jacrev(
    what: str, fun: Function, argnums: Any, has_aux: bool, kinds: Kinds = REAL, chunk_size: int | None = None
) -> Function:
    check_function(fun, what)
    numbers = checked_argnums(argnums)

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of = by_chosen(what, fun, args, kwargs, numbers, has_aux, kinds)
        with transform_scope():
            found: Any = torch.func.vjp(of.of_continuous(of), *of.continuous, has_aux=has_aux)
        results = found[0]
        _check_results(what, results, kinds)
        with transform_scope():
            rows = torch.func.vmap(found[1], chunk_size=chunk_size)(_basis(results)) if results else ()
        # of each argument the rows for all elements of all results -> for each result the tree of the arguments
        sizes = [x.numel() for x in results]
        by_output = [
            [row.reshape((*x.shape, *row.shape[1:])) for x, row in zip(results, column.split(sizes), strict=True)]
            for column in rows
        ]
        if kinds.holomorphic:
            by_output = [[block.conj() for block in column] for column in by_output]  # torch multiplies by J^H
        rows_of = [
            of.with_zeros(block, x.shape) for block, x in zip(zip(*by_output, strict=True), results, strict=True)
        ]
        blocks = of.results([chosen_of(of.arguments(row), numbers) for row in rows_of])
        return (blocks, of.aux(found[2])) if has_aux else blocks

    return jacobian


def jacfwd(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
    **others: Any,
) -> Function:
    """The Jacobian, column by column forwards: for functions with few arguments.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate with respect to, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        holomorphic: whether `fun` is a holomorphic function of complex tensors, as for `grad`.
        chunk_size: how many columns are computed at a time: fewer take less memory; None for all.
        others: as for `grad`.

    Returns:
        A function that returns the Jacobian: for each leaf of the result the tree of the argument (a tuple of trees for
        a tuple of argnums), with leaves of shape (*shape of the result, *shape of the argument). With has_aux
        (Jacobian, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point (or complex with holomorphic), an argnums that names
            one twice, or a chunk_size below 1.
        RuntimeError: a result that is not a tensor.

    Communication: that of the function.

    In JAX: no chunk_size=.

    Example:
        >>> jacfwd(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_others(jacfwd, others)
    return _jacfwd("jacfwd", fun, argnums, has_aux, Kinds(holomorphic), _checked_chunk(chunk_size))


def _jacfwd(
    what: str, fun: Function, argnums: Any, has_aux: bool, kinds: Kinds = REAL, chunk_size: int | None = None
) -> Function:
    check_function(fun, what)
    numbers = checked_argnums(argnums)

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        load_jvp_rules()
        of = by_chosen(what, fun, args, kwargs, numbers, has_aux, kinds)

        def push(*tangents: torch.Tensor) -> Any:
            return torch.func.jvp(of, tuple(of.leaves), tangents, has_aux=has_aux)[1:]

        out_dims: Any = (0, None) if has_aux else (0,)  # a constant result is not mapped: vmap can expand it at dim 0
        with transform_scope():
            basis = _basis(of.leaves)
            several = [basis] if chunk_size is None else zip(*(x.split(chunk_size) for x in basis), strict=True)
            by_chunk = [torch.func.vmap(push, out_dims=out_dims)(*some) for some in several]
        parts = [out[0] for out in by_chunk]
        columns = parts[0] if len(parts) == 1 else [torch.cat(some) for some in zip(*parts, strict=True)]
        blocks = of.results([chosen_of(_apart(of, column.movedim(0, -1)), numbers) for column in columns])
        return (blocks, of.aux(by_chunk[0][1])) if has_aux else blocks

    return jacobian


def hessian(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    **others: Any,
) -> Function:
    """The matrix of second derivatives, forwards over reverse.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate with respect to, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        holomorphic: whether `fun` is a holomorphic function of complex tensors, as for `grad`.
        others: as for `grad`.

    Returns:
        A function that returns, for each leaf of the result and each pair of leaves of the argument, a tensor of shape
        (*shape of the result, *shape of the first leaf, *shape of the second). With has_aux (these, anything else).

    Raises:
        DtypeError, RuntimeError: as `jacrev`.

    Communication: that of the function and its transpose.

    Example:
        >>> hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
    """
    check_others(hessian, others)
    kinds = Kinds(holomorphic)
    return _jacfwd("hessian", _jacrev("hessian", fun, argnums, has_aux, kinds), argnums, has_aux, kinds)


def _check_results(what: str, results: Sequence[torch.Tensor], kinds: Kinds) -> None:
    """Refuse complex results: a real gradient cannot hold the derivative of the imaginary part."""
    for x in results:
        if kinds.holomorphic and not x.is_complex():
            rule = "a holomorphic function of complex numbers that is real is a constant"
            raise DtypeError(
                f"{what} needs complex results with holomorphic=True", got=f"a result of {x.dtype}", rule=rule
            )
        if x.is_complex() and not kinds.holomorphic:
            raise DtypeError(
                f"{what} needs a function with real results",
                got=f"a result of {x.dtype}",
                try_="ts.jacfwd(f); or torch.view_as_real(...) of the result",
            )


def _basis(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """All unit vectors of several tensors, taken as one vector: a new first dim counts the elements of all."""
    sizes = [x.numel() for x in xs]
    unit = torch.eye(sum(sizes))
    if any(isinstance(innermost(x), Array) for x in xs):
        unit = array(unit)  # uncommitted: it moves to where the values are, and the result is an Array
    rows = unit.split(sizes, 1)
    return tuple(row.to(x.dtype).reshape((len(unit), *x.shape)) for row, x in zip(rows, xs, strict=True))


def _apart(of: OfLeaves, columns: torch.Tensor) -> Any:
    """The tree of the arguments, with the columns of each in its place: the last dim counts the elements of all."""
    parts = columns.split([x.numel() for x in of.leaves], -1)
    lead = columns.shape[:-1]
    return of.arguments([part.reshape((*lead, *x.shape)) for part, x in zip(parts, of.leaves, strict=True)])
