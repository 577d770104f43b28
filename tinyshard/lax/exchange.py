"""Every position sends a block to every position."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.core.collectives import selected
from tinyshard.lax.gather import all_gather, check_cut
from tinyshard.lax.index import axis_index
from tinyshard.lax.operands import axes_of, dim_of, groups_of, on_leaves, one_by_one
from tinyshard.primitives.collective import Groups, axis_total, collective


def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Cut the value into n blocks along one dim, send block j to position j, and join the received blocks along a dim.

    Args:
        x: a tensor, or a tree of them.
        axis_name: a bound name, or a tuple of names, most significant first.
        split_axis: the dim that is cut; its size is n, or with `tiled` a multiple of n.
        concat_axis: the dim of the result along which the blocks are joined: a new one of size n, or with `tiled` an
            existing one.
        axis_index_groups: lists of positions, of equal size, that communicate separately; over several axes of devices
            the positions count row-major.
        tiled: keep the split dim, of size k / n; otherwise it is removed.

    Returns:
        The tree, with as many values. Its gradient is the all_to_all back.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a dim that cannot be cut so, or groups that do not fit.

    Communication: over devices one all_to_all; over names of both kinds one all_gather for each axis of devices.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: all_to_all(v, "i", 0, 0), axis_name="i")(torch.tensor([[1, 2], [3, 4]]))
        tensor([[1, 3],
                [2, 4]])
    """
    dims = ("split_axis", split_axis), ("concat_axis", concat_axis)
    return _exchanged("all_to_all", x, axis_name, dims, axis_index_groups, tiled)


def _exchanged(what: str, x: Any, axis_name: Any, dims: Any, axis_index_groups: Any, tiled: bool) -> Any:
    """`all_to_all`, for the function `what`; `dims` names the arguments: the dim to cut, and the dim to join along."""
    axes = axes_of(axis_name)
    groups = groups_of(axes, axis_index_groups)
    size = axis_total(axes, groups)

    def one(leaf: torch.Tensor, ndim: int) -> torch.Tensor:
        split, join = (dim_of(dim, ndim, name) for name, dim in dims)
        check_cut(leaf, split, size, tiled, what)
        if tiled:
            return _swap(leaf, axes, groups, split, join)
        # the new dim is at `join` after the split dim is removed
        position = join if join <= split else join + 1
        leaf, split = leaf.unsqueeze(position), split + (position <= split)
        return _swap(leaf, axes, groups, split, position).squeeze(split)

    return on_leaves(one, x)


def _swap(x: torch.Tensor, axes: tuple[str, ...], groups: Groups | None, split: int, join: int) -> torch.Tensor:
    if len(one_by_one(axes)) == 1:
        return collective("all_to_all", x, axes, groups, split=split, join=join)
    # over axes of both kinds: every position gathers all values, and takes its own blocks
    size = axis_total(axes)
    blocks = all_gather(x, axes).unflatten(1 + split, (size, x.shape[split] // size))
    mine = selected(blocks, 1 + split, axis_index(axes).reshape(1)).squeeze(1 + split)
    return mine.movedim(0, join).flatten(join, join + 1)


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """Swap a named axis with a dim of the same size: `all_to_all` with both dims the same.

    Args:
        x: a tensor, or a tree of them.
        axis_name: a bound name, or a tuple of names.
        axis: the dim.
        axis_index_groups: lists of positions, of equal size, that swap separately.

    Returns:
        The tree, with the same shapes and dtypes.

    Raises:
        AxisNameError, MappingError: as `all_to_all`.

    Communication: as all_to_all.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: pswapaxes(v, "i", 0), axis_name="i")(torch.tensor([[1, 2], [3, 4]]))
        tensor([[1, 3],
                [2, 4]])
    """
    return _exchanged("pswapaxes", x, axis_name, (("axis", axis),) * 2, axis_index_groups, tiled=False)
