"""ts.tree: torch's pytrees under JAX's names, with None as an empty tree."""

import collections

import pytest
import torch

import tinyshard as ts

Point = collections.namedtuple("Point", ["x", "y"])


def test_none_is_an_empty_tree():
    assert ts.tree.leaves(None) == ts.tree.leaves([None]) == ts.tree.leaves({"a": (None, [])}) == []
    assert ts.tree.leaves({"a": 1, "b": [None, 2], "c": None}) == [1, 2]
    assert ts.tree.leaves(Point(None, 3)) == [3]


@pytest.mark.parametrize(
    "tree", [None, [None], {"a": 1, "b": [None, (2, None)]}, Point(None, [3, None]), (), 4, {"a": {}}]
)
def test_flatten_and_unflatten_give_the_tree_back(tree):
    leaves, form = ts.tree.flatten(tree)
    made = ts.tree.unflatten(leaves, form)
    assert made == tree and type(made) is type(tree)
    assert form == ts.tree.structure(tree) and None not in leaves
    assert ts.tree.unflatten([10 * x for x in leaves], form) == ts.tree.map(lambda x: 10 * x, tree)


def test_none_where_a_leaf_stands_is_another_structure():
    assert ts.tree.structure([1, None]) == ts.tree.structure([2, None])
    assert ts.tree.structure([1, None]) != ts.tree.structure([1, 2])
    assert ts.tree.structure([None]) != ts.tree.structure([])


def test_none_is_a_leaf_where_is_leaf_says_so():
    def is_none(x):
        return x is None

    assert ts.tree.leaves([1, None], is_leaf=is_none) == [1, None]
    assert ts.tree.map(lambda x: x is None, [1, None], is_leaf=is_none) == [False, True]
    pairs = ts.tree.leaves([(1, None), None, 3], is_leaf=lambda x: isinstance(x, tuple))
    assert pairs == [(1, None), 3]


def test_map_over_several_trees():
    assert ts.tree.map(lambda a, b: (a, b), {"x": 1, "y": None}, {"x": [2, None], "y": None}) == {
        "x": (1, [2, None]),
        "y": None,
    }
    with pytest.raises(TypeError, match="the first tree has None"):
        ts.tree.map(lambda a, b: a, [1, None], [1, 2])
    with pytest.raises(ValueError):
        ts.tree.map(lambda a, b: a, [1, 2], [1])
    with pytest.raises(ValueError):
        ts.tree.map(lambda a, b: a, [1, [2]], [1, None])


def test_keys_are_leaves_beside_none():
    keys = ts.random.split(ts.random.key(0), 3)
    assert [k.shape for k in ts.tree.leaves({"k": keys, "n": None})] == [(3,)]
    got = ts.tree.map(lambda k, n: k.shape[0] + n, (keys, None), (4, None))
    assert got == (7, None)


def test_an_optional_parameter_is_updated_as_in_jax():
    params = {"w": torch.ones(2), "b": None}
    grads = {"w": torch.full((2,), 3.0), "b": None}
    made = ts.tree.map(lambda p, g: p - g, params, grads)
    assert made["w"].tolist() == [-2.0, -2.0] and made["b"] is None


def test_leaves_have_paths_and_none_is_an_empty_tree():
    tree = {"a": [1, None], "b": (2,)}
    paths = [torch.utils._pytree.keystr(path) for path, _ in ts.tree.leaves_with_path(tree)]
    assert paths == ["['a'][0]", "['b'][0]"]
    leaves, form = ts.tree.flatten_with_path(tree)
    assert ts.tree.unflatten([x * 10 for _, x in leaves], form) == {"a": [10, None], "b": (20,)}


def test_map_with_path_gives_path_leaf_and_what_stands_there_in_further_trees():
    tree = {"a": [1, None], "b": (2,)}
    got = ts.tree.map_with_path(lambda path, x, y: (len(path), x, y), tree, {"a": [[5, 6], None], "b": (7,)})
    assert got == {"a": [(2, 1, [5, 6]), None], "b": ((2, 2, 7),)}
    assert ts.tree.map_with_path(lambda path, x: (path, x), 5) == ((), 5)


def test_reduce_goes_from_left_to_right():
    assert ts.tree.reduce(lambda text, x: text + str(x), {"a": [1, None], "b": 2}, "") == "12"
    with pytest.raises(TypeError):
        ts.tree.reduce(lambda a, b: a, [None])


def test_transpose_puts_the_inner_tree_outside():
    trees = [{"w": 1, "b": (2,)}, {"w": 3, "b": (4,)}]
    outer, inner = ts.tree.structure([0, 0]), ts.tree.structure(trees[0])
    for given in (inner, None):
        assert ts.tree.transpose(outer, given, trees) == {"w": [1, 3], "b": ([2, 4],)}
    with pytest.raises(ValueError, match="Node type"):
        ts.tree.transpose(ts.tree.structure({"a": 0}), None, trees)
