"""Gathering along a named axis, and its transpose: summing and scattering."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.lax.operands import axes_of, dim_of, groups_of, on_leaves, one_by_one
from tinyshard.primitives.collective import axis_total, collective


def all_gather(
    x: Any,
    axis_name: Any,
    *,
    axis: int = 0,
    tiled: bool = False,
    axis_index_groups: Any = None,
    to: str = "varying",
) -> Any:
    """Everyone's values, in the order of the named axis; everyone gets all.

    Args:
        x: a tensor, or a tree of them.
        axis_name: a bound name, or a tuple of names, most significant first.
        axis: the dim of the result along which they are joined; counted from the end if negative.
        tiled: join along the existing dim (size n * k), in place of a new dim (size n).
        axis_index_groups: lists of positions, of equal size, that gather separately; over several axes of devices
            the positions count row-major.
        to: within a shard_map, the type of the result: "varying", or "invarying", so that a spec of out_specs may
            leave the axis out. It has no effect elsewhere, nor with check_vma=False.

    Returns:
        The tree, with n times the values. Its gradient is psum_scatter of the gradient; of an invarying result, whose
        gradient is the same on all devices, the device's own block of it.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: no such dim, or groups that do not fit.
        DtypeError: another `to`.

    Communication: over devices one all_gather; under vmap none.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: all_gather(v, "i"), axis_name="i")(torch.tensor([1.0, 3.0]))
        tensor([[1., 3.],
                [1., 3.]])
    """
    axes = axes_of(axis_name)
    groups = groups_of(axes, axis_index_groups)
    if to not in ("varying", "invarying") or (to == "invarying" and groups is not None):
        rule = 'to is "varying" or "invarying"; what groups gather is not the same on all devices'
        raise DtypeError("all_gather has no such result", got=f"to={to!r}, axis_index_groups={groups}", rule=rule)

    def one(leaf: torch.Tensor, ndim: int) -> torch.Tensor:
        dim = dim_of(axis, ndim + (not tiled), "axis")
        leaf = leaf if tiled else leaf.unsqueeze(dim)
        for part in reversed(one_by_one(axes)):
            leaf = collective("all_gather", leaf, part, groups, to=to, dim=dim)
        return leaf

    return on_leaves(one, x)


def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """The sum over a named axis; each position gets one block of it.

    Args:
        x: a tensor, or a tree of them.
        axis_name: a bound name, or a tuple of names, most significant first.
        scatter_dimension: the dim that is cut; its size is n, the size of the axis, or with `tiled` a multiple of n.
        axis_index_groups: lists of positions, of equal size, that communicate separately; over several axes of devices
            the positions count row-major.
        tiled: keep the dim, of size k / n; otherwise it is removed.

    Returns:
        The tree, with an n-th of the values. Its gradient is all_gather of the gradient.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a dim that cannot be cut so, or groups that do not fit.

    Communication: over devices one reduce_scatter; under vmap none.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: psum_scatter(v, "i"), axis_name="i")(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([4., 6.])
    """
    axes = axes_of(axis_name)
    groups = groups_of(axes, axis_index_groups)
    size = axis_total(axes, groups)

    def one(leaf: torch.Tensor, ndim: int) -> torch.Tensor:
        leaf = leaf.to(torch.int32) if leaf.dtype == torch.bool else leaf
        dim = dim_of(scatter_dimension, ndim, "scatter_dimension")
        check_cut(leaf, dim, size, tiled, "psum_scatter")
        for part in one_by_one(axes):
            leaf = collective("reduce_scatter", leaf, part, groups, dim=dim, op="sum")
        return leaf if tiled else leaf.squeeze(dim)

    return on_leaves(one, x, adds="psum_scatter")


# how to cut a dim whose size is not that of the axis
_UNTILED = {
    "all_to_all": "tiled=True, which takes a multiple of it",
    "psum_scatter": "tiled=True, which takes a multiple of it",
    "pswapaxes": "ts.lax.all_to_all(x, axis_name, dim, dim, tiled=True), which takes a multiple of it",
}


def check_cut(x: torch.Tensor, dim: int, size: int, tiled: bool, what: str) -> None:
    """Raise MappingError if the dim cannot be cut in `size` blocks, or for `tiled` false in `size` single slices."""
    if not size:
        raise MappingError(f"{what} over an axis of size 0", got="no device to take a block")
    if x.shape[dim] % size if tiled else x.shape[dim] != size:
        raise MappingError(
            f"{what} cannot cut dim {dim}",
            got=f"an operand of shape {tuple(x.shape)}, an axis of size {size}" + (", tiled=True" if tiled else ""),
            rule=f"dim {dim} must be {'a multiple of' if tiled else 'equal to'} the size of the axis",
            try_=f"pad dim {dim} to {-(-x.shape[dim] // size) * size}" if tiled else _UNTILED[what],
        )
