"""The arguments of `lax`'s collectives: axis names, groups, dims, trees of tensors and keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.arrays.placement import as_tensor
from tinyshard.core import axis_names, tree
from tinyshard.core.errors import DtypeError, MappingError, TinyshardError
from tinyshard.core.leaves import is_opaque_leaf
from tinyshard.primitives.collective import Groups, axis_total


def axes_of(axis_name: Any) -> tuple[str, ...]:
    """One name or a tuple of names, each bound, none twice.

    Raises:
        AxisNameError: a name that is not bound.
        MappingError: a name that appears twice, or something that is not a name.
    """
    axes = tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)
    for axis in axes:
        if not isinstance(axis, str):
            raise MappingError(
                "an axis name is a string",
                got=f"{axis!r} ({type(axis).__name__})",
                try_="axis_name='i', or a tuple of names",
            )
        axis_names.find(axis)
    if len(set(axes)) < len(axes):
        raise MappingError("an axis name appears twice in one collective", got=repr(axes))
    return axes


def one_by_one(axes: Sequence[str]) -> list[tuple[str, ...]]:
    """The axes, grouped for one op each: all together if they are axes of devices in this region, else one by one."""
    found = [axis_names.find(axis) for axis in axes]
    if found and all(n.level == 0 and not axis_names.is_free(n) for n in found):
        return [tuple(axes)]
    return [(axis,) for axis in axes]


def groups_of(axes: Sequence[str], axis_index_groups: Any) -> Groups | None:
    """Check and freeze `axis_index_groups`.

    Raises:
        MappingError: they do not cover each index once, differ in size, or are for several axes, one of them bound by
            vmap.
    """
    if axis_index_groups is None:
        return None
    groups = positions_of(axis_index_groups, "axis_index_groups")
    size = axis_total(axes)
    problem = ""
    if len(one_by_one(axes)) != 1:
        problem = "several axes with groups must all be axes of devices: vmap binds one at a time"
    elif sorted(i for g in groups for i in g) != list(range(size)):
        problem = f"they must cover all indices 0 .. {size - 1} exactly once"
    elif len({len(g) for g in groups}) != 1:
        problem = "they must all be of the same size"
    if problem:
        got = f"{[list(g) for g in groups]} for {'*'.join(axes)} of size {size}"
        raise MappingError("axis_index_groups do not fit", got=got, rule=problem)
    return groups


def positions_of(rows: Any, what: str) -> Groups:
    """Freeze lists of positions along an axis. A float is not a position: 0.7 is not rounded to 0.

    Raises:
        MappingError: not lists of whole numbers.
    """
    try:
        return tuple(tuple(operator.index(i) for i in row) for row in rows)
    except TinyshardError:  # a traced number
        raise
    except TypeError as error:
        raise MappingError(f"{what}: these are not positions", got=repr(rows), rule="lists of whole numbers") from error


def dim_of(dim: int, ndim: int, what: str) -> int:
    """A dim counted from the front.

    Raises:
        MappingError: the tensor has no such dim.
    """
    if not hasattr(dim, "__index__"):
        raise MappingError(f"{what} is a whole number", got=f"{what}={dim!r} ({type(dim).__name__})")
    dim = operator.index(dim)
    if not -ndim <= dim < ndim:
        raise MappingError(
            f"{what} is not a dim of the operand", got=f"{what}={dim}, an operand of {ndim} dims for each of the axis"
        )
    return dim % ndim


def on_leaves(one: Callable[[torch.Tensor, int], Any], operand: Any, adds: str = "") -> Any:
    """Apply a collective to each leaf: `one(leaf, ndim)`, where ndim is the number of dims that the user sees.

    Args:
        one: takes a tensor; for keys it gets the words, whose last dim stays.
        operand: a tree; its leaves are tensors, values that can be made tensors, and keys. None stays None.
        adds: the name of the collective, if it computes with values: then keys are refused.

    Raises:
        DtypeError: a leaf is not a tensor, or keys in a collective that computes.
    """

    def apply(leaf: Any) -> Any:
        if not is_opaque_leaf(leaf):
            x = leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf)
            if adds and x.is_floating_point() and x.dtype.itemsize == 1:
                rule = f"torch does not compute with {x.dtype}, it only stores values in it"
                try_ = f"ts.lax.{adds}(x.to(torch.bfloat16), axis_name)"
                raise DtypeError(f"{adds} of 8-bit floats", got=f"{x.dtype}", rule=rule, try_=try_)
            return one(x, x.dim())
        if adds:
            got = f"a {type(leaf).__name__} of shape {leaf.shape} for each of the axis"
            try_ = "all_gather or ppermute, which move keys; or ts.random.fold_in(key, number) for another key"
            raise DtypeError(f"{adds} computes with numbers, and keys are none", got=got, try_=try_)
        return type(leaf)(one(leaf.data, leaf.ndim))

    return tree.map(apply, operand)
