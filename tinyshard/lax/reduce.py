"""Reductions over a named axis: every position gets the sum, the mean, the maximum or the minimum."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.core import tree
from tinyshard.core.errors import DtypeError
from tinyshard.lax.operands import axes_of, groups_of, on_leaves, one_by_one
from tinyshard.primitives.collective import axis_total, collective

_NUMBERS = (bool, int, float, complex)


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The sum over a named axis; every position gets it.

    Args:
        x: a tensor of any shape, or a tree of them; bools are counted, int32. A Python number n gives n * size.
        axis_name: a name bound by vmap, pmap or shard_map, or a tuple of names.
        axis_index_groups: lists of positions along the axis, of equal size, that are summed separately; along
            several axes of devices the positions count row-major.

    Returns:
        The same tree, shapes and dtypes. Its gradient is the psum of the gradient; in a shard_map, unless
        check_vma=False, the gradient is the same on all devices, and passes as it is.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a repeated axis name, or groups that do not fit.
        DtypeError: a leaf that is not a tensor, or keys.

    Communication: over devices one all_reduce; along several axes, some bound by vmap, one for each axis of
    devices; under vmap none. The same for pmean, pmax and pmin.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: v / psum(v, "i"), axis_name="i")(torch.tensor([1.0, 3.0]))
        tensor([0.2500, 0.7500])
    """
    return _sum(x, axis_name, axis_index_groups, "psum")[0]


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The mean over a named axis; every position gets it.

    Args:
        x: a tensor of any shape, or a tree of them or of Python numbers.
        axis_name: a name bound by vmap, pmap or shard_map, or a tuple of names.
        axis_index_groups: lists of positions along the axis, of equal size, that are reduced separately.

    Returns:
        The same tree and shapes; the dtypes too, except integers and bools, whose mean has the default float dtype.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a repeated axis name, or groups that do not fit.
        DtypeError: a leaf that is not a tensor, or keys.

    Communication: over devices one all_reduce; under vmap none.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: pmean(v, "i"), axis_name="i")(torch.tensor([1.0, 3.0]))
        tensor([2., 2.])
    """
    total, size = _sum(x, axis_name, axis_index_groups, "pmean")
    return tree.map(lambda leaf: leaf / size, total)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The elementwise largest value over a named axis; every position gets it.

    Args:
        x: a tensor of any shape, or a tree of them.
        axis_name: a name bound by vmap, pmap or shard_map, or a tuple of names.
        axis_index_groups: lists of positions along the axis, of equal size, that are reduced separately.

    Returns:
        The same tree, shapes and dtypes; a Python number becomes a tensor.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a repeated axis name, or groups that do not fit.
        DtypeError: a leaf that is not a tensor, keys or complex numbers.

    Communication: over devices one all_reduce; under vmap none.

    In JAX: it has no gradient. Here the positions that hold the largest get equal parts of it, as in torch.amax.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: pmax(v, "i"), axis_name="i")(torch.tensor([1.0, 3.0]))
        tensor([3., 3.])
    """
    return _extreme(x, axis_name, axis_index_groups, "max")


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The elementwise smallest value over a named axis; every position gets it.

    Args:
        x: a tensor of any shape, or a tree of them.
        axis_name: a name bound by vmap, pmap or shard_map, or a tuple of names.
        axis_index_groups: lists of positions along the axis, of equal size, that are reduced separately.

    Returns:
        The same tree, shapes and dtypes; a Python number becomes a tensor.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a repeated axis name, or groups that do not fit.
        DtypeError: a leaf that is not a tensor, keys or complex numbers.

    Communication: over devices one all_reduce; under vmap none.

    In JAX: it has no gradient. Here the positions that hold the smallest get equal parts of it, as in torch.amin.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: pmin(v, "i"), axis_name="i")(torch.tensor([1.0, 3.0]))
        tensor([1., 1.])
    """
    return _extreme(x, axis_name, axis_index_groups, "min")


def _sum(x: Any, axis_name: Any, axis_index_groups: Any, what: str) -> tuple[Any, int]:
    """The sum, and the number of summands."""
    axes = axes_of(axis_name)
    groups = groups_of(axes, axis_index_groups)
    size = axis_total(axes, groups)

    def one(leaf: torch.Tensor, _: int) -> torch.Tensor:
        return _reduce(leaf.to(torch.int32) if leaf.dtype == torch.bool else leaf, axes, groups, "sum")

    def counted(leaf: Any) -> Any:
        return leaf * size if isinstance(leaf, _NUMBERS) else on_leaves(one, leaf, adds=what)

    return tree.map(counted, x), size


def _extreme(x: Any, axis_name: Any, axis_index_groups: Any, op: str) -> Any:
    axes = axes_of(axis_name)
    groups = groups_of(axes, axis_index_groups)

    def one(leaf: torch.Tensor, _: int) -> torch.Tensor:
        if leaf.dtype.is_complex:
            raise DtypeError(f"complex numbers have no {op}", got=str(leaf.dtype), try_="reduce x.abs()")
        return _reduce(leaf, axes, groups, op)

    return on_leaves(one, x, adds=f"p{op}")


def _reduce(x: torch.Tensor, axes: tuple[str, ...], groups: Any, op: str) -> torch.Tensor:
    for part in one_by_one(axes):
        x = collective("all_reduce", x, part, groups, op=op)
    return x
