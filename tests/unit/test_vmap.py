"""vmap as JAX's users know it: axes as tree prefixes, names, plain tensors and sharded Arrays, keys, errors."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("local")
X = torch.arange(12.0).reshape(4, 3)
W = torch.tensor([1.0, 2.0, 3.0])
BLOCKS = torch.arange(24.0).reshape(2, 4, 3)
Pair = namedtuple("Pair", "a b")


def equal(got, expected):
    np.testing.assert_array_equal(np.asarray(ts.device_get(got)), np.asarray(expected))


def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


def put(x, *spec):
    return ts.device_put(x, ts.NamedSharding(mesh(), ts.P(*spec)))


# ---- axes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda x: x, ts.array, lambda x: put(x, "a")], ids=["plain", "array", "sharded"])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_in_axes_and_out_axes_count_from_either_end(axis, make):
    x = make(X)
    got = ts.vmap(lambda v: v.cumsum(0), in_axes=axis, out_axes=axis)(x)
    equal(got, X.cumsum(1 if axis in (0, -2) else 0))
    assert isinstance(got, ts.Array) == isinstance(x, ts.Array)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_out_axes_may_be_any_dim_of_the_result(axis):
    got = ts.vmap(lambda v: torch.outer(v, v), out_axes=axis)(X)
    equal(got, np.moveaxis(np.stack([np.outer(v, v) for v in X.numpy()]), 0, axis))


def test_in_axes_are_a_tree_prefix_of_the_arguments():
    def f(params, v, pair):
        return v @ params["layer"][0] + params["layer"][1] + params["bias"] + pair.a * pair.b

    params = {"layer": [torch.eye(3), torch.arange(3.0)], "bias": torch.arange(4.0)}
    got = ts.vmap(f, in_axes=({"layer": None, "bias": 0}, 0, Pair(1, None)))(params, X, Pair(X.T, W))
    equal(got, X + torch.arange(3.0) + torch.arange(4.0)[:, None] + X * W)


def test_a_dict_prefix_is_matched_by_its_keys_not_by_their_order():
    given = OrderedDict(a=X, b=W)
    equal(ts.vmap(lambda p: p["a"] * p["b"], in_axes=({"b": None, "a": 0},))(given), X * W)


def test_out_axes_are_a_tree_prefix_of_the_results():
    got = ts.vmap(lambda v: {"pair": (v, v + 1), "sum": v.sum()}, out_axes={"pair": 1, "sum": 0})(X)
    equal(got["pair"][0], X.T)
    equal(got["pair"][1], X.T + 1)
    equal(got["sum"], X.sum(1))


def test_arguments_by_name_are_mapped_over_dim_0_and_none_arguments_and_results_stay_none():
    equal(ts.vmap(lambda v, *, k: v * k)(X, k=torch.arange(4.0)), X * torch.arange(4.0)[:, None])
    equal(ts.vmap(lambda *, k: k * 2, in_axes=())(k=X), X * 2)
    y, nothing = ts.vmap(lambda v, w: (v, w))(X, None)
    equal(y, X)
    assert nothing is None


def test_what_is_not_mapped_and_has_no_shape_reaches_the_function_as_it_is():
    seen = []

    def f(v, how, power, g):
        seen.append((how, power, g))
        return g(v) ** power if how == "up" else v

    equal(ts.vmap(f, in_axes=(0, None, None, None))(X, "up", 2, torch.neg), X**2)
    assert seen == [("up", 2, torch.neg)]


def test_numpy_arrays_and_lists_of_tensors_are_arguments_and_numbers_are_results():
    equal(ts.vmap(lambda v, w: v @ w, in_axes=(0, None))(X.numpy(), W.numpy()), X @ W)
    equal(ts.vmap(lambda pair: pair[0] - pair[1])([X, X]), torch.zeros(4, 3))
    number, table = ts.vmap(lambda v: (3, np.eye(2)))(X)
    equal(number, [3, 3, 3, 3])
    equal(table, np.stack([np.eye(2)] * 4))


# ---- size and name of the axis --------------------------------------------------------------------------------------


def test_axis_size_serves_where_no_argument_is_mapped():
    equal(ts.vmap(lambda v: v + 1, in_axes=None, axis_size=5)(W), np.tile(W + 1, (5, 1)))
    equal(ts.vmap(lambda: ts.lax.axis_index("i"), axis_name="i", axis_size=4)(), [0, 1, 2, 3])


def test_an_axis_of_size_0_gives_results_of_size_0():
    none = torch.zeros(0, 3)
    equal(ts.vmap(lambda v: v.sum())(none), np.zeros(0))
    equal(ts.vmap(lambda v: torch.outer(v, v), out_axes=-1)(ts.array(none)), np.zeros((3, 3, 0)))
    equal(ts.vmap(torch.dot, in_axes=(1, None))(none.T, W), np.zeros(0))
    equal(ts.jit(ts.vmap(lambda v: v.sum() / 3))(none), np.zeros(0))
    equal(ts.grad(lambda x: ts.vmap(lambda v: (v * W).sum())(x).sum())(none), none)
    assert ts.vmap(ts.random.key)(torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_collectives_over_an_axis_of_size_0_are_empty_or_zero_as_in_jax():
    none = torch.zeros(0, 3)

    def named(f, **kwargs):
        return ts.vmap(f, axis_name="i", **kwargs)(none)

    equal(named(lambda v: v + ts.lax.psum(v, "i") + ts.lax.pmax(v, "i") + ts.lax.axis_index("i")), none)
    equal(named(lambda v: ts.lax.all_gather(v, "i")), np.zeros((0, 0, 3)))
    equal(named(lambda v: ts.lax.ppermute(v, "i", [])), none)
    equal(named(lambda v: ts.lax.psum(v, "i"), out_axes=None), np.zeros(3))
    equal(named(lambda v: v.sum() / ts.lax.psum(1, "i")), np.zeros(0))


def test_out_axes_none_takes_what_collectives_make_the_same_for_all():
    lax = ts.lax
    for x in (X, ts.array(X), put(X, "a")):
        total, mean, all_of_it, rows = ts.vmap(
            lambda v: (lax.psum(v, "i"), lax.pmean(v * 2, "i"), lax.all_gather(v, "i"), v),
            axis_name="i",
            out_axes=(None, None, None, 0),
        )(x)
        equal(total, X.sum(0))
        equal(mean, X.mean(0) * 2)
        equal(all_of_it, X)
        equal(rows, X)


def test_the_innermost_binding_of_a_name_is_meant_whoever_binds_it():
    rows = X.sum(1, keepdim=True).expand(4, 3)

    def total(v):
        return ts.lax.psum(v, "i")

    for inner in (ts.vmap, ts.pmap):
        for outer in (ts.vmap, ts.pmap):
            if inner is outer is ts.pmap:
                continue
            equal(outer(inner(total, axis_name="i"), axis_name="i")(X), rows)


def test_over_no_axis_each_is_alone():
    lax = ts.lax
    for mapped in (ts.vmap, ts.pmap):
        equal(mapped(lambda v: lax.psum(v, ()) + lax.pmean(v, ()) + lax.axis_index(()), axis_name="i")(X), 2 * X)
        equal(mapped(lambda v: lax.all_gather(v, ()), axis_name="i")(X), X[:, None])
        equal(mapped(lambda v: lax.ppermute(v, (), [(0, 0)]), axis_name="i")(X), X)
        equal(mapped(lambda v: lax.psum_scatter(v[None], ()), axis_name="i")(X), X)


# ---- plain tensors, Arrays, shards ----------------------------------------------------------------------------------


def test_plain_tensors_stay_plain_and_any_array_makes_arrays():
    assert type(ts.vmap(torch.dot, in_axes=(0, None))(X, W)) is torch.Tensor
    for x, w in ((ts.array(X), W), (X, ts.array(W)), (put(X, "a"), W)):
        got = ts.vmap(torch.dot, in_axes=(0, None))(x, w)
        assert isinstance(got, ts.Array)
        equal(got, X @ W)


STAYS_CUT = {
    "elementwise": lambda v, w: torch.sin(v) * w,
    "dot": torch.dot,
    "softmax": lambda v, w: torch.softmax(v * w, 0),
    "sum": lambda v, w: (v + w).sum(),
    "sort": lambda v, w: torch.sort(-v).values,
    "where": lambda v, w: torch.where(v > 2, v, w),
    "matmul": lambda v, w: torch.outer(v, w) @ w,
    "norm": lambda v, w: torch.nn.functional.layer_norm(v, (4,)) + w,
}


@pytest.mark.parametrize("what", STAYS_CUT)
def test_a_cut_batch_dim_stays_cut_and_nothing_is_exchanged(what):
    f = STAYS_CUT[what]
    host = torch.arange(32.0).reshape(8, 4) / 7
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])
    x, both = put(host, ("a", "b")), ts.vmap(f, in_axes=(0, None))
    got = both(x, w)
    np.testing.assert_allclose(np.asarray(got), torch.func.vmap(f, in_dims=(0, None))(host, w), rtol=1e-5)
    whole = tuple(got.shape)
    assert got.sharding.shard_shape(whole) == (1, *whole[1:])
    text = ts.jit(both).lower(x, w).compile().as_text()
    assert not any(word in text for word in ("all_", "reduce_scatter", "collective_permute"))


def test_vmap_of_vmap_maps_both_dims_and_one_of_two_names_is_chosen():
    def f(u, v):
        return ts.lax.psum(u * v, "in") + ts.lax.axis_index("out")

    got = ts.vmap(ts.vmap(f, axis_name="in", in_axes=(0, None)), axis_name="out", in_axes=(0, None))(BLOCKS, W)
    expected = (BLOCKS * W).sum(1, keepdim=True).expand(2, 4, 3) + torch.arange(2.0)[:, None, None]
    equal(got, expected)


def test_derivatives_inside_and_outside_of_vmap_are_torchs():
    def f(v):
        return (torch.sin(v) * v).sum()

    expected = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(f)))(X)
    for x in (X, put(X, "a")):
        np.testing.assert_allclose(np.asarray(ts.vmap(ts.hessian(f))(x)), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            np.asarray(ts.grad(lambda y: ts.vmap(f)(y).sum())(x)), torch.func.vmap(torch.func.grad(f))(X), rtol=1e-5
        )
    jacobians = ts.vmap(ts.jacfwd(lambda u: ts.lax.all_gather(u, "i").sum(0)), axis_name="i")(X)
    equal(jacobians, np.tile(np.eye(3), (4, 1, 1)) * 4)


# ---- keys -----------------------------------------------------------------------------------------------------------

SEEDS = torch.arange(12).reshape(3, 4)


def keys():
    """Keys of shape (3, 4), and one by one the numbers that each gives."""
    made = ts.vmap(ts.vmap(ts.random.key))(SEEDS)
    draws = [[np.asarray(ts.random.uniform(ts.random.key(int(s)), (2,))) for s in row] for row in SEEDS]
    return made, np.array(draws)


def draw(key):
    return ts.random.uniform(key, (2,))


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_axes_of_keys_are_counted_in_their_own_shape(axis, mapped):
    made, draws = keys()
    equal(mapped(ts.vmap(draw), in_axes=axis)(made), np.moveaxis(draws, axis % 2, 0))
    split = mapped(lambda k: ts.random.split(k, 5), out_axes=axis)(made[0])
    one_by_one = [ts.random.key_data(ts.random.split(k, 5)) for k in made[0]]
    assert split.shape == ((4, 5) if axis in (0, -2) else (5, 4))
    equal(ts.random.key_data(split), np.stack(one_by_one, 0 if axis in (0, -2) else 1))


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_the_words_of_a_key_are_no_dim_to_map_over(mapped):
    made, _ = keys()
    with pytest.raises(ValueError, match=r"axis 1 of k, shape \(4,\)"):
        mapped(lambda k: ts.random.key_data(k), in_axes=1)(made[0])
    with pytest.raises(ValueError, match="1, a result of 1 dims"):
        mapped(lambda k: ts.random.fold_in(k, 1), out_axes=1)(made[0])


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_keys_are_gathered_sent_and_exchanged_whole(mapped):
    made, _ = keys()
    words = np.asarray(ts.random.key_data(made[0]))
    for axis in (0, -1):
        got = mapped(lambda k, axis=axis: ts.lax.all_gather(k, "i", axis=axis), axis_name="i")(made[0])
        assert got.shape == (4, 4)
        equal(ts.random.key_data(got), np.stack([words] * 4))
    sent = mapped(lambda k: ts.lax.pshuffle(k, "i", [1, 2, 3, 0]), axis_name="i")(made[0])
    equal(ts.random.key_data(sent), np.roll(words, -1, 0))
    swapped = mapped(lambda k: ts.lax.all_to_all(ts.random.split(k, 4), "i", -1, -1), axis_name="i")(made[0])
    split = np.stack([np.asarray(ts.random.key_data(ts.random.split(k, 4))) for k in made[0]])
    equal(ts.random.key_data(swapped), split.swapaxes(0, 1))


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin", "psum_scatter"])
def test_keys_are_not_computed_with(name):
    made, _ = keys()
    with pytest.raises(TypeError, match="computes with numbers, and keys are none"):
        ts.vmap(lambda k: getattr(ts.lax, name)(k, "i"), axis_name="i")(made)


def test_pmap_of_one_key_folded_with_the_device_gives_each_its_own_numbers():
    key = ts.random.key(3)
    got = ts.pmap(
        lambda k: draw(ts.random.fold_in(k, ts.lax.axis_index("i"))), axis_name="i", in_axes=None, axis_size=4
    )(key)
    equal(got, np.stack([np.asarray(draw(ts.random.fold_in(key, i))) for i in range(4)]))


# ---- errors ---------------------------------------------------------------------------------------------------------


def _added_in_place(x, s):
    s += x
    return s


WRONG = {
    "sizes that differ": (
        lambda: ts.vmap(lambda a, b: a, in_axes=(0, {"w": 1}))(X, {"w": X}),
        ValueError,
        ["a, shape (4, 3), has size 4", "b['w'], shape (4, 3), has size 3"],
    ),
    "a dim that is not there": (lambda: ts.vmap(lambda v: v, in_axes=2)(X), ValueError, ["axis 2 of v, shape (4, 3)"]),
    "a negative dim too far": (lambda: ts.vmap(lambda v: v, in_axes=-3)(X), ValueError, ["axis -3 of v", "at least 3"]),
    "a number that is mapped": (lambda: ts.vmap(lambda v, n: v)(X, 2.0), ValueError, ["axis 0 of n, shape ()"]),
    "a string that is mapped": (
        lambda: ts.vmap(lambda v, s: v)(X, "abc"),
        TypeError,
        ["s: 'abc' (str)", "in_axes=None"],
    ),
    "too many in_axes": (lambda: ts.vmap(lambda v: v, in_axes=(0, 0))(X), ValueError, ["2 entries for 1 positional"]),
    "in_axes of other containers": (
        lambda: ts.vmap(lambda d: d["w"], in_axes=({"v": 0},))({"w": X}),
        ValueError,
        ["in_axes do not fit", "dict of 'v' for dict of 'w'"],
    ),
    "no axis": (lambda: ts.vmap(lambda v: v, in_axes=1.0)(X), ValueError, ["1.0", "an int or None"]),
    "a bool for an axis": (lambda: ts.vmap(lambda v: v, in_axes=True)(X), ValueError, ["True", "an int or None"]),
    "out_axes beyond": (lambda: ts.vmap(lambda v: v, out_axes=2)(X), ValueError, ["2, a result of 2 dims"]),
    "out_axes of other containers": (
        lambda: ts.vmap(lambda v: (v, v), out_axes=(0, 0, 0))(X),
        ValueError,
        ["tuple of 3 for tuple of 2"],
    ),
    "None for what differs": (
        lambda: ts.vmap(lambda v: (v.sum(), v), out_axes=(None, 0))(X),
        ValueError,
        ["differs between examples", "psum or pmean"],
    ),
    "None for what differs between groups": (
        lambda: ts.vmap(
            lambda v: ts.lax.psum(v, "i", axis_index_groups=[[0, 1], [2, 3]]), axis_name="i", out_axes=None
        )(X),
        ValueError,
        ["differs between examples"],
    ),
    "nothing mapped": (lambda: ts.vmap(lambda v: v, in_axes=None)(X), ValueError, ["no mapped argument", "axis_size"]),
    "another axis_size": (lambda: ts.vmap(lambda v: v, axis_size=5)(X), ValueError, ["5 and 4"]),
    "a negative axis_size": (lambda: ts.vmap(lambda v: v, axis_size=-1), ValueError, ["-1"]),
    "a fraction of an axis_size": (lambda: ts.vmap(lambda v: v, axis_size=2.5), ValueError, ["2.5"]),
    "a name that is not a string": (lambda: ts.vmap(lambda v: v, axis_name=3), ValueError, ["3 (int)"]),
    "no function": (lambda: ts.vmap(X), TypeError, ["vmap takes a function"]),
    "a branch on an example": (
        lambda: ts.vmap(lambda v: v if v.sum() > 0 else -v)(X),
        TypeError,
        ["test_vmap.py", "torch.where"],
    ),
    "a number of an example": (lambda: ts.vmap(lambda v: v.sum().item())(X), TypeError, ["test_vmap.py"]),
    "a shape that depends on values": (lambda: ts.vmap(lambda v: v.nonzero())(X), TypeError, ["depends on values"]),
    "a mask of an example": (lambda: ts.vmap(lambda v: v[v > 0].sum())(X), TypeError, ["depends on values"]),
    "what all share changed in place": (
        lambda: ts.vmap(_added_in_place, in_axes=(0, None))(X, torch.zeros(X.shape[1])),
        TypeError,
        ["test_vmap.py", "s = s + x"],
    ),
    "what all share written at indices": (
        lambda: ts.vmap(lambda v: torch.zeros(5).index_put_((torch.tensor([2, 0, 1]),), v))(X),
        TypeError,
        ["test_vmap.py", "x.new_zeros(n)"],
    ),
    "what all share scattered to": (
        lambda: ts.jit(ts.vmap(lambda v: torch.zeros(5).scatter_(0, torch.tensor([2, 0, 1]), v)))(X),
        TypeError,
        ["test_vmap.py", "x.new_zeros(n)"],
    ),
    "a stateful draw": (lambda: ts.vmap(lambda v: v + torch.rand(3))(X), TypeError, ["test_vmap.py", "ts.random"]),
    "a change in place": (lambda: ts.vmap(lambda v: v.add_(1))(ts.array(X)), TypeError, ["torch.add"]),
    "a string as result": (lambda: ts.vmap(lambda v: "a")(X), TypeError, ["str: a"]),
    "a scatter over nobody": (
        lambda: ts.vmap(lambda v: ts.lax.psum_scatter(v, "i", tiled=True), axis_name="i")(torch.zeros(0, 3)),
        ValueError,
        ["psum_scatter over an axis of size 0"],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_use_says_what_it_got_and_a_way_out(what):
    assert_refused(*WRONG[what])
    equal(ts.vmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(X)[0], X.sum(0))


def test_an_error_of_vmap_is_told_once():
    with pytest.raises(TypeError) as told:
        ts.vmap(lambda v: v if v.sum() > 0 else -v)(X)
    assert told.value.__suppress_context__
