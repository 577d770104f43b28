"""Whole Jacobians: a derivative of every result by every argument, row by row or column by column."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tinyshard.arrays.array import Array
from tinyshard.arrays.levels import innermost
from tinyshard.arrays.placement import array
from tinyshard.compile.capture import capture_arguments
from tinyshard.compile.intercept import one_transform
from tinyshard.core.errors import DtypeError
from tinyshard.transforms.autodiff import Function, aux_apart, by_chosen, check_function, load_jvp_rules


def jacrev(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The Jacobian, row by row in reverse: for functions with few results.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).

    Returns:
        A function that returns the Jacobian: for each leaf of the result the tree of the argument (a tuple of trees for
        a tuple of argnums), with leaves of shape (*shape of the result, *shape of the argument). With has_aux
        (Jacobian, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point, an argnums that names one twice, or a complex result.
        RuntimeError: a result that is no tensor, or one of integers.

    Communication: that of the function and its transpose.

    In JAX: also holomorphic= and allow_int=.

    Example:
        >>> jacrev(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_function(fun, "jacrev")

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        tensors, whole = aux_apart(fun, has_aux)
        args, kwargs = capture_arguments((args, kwargs))
        alone, chosen = by_chosen(tensors, args, kwargs, argnums)
        with one_transform():
            found: Any = torch.func.vjp(alone, chosen, has_aux=has_aux)
        _check_real(found[0])
        basis, join = _basis(found[0])
        with one_transform():
            (columns,) = torch.func.vmap(found[1])(basis)
        blocks = join(columns)
        return (blocks, whole(found[2])) if has_aux else blocks

    return jacobian


def jacfwd(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The Jacobian, column by column forwards: for functions with few arguments.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).

    Returns:
        A function that returns the Jacobian: for each leaf of the result the tree of the argument (a tuple of trees for
        a tuple of argnums), with leaves of shape (*shape of the result, *shape of the argument). With has_aux
        (Jacobian, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point, or an argnums that names one twice.
        RuntimeError: a result that is no tensor.

    Communication: that of the function.

    In JAX: also holomorphic=.

    Example:
        >>> jacfwd(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_function(fun, "jacfwd")

    @functools.wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        load_jvp_rules()
        tensors, whole = aux_apart(fun, has_aux)
        args, kwargs = capture_arguments((args, kwargs))
        alone, chosen = by_chosen(tensors, args, kwargs, argnums)
        basis, _ = _basis(chosen)

        def push(tangent: Any) -> Any:
            return torch.func.jvp(alone, (chosen,), (tangent,), has_aux=has_aux)[1:]

        out_dims: Any = (0, None) if has_aux else (0,)  # a constant result is not mapped: only dim 0 is then made up
        with one_transform():
            out = torch.func.vmap(push, out_dims=out_dims)(basis)
        blocks = tree_map(lambda columns: _apart(chosen, columns.movedim(0, -1)), out[0])
        return (blocks, whole(out[1])) if has_aux else blocks

    return jacobian


def hessian(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The matrix of second derivatives, forwards over reverse.

    Args:
        fun: a function of trees of real floating-point tensors, whose result is a tree of tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).

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
    return jacfwd(jacrev(fun, argnums, has_aux), argnums, has_aux)


def _check_real(tree: Any) -> None:
    """Refuse complex results: a gradient by a real number has no room for the derivative of the imaginary part."""
    for x in tree_flatten(tree)[0]:
        if x.is_complex():
            raise DtypeError(
                "jacrev needs a function with real results",
                got=f"a result of {x.dtype}",
                try_="jacfwd; or jacrev of torch.view_as_real(...) of the result",
            )


def _basis(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All unit vectors of a tree of tensors, and how to put together what a linear function makes of them.

    Returns:
        The tree with a new first dim that counts its elements; a function from a tree whose leaves have that first dim
        to the tree, each leaf of it a tree of blocks.
    """
    leaves, form = tree_flatten(tree)
    sizes = [x.numel() for x in leaves]
    total = sum(sizes)
    unit = torch.eye(total)
    if any(isinstance(innermost(x), Array) for x in leaves):
        unit = array(unit)  # uncommitted: it moves to where the values are, and the result is an Array
    rows = unit.split(sizes, 1)
    vectors = [r.to(x.dtype).reshape((total, *x.shape)) for r, x in zip(rows, leaves, strict=True)]

    def join(columns: Any) -> Any:
        def block(k: int) -> Any:
            start = sum(sizes[:k])
            return tree_map(lambda c: c[start : start + sizes[k]].reshape((*leaves[k].shape, *c.shape[1:])), columns)

        return tree_unflatten([block(k) for k in range(len(leaves))], form)

    return tree_unflatten(vectors, form), join


def _apart(tree: Any, rows: torch.Tensor) -> Any:
    """Split the last dim of `rows`, which counts the elements of a tree, into that tree."""
    leaves, form = tree_flatten(tree)
    parts = rows.split([x.numel() for x in leaves], -1)
    return tree_unflatten([p.reshape((*rows.shape[:-1], *x.shape)) for p, x in zip(parts, leaves, strict=True)], form)
