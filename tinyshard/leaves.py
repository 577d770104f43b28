"""Values that are one leaf here, though torch's trees see a tensor inside: keys, whose own shape leaves out a dim.

ts.random.split(key, 4)     shape (4,), to torch's trees a container of int32[4, 2]
"""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves


def is_whole(x: Any) -> bool:
    """Whether x is such a value."""
    return hasattr(x, "_placed")


def is_leaf(x: Any) -> bool:
    """Where to stop, for trees in which such a value, and None, are leaves. There are as many as torch's own."""
    return x is None or is_whole(x)


def shapes_of(tree: Any) -> list[tuple[int, ...]]:
    """The shape of each leaf as its user sees it; () for one that has none."""
    return [tuple(getattr(x, "shape", ())) for x in tree_leaves(tree, is_leaf=is_leaf)]
