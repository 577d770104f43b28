"""in_axes and out_axes: trees that are prefixes of the arguments and the results, checked against them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._pytree import tree_leaves

from tinyshard.arrays.placement import as_tensor
from tinyshard.compile.signature import argument_names, leaf_names
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.core.ints import as_int
from tinyshard.core.leaves import is_leaf
from tinyshard.sharding.prefix import entries, is_container, paired, positional, sized


def spread_axes(what: str, prefix: Any, tree: Any) -> list[int | None]:
    """One axis for each leaf of the tree, None leaves included.

    Raises:
        MappingError: the prefix has other containers than the tree, or holds something that is not an axis.

    Example:
        >>> spread_axes("in_axes", (0, {"w": None, "b": 1}), (1, {"w": (2, 3), "b": 4}))
        [0, None, None, 1]
    """

    def misfit(prefix: Any, tree: Any) -> MappingError:
        if not is_container(prefix):
            rule = "an axis is an int or None"
            return MappingError(f"{what} hold something that is not an axis", got=repr(prefix), rule=rule)
        return MappingError(
            f"{what} do not fit",
            got=f"{sized(prefix)} for {sized(tree)}",
            rule="it has the same containers, or one axis in place of a whole subtree",
        )

    pairs = paired(prefix, tree, _is_axis, misfit)
    return [
        None if axis is None else as_int(axis)
        for axis, part in pairs
        for _ in tree_leaves(part, is_leaf=lambda x: x is None)
    ]


def _is_axis(x: Any) -> bool:
    return x is None or (not isinstance(x, bool) and as_int(x) is not None)


def checked_axis_size(asked: Any) -> int | None:
    """The number of examples, or rows, that the user passed. Raises MappingError if it is not an int of at least 0."""
    size = None if asked is None or isinstance(asked, bool) else as_int(asked)
    if asked is not None and (size is None or size < 0):
        problem = "axis_size is the number of examples"
        raise MappingError(problem, got=f"{asked!r} ({type(asked).__name__})", rule="an int that is 0 or more")
    return size


def mapped_dims(
    what: str, fun: Any, in_axes: Any, args: Sequence[Any], kwargs: dict[str, Any], asked: int | None
) -> tuple[list[int | None], int]:
    """The mapped dim of each leaf of (args, kwargs), from the front, None for one that is not mapped; and their size.

    Raises:
        MappingError: in_axes do not fit, or name a dim that does not exist; sizes differ, or there is none.
        DtypeError: an argument that should be mapped is not a tensor.
    """
    if isinstance(in_axes, list | tuple) and len(in_axes) != len(args):
        by_name = f"; by name: {', '.join(kwargs)}" if kwargs else ""
        raise MappingError(
            f"{what}'s in_axes do not fit the arguments of {getattr(fun, '__name__', 'the function')}",
            got=f"{entries(in_axes)} for {positional(argument_names(fun, len(args)))}{by_name}",
            rule="one entry for each positional argument, or one int for all",
            try_=f"{', '.join(kwargs)} by position: arguments by name are mapped over dim 0" if kwargs else "",
        )
    axes = [*spread_axes(f"{what}'s in_axes", in_axes, tuple(args)), *spread_axes("", 0, kwargs)]
    leaves = tree_leaves((tuple(args), kwargs), is_leaf=is_leaf)
    dims: list[int | None] = []
    sizes: dict[int, str] = {}
    for name, leaf, axis in zip(leaf_names(fun, args, kwargs, is_leaf=is_leaf), leaves, axes, strict=True):
        if leaf is None or axis is None:
            dims.append(None)
            continue
        if isinstance(leaf, str | bytes) or callable(leaf):
            raise DtypeError(
                f"{what} cannot map an argument that is not an array",
                got=f"{name}: {leaf!r} ({type(leaf).__name__})",
                try_="in_axes=None for an argument that all share",
            )
        shape = tuple(leaf.shape if hasattr(leaf, "shape") else as_tensor(leaf).shape)
        ndim = len(shape)
        if not -ndim <= axis < ndim:
            raise MappingError(
                f"{what} cannot map an argument over a dim that it does not have",
                got=f"axis {axis} of {name}, shape {shape}",
                rule=f"its rank must be at least {axis + 1 if axis >= 0 else -axis}, but is {ndim}",
                try_="in_axes=None for an argument that all share",
            )
        dim = axis % ndim
        dims.append(dim)
        sizes.setdefault(shape[dim], f"axis {dim} of {name}, shape {shape}, has size {shape[dim]}")
    if len(sizes) > 1:
        raise MappingError(
            f"{what} got inconsistent sizes for the axes to be mapped",
            got="\n".join(sizes.values()),
            rule="all mapped axes are of one size",
            try_="in_axes to choose other dims, None for an argument that all share",
        )
    size = next(iter(sizes), None)
    if size is None and asked is None:
        raise MappingError(
            f"{what} finds no mapped argument",
            got=f"in_axes is None for all {len(leaves)} of them" if leaves else "no argument",
            rule="at least one argument is mapped, or axis_size says how many there are",
        )
    if asked is not None and size is not None and asked != size:
        raise MappingError(f"{what}'s axis_size differs from the arguments'", got=f"{asked} and {size}")
    return dims, int(size if size is not None else asked or 0)


def placed_dims(what: str, out_axes: Any, out: Any) -> list[int | None]:
    """The position of the mapped dim in each leaf of the result by out_axes, counted from the front.

    Raises:
        MappingError: the result does not have this dim, or as `spread_axes`.
    """
    dims: list[int | None] = []
    leaves = tree_leaves(out, is_leaf=is_leaf)
    for axis, x in zip(spread_axes(f"{what}'s out_axes", out_axes, out), leaves, strict=True):
        axis, ndim = None if x is None else axis, len(getattr(x, "shape", ())) + 1
        if axis is not None and not -ndim <= axis < ndim:
            problem = "out_axes names a dim that the result does not have"
            raise MappingError(problem, got=f"{axis}, a result of {ndim} dims")
        dims.append(None if axis is None else axis % ndim)
    return dims
