"""A tree of shardings that is a prefix of a tree of values: one sharding may stand for a whole subtree.

prefix (rows, None)  ·  tree (x, {"w": w, "b": b})   ->   [rows, None, None]
"""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves

from tinyshard.errors import ShardingError, message
from tinyshard.sharding import PartitionSpec


def spread(prefix: Any, tree: Any) -> list[Any]:
    """One entry of the prefix for each leaf of the tree, leaves that are None left out.

    Raises:
        ShardingError: the prefix has other containers than the tree.

    Example:
        >>> spread(("rows", None), (1, {"w": 2, "b": 3}))
        ['rows', None, None]
    """
    if isinstance(prefix, PartitionSpec) or not isinstance(prefix, list | tuple | dict):
        return [prefix for leaf in tree_leaves(tree) if leaf is not None]
    if isinstance(prefix, dict) and isinstance(tree, dict) and set(prefix) == set(tree):
        return [place for key in tree for place in spread(prefix[key], tree[key])]
    both_sequences = not isinstance(prefix, dict) and isinstance(tree, list | tuple)
    if both_sequences and len(prefix) == len(tree):
        return [place for p, t in zip(prefix, tree, strict=True) for place in spread(p, t)]
    raise ShardingError(
        message(
            "the tree of shardings does not fit the arguments or results",
            got=f"{_sized(prefix)} for {_sized(tree)}",
            rule="it has the same containers, or one sharding in place of a whole subtree",
        )
    )


def _sized(tree: Any) -> str:
    return f"{type(tree).__name__} of {len(tree)}" if isinstance(tree, list | tuple | dict) else type(tree).__name__
