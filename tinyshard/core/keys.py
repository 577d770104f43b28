"""Keys of caches, made from the arguments of an op."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

_BY_TEXT = (float, complex)  # -0.0 equals 0.0, and nan equals nothing


def frozen(tree: Any) -> Any:
    """A hashable key for a tree of arguments, which distinguishes 1, 1.0 and True, and -0.0 and 0.0.

    Example:
        >>> frozen([1, 2.0]) == frozen([1.0, 2]), frozen({"dim": -1}) == frozen({"dim": -1})
        (False, True)
    """
    if isinstance(tree, list | tuple):
        return (type(tree), *map(frozen, tree))
    if isinstance(tree, dict):
        return tuple((name, frozen(value)) for name, value in tree.items())
    if is_dataclass(tree):
        return (type(tree), *(frozen(getattr(tree, field.name)) for field in fields(tree)))
    return frozen_leaf(tree)


def frozen_leaf(x: Any) -> Any:
    """The key for a single value."""
    return (type(x), repr(x) if isinstance(x, _BY_TEXT) else x)
