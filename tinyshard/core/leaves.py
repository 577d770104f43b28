"""Where these trees differ from torch's: a key is one leaf, and None is an empty tree.

ts.random.split(key, 4)     shape (4,), to torch's trees a container of int32[4, 2]
{"w": w, "bias": None}      one leaf, to torch's trees two
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch.utils import _pytree
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map


def is_opaque_leaf(x: Any) -> bool:
    """Whether x is a leaf here but a container to torch."""
    return hasattr(x, "_placed")


def is_leaf(x: Any) -> bool:
    """An `is_leaf` for trees in which such a value, and None, are leaves. The count of leaves is that of torch."""
    return x is None or is_opaque_leaf(x)


class _Empty:
    """Replaces None in a tree that torch flattens: a container without leaves, which is restored as None."""


_pytree.register_pytree_node(
    _Empty, lambda _: ([], None), lambda _, __: None, flatten_with_keys_fn=lambda _: ([], None)
)
_EMPTY = _Empty()


def without_none(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree with an empty container for each None, for torch's functions of trees, to which None is a leaf.

    Args:
        tree: any value.
        is_leaf: whether a container, or None, is a leaf.

    Example:
        >>> tree_leaves(without_none({"w": 1, "bias": None}))
        [1]
    """
    if is_leaf is not None and is_leaf(None):
        return tree
    return tree_map(lambda x: _EMPTY if x is None else x, tree, is_leaf=stops_at(is_leaf))


def stops_at(is_leaf: Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    """An `is_leaf` for a tree of `without_none`: keys, and those of the given `is_leaf`."""
    return lambda x: x is not _EMPTY and (is_opaque_leaf(x) or (is_leaf is not None and is_leaf(x)))


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """Each leaf with the path to it; with its number if a container was registered without keys.

    Example:
        >>> named_leaves({"w": [1, 2]})
        [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    try:
        return [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(tree, is_leaf)[0]]
    except ValueError:  # torch has no path to a leaf through a container without flatten_with_keys_fn
        return [(f"[leaf {i}]", leaf) for i, leaf in enumerate(tree_leaves(tree, is_leaf))]


def dotted(path: Sequence[Any]) -> str:
    """The path to a leaf as torch names a parameter of a module.

    Example:
        >>> dotted(tree_flatten_with_path({"layers": [{"weight": 1}]})[0][0][0])
        'layers.0.weight'
    """
    return ".".join(keystr((key,)).strip("[]'.") for key in path)


def first_fitting(names: Iterable[str], patterns: Iterable[str]) -> tuple[dict[str, str | None], list[str]]:
    """For each name the first pattern that matches it, or None; and the patterns that match no name.

    Example:
        >>> first_fitting(["0.weight", "0.bias"], ["*.bias", "1.*"])
        ({'0.weight': None, '0.bias': '*.bias'}, ['1.*'])
    """
    names, patterns = list(names), list(patterns)
    found = {name: next((p for p in patterns if fnmatchcase(name, p)), None) for name in names}
    return found, [p for p in patterns if not any(fnmatchcase(name, p) for name in names)]


def shapes_of(tree: Any) -> list[tuple[int, ...]]:
    """The shape of each leaf as the user sees it; () for one without a shape."""
    return [tuple(getattr(x, "shape", ())) for x in tree_leaves(tree, is_leaf=is_leaf)]
