"""A tree of shardings, or of axes, that is a prefix of a tree of values: one entry may apply to a whole subtree.

prefix (rows, None)  ·  tree (x, {"w": w, "b": b})   ->   [rows, None, None]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_is_leaf, tree_leaves, tree_unflatten

from tinyshard.core.errors import ShardingError
from tinyshard.sharding import PartitionSpec

_BUILT_IN = (list, tuple, dict)


def spread(problem: str, prefix: Any, tree: Any) -> list[Any]:
    """One entry of the prefix for each leaf of the tree, without leaves that are None.

    Args:
        problem: the first line of the error: "jit's out_shardings do not fit the result of f".
        prefix: a tree of shardings or specs.
        tree: the tree of values.

    Raises:
        ShardingError: the prefix has other containers than the tree.

    Example:
        >>> spread("they do not fit", ("rows", None), (1, {"w": 2, "b": 3}))
        ['rows', None, None]
    """

    def misfit(prefix: Any, tree: Any) -> ShardingError:
        return ShardingError(
            problem,
            got=f"{sized(prefix)} for {sized(tree)}",
            rule="they have the same containers, or one entry in place of a whole subtree",
        )

    return [
        place for place, part in paired(prefix, tree, _is_place, misfit) for x in tree_leaves(part) if x is not None
    ]


def spread_over_arguments(
    what: str, function: str, prefix: Any, args: Sequence[Any], names: Sequence[str]
) -> list[Any]:
    """`spread` over the positional arguments of a call, with their names in its errors.

    Example:
        >>> spread_over_arguments("jit's in_shardings", "f", ("rows",), (1, 2), ("x", "y"))
        Traceback (most recent call last):
        tinyshard.errors.ShardingError: jit's in_shardings do not fit the arguments of f
          got:  1 entry for 2 positional arguments: x, y
          rule: one entry for each positional argument, or one for all of them
    """
    if _is_place(prefix):
        return spread(f"{what} do not fit the arguments of {function}", prefix, tuple(args))
    check_entries(what, function, prefix, names)
    return [
        place
        for part, arg, name in zip(prefix, args, names, strict=True)
        for place in spread(f"{what} do not fit argument {name!r} of {function}", part, arg)
    ]


def check_entries(what: str, function: str, prefix: Any, names: Sequence[str]) -> None:
    """Raise ShardingError unless a container has an entry for each positional argument."""
    if isinstance(prefix, dict) or len(prefix) != len(names):
        raise ShardingError(
            f"{what} do not fit the arguments of {function}",
            got=f"{sized(prefix) if isinstance(prefix, dict) else entries(prefix)} for {positional(names)}",
            rule="one entry for each positional argument, or one for all of them",
        )


def entries(prefix: Sequence[Any]) -> str:
    """The number of entries of a prefix, in words: "1 entry"."""
    return "1 entry" if len(prefix) == 1 else f"{len(prefix)} entries"


def positional(names: Sequence[str]) -> str:
    """The positional arguments of a call in words: "2 positional arguments: x, y"."""
    if not names:
        return "no positional argument"
    return f"{len(names)} positional argument{'s' if len(names) > 1 else ''}: {', '.join(names)}"


def map_with(
    problem: str,
    function: Callable[[Any, Any], Any],
    tree: Any,
    prefix: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Apply a function to each leaf and its entry of the prefix; None stays None."""
    leaves, form = tree_flatten(tree, is_leaf)
    entries = iter(spread(problem, prefix, tree))
    return tree_unflatten([None if x is None else function(x, next(entries)) for x in leaves], form)


def paired(
    prefix: Any, tree: Any, is_entry: Callable[[Any], bool], misfit: Callable[[Any, Any], Exception]
) -> Iterator[tuple[Any, Any]]:
    """Each entry of a prefix with the subtree that it applies to.

    Args:
        prefix: a tree of entries.
        tree: the tree of values.
        is_entry: whether a part of the prefix is an entry, and not a container.
        misfit: the error for a part of the prefix whose containers are not those of its subtree.

    Example:
        >>> list(paired((0, {"w": 1}), (2, {"w": (3, 4)}), lambda x: isinstance(x, int), lambda p, t: ValueError()))
        [(0, 2), (1, (3, 4))]
    """
    if is_entry(prefix):
        yield prefix, tree
    elif isinstance(prefix, dict) and isinstance(tree, dict) and set(prefix) == set(tree):
        for key in tree:
            yield from paired(prefix[key], tree[key], is_entry, misfit)
    elif isinstance(prefix, list | tuple) and isinstance(tree, list | tuple) and len(prefix) == len(tree):
        for part, subtree in zip(prefix, tree, strict=True):
            yield from paired(part, subtree, is_entry, misfit)
    elif type(prefix) is type(tree) and not isinstance(tree, _BUILT_IN) and is_container(tree):
        (parts, form), (subtrees, other) = _opened(prefix), _opened(tree)
        if form != other:
            raise misfit(prefix, tree)
        for part, subtree in zip(parts, subtrees, strict=True):
            yield from paired(part, subtree, is_entry, misfit)
    else:
        raise misfit(prefix, tree)


def is_container(x: Any) -> bool:
    """Whether x, of a prefix, is not an entry: a list, a tuple, a dict, or of a type registered with torch's trees."""
    return not isinstance(x, PartitionSpec) and (isinstance(x, _BUILT_IN) or not tree_is_leaf(x))


def _opened(x: Any) -> tuple[list[Any], TreeSpec]:
    """The direct children of a container, and its structure."""
    return tree_flatten(x, is_leaf=lambda part: part is not x)


def _is_place(x: Any) -> bool:
    return not is_container(x)


def sized(tree: Any) -> str:
    """A tree in words: "tuple of 2", "dict of 'w', 'b'", "one value" """
    if isinstance(tree, dict):
        return f"{type(tree).__name__} of {', '.join(map(repr, tree))}"
    if not is_container(tree):
        return "one value"
    return f"{type(tree).__name__} of {len(tree if isinstance(tree, _BUILT_IN) else _opened(tree)[0])}"
