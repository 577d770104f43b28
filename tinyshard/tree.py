"""Trees: nested lists, tuples, dicts and dataclasses of leaves. These are torch's pytrees under JAX's names.

A `ts.random.Key` is a leaf here; to torch's own functions it is a container of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree
from torch.utils._pytree import TreeSpec
from torch.utils._pytree import tree_unflatten as unflatten

from tinyshard.random.keys import Key


def _is_leaf(is_leaf: Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, Key) or (is_leaf is not None and is_leaf(x))


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, and how they are put together.

    Example:
        >>> flatten({"a": 1, "b": (2, 3)})[0]
        [1, 2, 3]
    """
    return _pytree.tree_flatten(tree, _is_leaf(is_leaf))


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a tree.

    Example:
        >>> import tinyshard as ts
        >>> leaves([1, ts.random.key(0)])[1].shape
        ()
    """
    return _pytree.tree_leaves(tree, _is_leaf(is_leaf))


def map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree of what a function makes of each leaf, and of the leaves of further trees of the same form.

    Example:
        >>> map(lambda a, b: a + b, [1, 2], [10, 20])
        [11, 22]
    """
    return _pytree.tree_map(function, tree, *rest, is_leaf=_is_leaf(is_leaf))


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """How the leaves of a tree are put together."""
    return _pytree.tree_structure(tree, _is_leaf(is_leaf))


__all__ = ["flatten", "leaves", "map", "structure", "unflatten"]
