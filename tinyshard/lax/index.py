"""The position along a named axis, and its size."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.core import axis_names, tree
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import varying_types
from tinyshard.lax.operands import axes_of, one_by_one
from tinyshard.primitives.collective import axis_total, collective


def axis_index(axis_name: Any) -> torch.Tensor:
    """The position along a named axis.

    Args:
        axis_name: a bound name, or a tuple of names, whose positions count the last fastest.

    Returns:
        An int32[], different for each position.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a name that is not a string, or a repeated one.

    Communication: none.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: v * 10 + axis_index("i"), axis_name="i")(torch.tensor([7, 8, 9]))
        tensor([70, 81, 92])
    """
    total: torch.Tensor | None = None
    for part in one_by_one(axes_of(axis_name)):
        name = axis_names.find(part[0])
        if name.index is not None and not axis_names.is_free(name):
            place = name.index
        else:
            place = collective("own_index", torch.zeros((), dtype=torch.int32), part)
        total = place if total is None else total * axis_total(part) + place
    return torch.zeros((), dtype=torch.int32) if total is None else total  # over no axis there is one position


def axis_size(axis_name: Any) -> int:
    """The size of a named axis; for a tuple of names the product.

    Args:
        axis_name: a bound name, or a tuple of names.

    Returns:
        An int, known when the function is traced.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a name that is not a string, or a repeated one.

    Communication: none.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: v / axis_size("i"), axis_name="i")(torch.ones(4))
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return axis_total(axes_of(axis_name))


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """The same value, typed as one that may differ between devices along an axis.

    In a shard_map an op does this by itself to an operand that is the same on all devices, where another one varies.
    What remains to be written is the first carry of a loop, and a branch of a cond, whose type has to be that of
    another value; and a gradient of each device's own: with respect to the marked value.

    Args:
        x: a tensor or a tree of tensors.
        axis_name: a bound name, or a tuple of names.
        to: "varying".

    Returns:
        `x`. Its gradient is the psum of the gradient over the axes, but for those along which `x` varies already. Under
        vmap, pmap and with check_vma=False values have no such type, and `x` is returned as it is.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a name that is not a string, or a repeated one.
        DtypeError: another `to`.

    Communication: none; of its gradient one all_reduce.

    In JAX: an error where `x` varies along the axis already, and outside of shard_map. to="reduced" and to="unreduced"
    are not there.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: pcast(v, "i", to="varying"), axis_name="i")(torch.tensor([7, 8]))
        tensor([7, 8])
    """
    axes = frozenset(axes_of(axis_name))
    if to != "varying":
        raise DtypeError("pcast marks a value as varying", got=f"to={to!r}", try_='to="varying"')
    types = varying_types()
    return x if types is None else tree.map(lambda leaf: types.cast(leaf, axes), x)
