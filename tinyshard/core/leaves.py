"""Values that are one leaf here, though torch's trees see a tensor inside: keys, whose own shape leaves out a dim.

ts.random.split(key, 4)     shape (4,), to torch's trees a container of int32[4, 2]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves


def is_whole(x: Any) -> bool:
    """Whether x is such a value."""
    return hasattr(x, "_placed")


def is_leaf(x: Any) -> bool:
    """Where to stop, for trees in which such a value, and None, are leaves. There are as many as torch's own."""
    return x is None or is_whole(x)


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """Each leaf with the way to it; where a container was registered without keys, with its number.

    Example:
        >>> named_leaves({"w": [1, 2]})
        [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    try:
        return [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(tree, is_leaf)[0]]
    except ValueError:  # torch has no way to a leaf through a container without flatten_with_keys_fn
        return [(f"[leaf {i}]", leaf) for i, leaf in enumerate(tree_leaves(tree, is_leaf))]


def shapes_of(tree: Any) -> list[tuple[int, ...]]:
    """The shape of each leaf as its user sees it; () for one that has none."""
    return [tuple(getattr(x, "shape", ())) for x in tree_leaves(tree, is_leaf=is_leaf)]
