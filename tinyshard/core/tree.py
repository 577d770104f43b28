"""Trees: nested lists, tuples, dicts and dataclasses of leaves. These are torch's pytrees under JAX's names.

As in JAX, None is an empty tree: it has no leaf, and `unflatten` restores it. A `ts.random.Key` is a leaf here. For
torch's own functions None is a leaf, and a Key a container of one tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils import _pytree
from torch.utils._pytree import TreeSpec

from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.core.leaves import stops_at, without_none
from tinyshard.core.registration import register_dataclass, register_static

IsLeaf = Callable[[Any], bool] | None


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, and its structure.

    Args:
        tree: any value; what is not a container is a leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        (leaves, treespec), from which `unflatten` makes the tree again.

    Communication: none.

    Example:
        >>> flatten({"a": 1, "b": (2, None)})[0]
        [1, 2]
    """
    return _pytree.tree_flatten(without_none(tree, is_leaf), stops_at(is_leaf))


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree.

    Args:
        tree: any value; what is not a container is a leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        A list, from left to right; the leaves of a dict in its insertion order.

    Communication: none.

    In JAX: the leaves of a dict in the order of its sorted keys.

    Example:
        >>> import tinyshard as ts
        >>> leaves([1, None, ts.random.key(0)])[1].shape
        ()
    """
    return flatten(tree, is_leaf)[0]


def map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply a function to each leaf of a tree, and to the parts of further trees at the same position.

    Args:
        function: of a leaf of each tree.
        tree: any value; what is not a container is a leaf.
        rest: further trees with the containers of the first; a leaf of the first may match a whole subtree.
        is_leaf: of a part of the first tree: whether it is a leaf, though it is a container or None.

    Returns:
        The first tree with the results as leaves.

    Raises:
        DtypeError: one of the further trees has something where the first has None.
        ValueError: it has other containers.

    Communication: none.

    Example:
        >>> map(lambda a, b: a + b, [1, None, 2], [10, None, 20])
        [11, None, 22]
    """
    found, form = _pytree.tree_flatten(tree, stops_at(is_leaf))  # here None is a leaf, which the rest must have too
    parts = [found, *(form.flatten_up_to(other) for other in rest)]
    none_is_leaf = is_leaf is not None and is_leaf(None)

    def one(leaf: Any, *others: Any) -> Any:
        if leaf is not None or none_is_leaf:
            return function(leaf, *others)
        if any(x is not None for x in others):
            problem = "the trees do not fit: None is an empty tree"
            raise DtypeError(problem, got=f"{others!r} where the first tree has None")
        return None

    return unflatten([one(*those) for those in zip(*parts, strict=True)], form)


def structure(tree: Any, is_leaf: IsLeaf = None) -> TreeSpec:
    """The structure of a tree.

    Args:
        tree: any value; what is not a container is a leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        A treespec. Trees of the same containers, dicts with their keys in the same order, have equal ones.

    Communication: none.

    Example:
        >>> structure([1, (2, None)]) == structure([3, (4, None)])
        True
    """
    return flatten(tree, is_leaf)[1]


def unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """Make a tree from its leaves: the inverse of `flatten`.

    Args:
        leaves: as many values as the tree has leaves.
        treespec: the result of `flatten` or `structure`.

    Returns:
        The tree.

    Raises:
        ValueError: more leaves, or fewer, than the tree has.
        TypeError: no treespec is passed.

    Communication: none.

    In JAX: the treespec comes first. Here either may.

    Example:
        >>> leaves, treespec = flatten({"a": 1, "b": (2, None)})
        >>> unflatten([10, 20], treespec)
        {'a': 10, 'b': (20, None)}
    """
    return _pytree.tree_unflatten(leaves, treespec)


Path = tuple[Any, ...]


def flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[Path, Any]], TreeSpec]:
    """The leaves of a tree with the path to each, and its structure.

    Args:
        tree: any value; what is not a container is a leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        ([(path, leaf), ...], treespec). A path is a tuple of torch's keys: MappingKey(key), SequenceKey(idx),
        GetAttrKey(name); `torch.utils._pytree.keystr(path)` prints it.

    Raises:
        ValueError: a container of a type that was registered without flatten_with_keys_fn.

    Communication: none.

    Example:
        >>> flatten_with_path({"a": [1, None, 2]})[0][1]
        ((MappingKey(key='a'), SequenceKey(idx=2)), 2)
    """
    return _pytree.tree_flatten_with_path(without_none(tree, is_leaf), stops_at(is_leaf))


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[Path, Any]]:
    """The leaves of a tree, each with the path to it.

    Args:
        tree: any value; what is not a container is a leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        [(path, leaf), ...], from left to right, as `flatten_with_path` has them.

    Raises:
        ValueError: a container of a type that was registered without flatten_with_keys_fn.

    Communication: none.

    Example:
        >>> leaves_with_path([5])
        [((SequenceKey(idx=0),), 5)]
    """
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply a function to the path to each leaf of a tree, to the leaf, and to the parts of further trees.

    Args:
        function: of a path, as `flatten_with_path` has it, and of a leaf of each tree.
        tree: any value; what is not a container is a leaf.
        rest: further trees with the containers of the first; a leaf of the first may match a whole subtree.
        is_leaf: of a part of the first tree: whether it is a leaf, though it is a container or None.

    Returns:
        The first tree with the results as leaves.

    Raises:
        DtypeError: one of the further trees has something where the first has None.
        ValueError: it has other containers; or a container was registered without flatten_with_keys_fn.

    Communication: none.

    Example:
        >>> map_with_path(lambda path, x: (path[0].key, x), {"a": 1, "b": None})
        {'a': ('a', 1), 'b': None}
    """
    paths, form = flatten_with_path(tree, is_leaf)
    return map(function, unflatten([path for path, _ in paths], form), tree, *rest, is_leaf=_is_path(paths))


def _is_path(paths: list[tuple[Path, Any]]) -> Callable[[Any], bool]:
    known = {id(path) for path, _ in paths}
    return lambda x: id(x) in known


def reduce(function: Callable[[Any, Any], Any], tree: Any, *initializer: Any, is_leaf: IsLeaf = None) -> Any:
    """Combine all leaves, from left to right.

    Args:
        function: takes the result so far, and the next leaf.
        tree: any value; what is not a container is a leaf.
        initializer: the first value; by default the first leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        The last result of the function.

    Raises:
        TypeError: a tree without leaves, and no initializer.

    Communication: that of the function.

    Example:
        >>> reduce(lambda total, x: total + x, {"a": 1, "b": [2, 3]})
        6
    """
    return functools.reduce(function, leaves(tree, is_leaf), *initializer)


def transpose(outer_treedef: TreeSpec, inner_treedef: TreeSpec | None, pytree_to_transpose: Any) -> Any:
    """Transpose a tree of trees: the inner structure becomes the outer one.

    Args:
        outer_treedef: the structure of the outer tree.
        inner_treedef: the structure of each inner one; None: that of the first.
        pytree_to_transpose: the tree of trees.

    Returns:
        The tree of the inner structure whose leaves are trees of the outer one.

    Raises:
        ValueError: the tree does not have these structures.

    Communication: none.

    Example:
        >>> each = {"a": [1, 2], "b": [3, 4]}
        >>> transpose(structure({"a": 0, "b": 0}), structure([0, 0]), each)
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    """
    parts = outer_treedef.flatten_up_to(pytree_to_transpose)
    if inner_treedef is None:
        inner_treedef = structure(parts[0])
    rows = [inner_treedef.flatten_up_to(part) for part in parts]
    return unflatten([unflatten(column, outer_treedef) for column in zip(*rows, strict=True)], inner_treedef)


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true.

    Args:
        tree: any value; what is not a container is a leaf.
        is_leaf: of a part of the tree: whether it is a leaf, though it is a container or None.

    Returns:
        A bool; True for a tree without leaves.

    Raises:
        TracedValueError: a leaf is a traced value.

    Communication: none between devices; it waits for leaves that are Arrays.

    Example:
        >>> all({"a": True, "b": [1, None]}), all([True, 0])
        (True, False)
    """
    return not [x for x in leaves(tree, is_leaf) if not x]


__all__ = [
    "all",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "register_dataclass",
    "register_static",
    "structure",
    "transpose",
    "unflatten",
]

__getattr__ = _names_of("tinyshard.tree", __all__)
