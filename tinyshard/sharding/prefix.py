"""A tree of shardings, or of axes, that is a prefix of a tree of values: one entry may stand for a whole subtree.

prefix (rows, None)  ·  tree (x, {"w": w, "b": b})   ->   [rows, None, None]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_is_leaf, tree_leaves, tree_unflatten

from tinyshard.core.errors import ShardingError
from tinyshard.sharding import PartitionSpec

_BUILT_IN = (list, tuple, dict)


def spread(prefix: Any, tree: Any) -> list[Any]:
    """One entry of the prefix for each leaf of the tree, leaves that are None left out.

    Raises:
        ShardingError: the prefix has other containers than the tree.

    Example:
        >>> spread(("rows", None), (1, {"w": 2, "b": 3}))
        ['rows', None, None]
    """
    return [
        place for place, part in paired(prefix, tree, _is_place, _misfit) for x in tree_leaves(part) if x is not None
    ]


def map_with(
    function: Callable[[Any, Any], Any], tree: Any, prefix: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """The tree of what a function makes of each leaf and of its entry of the prefix; None stays None."""
    leaves, form = tree_flatten(tree, is_leaf)
    entries = iter(spread(prefix, tree))
    return tree_unflatten([None if x is None else function(x, next(entries)) for x in leaves], form)


def paired(
    prefix: Any, tree: Any, is_entry: Callable[[Any], bool], misfit: Callable[[Any, Any], Exception]
) -> Iterator[tuple[Any, Any]]:
    """Each entry of a prefix with the subtree that it stands for.

    Args:
        prefix: a tree of entries.
        tree: the tree of values.
        is_entry: what of the prefix is an entry, and no container.
        misfit: the error for a part of the prefix that has not the containers of its subtree.

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
    """Whether x, of a prefix, is no entry: a list, a tuple, a dict, or of a type that torch's trees know."""
    return not isinstance(x, PartitionSpec) and (isinstance(x, _BUILT_IN) or not tree_is_leaf(x))


def _opened(x: Any) -> tuple[list[Any], TreeSpec]:
    """What is directly in a container, and how that is put together."""
    return tree_flatten(x, is_leaf=lambda part: part is not x)


def _is_place(x: Any) -> bool:
    return not is_container(x)


def _misfit(prefix: Any, tree: Any) -> ShardingError:
    return ShardingError(
        "the tree of shardings does not fit the tree of values",
        got=f"{sized(prefix)} for {sized(tree)}",
        rule="it has the same containers, or one sharding in place of a whole subtree",
    )


def sized(tree: Any) -> str:
    """A container in words: "tuple of 2", "dict of 'w', 'b'"."""
    if isinstance(tree, dict):
        return f"{type(tree).__name__} of {', '.join(map(repr, tree))}"
    if not is_container(tree):
        return type(tree).__name__
    return f"{type(tree).__name__} of {len(tree if isinstance(tree, _BUILT_IN) else _opened(tree)[0])}"
