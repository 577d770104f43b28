"""shard_map as JAX's users know it: spec trees, blocks, replicated values, nesting, gradients, keys, errors."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("local")
P = ts.P
X = torch.arange(24.0).reshape(8, 3)
W = torch.tensor([1.0, 2.0, 3.0])


def equal(got, expected):
    np.testing.assert_array_equal(np.asarray(ts.device_get(got)), np.asarray(expected))


def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


def over(f, in_specs, out_specs, **more):
    return ts.shard_map(f, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, **more)


# ---- blocks and specs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "block"),
    [(P(), (8, 6)), (P("a"), (2, 6)), (P(None, "b"), (8, 3)), (P("b", None), (4, 6)), (P(("b", "a")), (1, 6))],
)
def test_the_function_sees_the_block_that_the_spec_says(spec, block):
    x, seen = torch.arange(48).reshape(8, 6), []

    def f(v):
        seen.append(tuple(v.shape))
        return v + 1

    y = over(f, spec, spec)(x)
    equal(y, x + 1)
    assert seen == [block]
    assert y.sharding.shard_shape((8, 6)) == block


def test_each_device_works_on_its_own_block():
    sums = over(lambda v: v.sum().reshape(1, 1), P("a", "b"), P("a", "b"))(torch.arange(32.0).reshape(8, 4))
    equal(sums, torch.arange(32.0).reshape(4, 2, 2, 2).sum((1, 3)))


def test_a_tuple_of_axes_counts_the_last_fastest_in_specs_and_in_axis_index():
    for names in (("a", "b"), ("b", "a")):
        got = over(lambda v, n=names: v * 10 + ts.lax.axis_index(n), P(names), P(names))(torch.zeros(8))
        equal(got, np.arange(8))
    shuffled = over(lambda v: v, P(("a", "b")), P(("b", "a")))(torch.arange(8))
    equal(shuffled, np.arange(8).reshape(4, 2).T.reshape(-1))


def test_a_block_that_is_returned_as_it_is_lies_as_out_specs_say():
    for x in (torch.arange(8), ts.device_put(torch.arange(8), ts.NamedSharding(mesh(), P("a")))):
        first, rows = over(lambda v: (v, v), P("a"), (P(), P("a")), check_vma=False)(x)
        assert tuple(first.shape) == (2,)
        equal(first.addressable_shards[0].data, [0, 1])
        equal(rows, np.arange(8))


def test_specs_are_tree_prefixes_of_arguments_and_results():
    def f(params, pair):
        return {"y": pair[0] @ params["w"], "z": (pair[1], params["b"])}

    w, b = torch.eye(3) * 2, torch.arange(8.0)
    made = over(f, ({"w": P(), "b": P("b")}, P("a")), {"y": P("a"), "z": (P("a"), P("b"))})({"w": w, "b": b}, [X, X])
    equal(made["y"], X * 2)
    equal(made["z"][0], X)
    equal(made["z"][1], b)
    first, second = over(lambda u, v: (u + v, u - v), P("a"), P("a"))(X, X)
    equal(first, X * 2)
    equal(second, X * 0)


def test_none_leaves_numbers_and_results_that_are_no_tensors():
    y, nothing, number = over(lambda v, n, k: (v * k, n, 3), (P("a"), None, P()), (P("a"), P(), P()))(X, None, 2)
    equal(y, X * 2)
    assert nothing is None
    equal(number, 3)
    assert over(lambda v: None, P("a"), P())(X) is None


def test_a_function_without_arguments_runs_on_every_device():
    equal(over(lambda: ts.lax.axis_index("a")[None], (), P("a"))(), [0, 1, 2, 3])
    equal(ts.jit(over(lambda: ts.lax.axis_index("b")[None], (), P("b")))(), [0, 1])


def test_arguments_laid_out_otherwise_are_moved():
    for spec in (P(), P("b"), P(("a", "b")), P("a")):
        equal(over(lambda v: v * 2, P("a"), P("a"))(ts.device_put(X, ts.NamedSharding(mesh(), spec))), X * 2)
    other = ts.make_mesh((2, 4), ("p", "q"))
    equal(over(lambda v: v, P("a"), P("a"))(ts.device_put(X, ts.NamedSharding(other, P("q")))), X)


def test_the_mesh_that_is_set_serves_where_none_is_named():
    f = ts.shard_map(lambda v: ts.lax.psum(v, "a"), in_specs=P("a"), out_specs=P())
    with ts.set_mesh(mesh()):
        equal(f(X), X.reshape(4, 2, 3).sum(0))
    with ts.set_mesh(ts.make_mesh((2,), ("a",))):
        equal(f(X), X.reshape(2, 4, 3).sum(0))


def test_it_is_a_decorator_and_is_traced_once_for_each_signature():
    calls = []

    @ts.shard_map(mesh=mesh(), in_specs=P("a"), out_specs=P("a"))
    def f(v):
        calls.append(v.dtype)
        return v + 1

    for x in (X, X * 2, X.double(), X):
        equal(f(x), x + 1)
    assert calls == [torch.float32, torch.float64]
    assert f.__name__ == "f"


def test_an_abstract_mesh_is_lowered_and_not_called():
    f = ts.shard_map(
        lambda v: ts.lax.psum(v, "a"), mesh=ts.AbstractMesh((4096,), ("a",)), in_specs=P("a"), out_specs=P()
    )
    x = ts.ShapeDtypeStruct((4096, 2), torch.float32)
    assert "all_reduce" in f.lower(x).compile().as_text()
    with pytest.raises(ValueError, match="an AbstractMesh has no devices"):
        f(torch.zeros(4096, 2))
    with pytest.raises(ValueError, match="an AbstractMesh has no devices"):
        ts.jit(lambda v: f(v) + 1)(torch.zeros(4096, 2))


# ---- replicated values and gradients --------------------------------------------------------------------------------


def test_a_result_whose_spec_leaves_axes_out_is_one_devices_and_replicated():
    total = over(lambda v: ts.lax.psum(v, ("a", "b")), P(("a", "b")), P())(X)
    equal(total, X.sum(0, keepdim=True))
    assert total.is_fully_replicated
    rows = over(lambda v: ts.lax.psum(v, "b"), P("a", None), P("a"))(X)
    equal(rows, X * 2)
    assert rows.sharding.shard_shape((8, 3)) == (2, 3)


def test_gradients_from_outside_are_those_of_the_whole_function():
    def loss(w, x):
        # w is whole on every device, and every device has a copy of the result
        return over(lambda w, v: ts.lax.psum((v * w).sin().sum(), ("a", "b")), (P(), P(("a", "b"))), P())(w, x)

    def plain(w, x):
        return (x * w).sin().sum()

    for got, expected in zip(
        ts.grad(loss, argnums=(0, 1))(W, X), torch.func.grad(plain, argnums=(0, 1))(W, X), strict=True
    ):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)
    value, slope = ts.jvp(lambda w: loss(w, X), (W,), (torch.ones(3),))
    np.testing.assert_allclose(np.asarray(value), plain(W, X), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.asarray(slope), torch.func.grad(plain)(W, X).sum(), rtol=1e-4, atol=1e-3)


def test_without_check_vma_gradients_inside_are_each_devices_own_and_psum_transposes_to_psum():
    square = ts.grad(lambda v: ts.lax.psum((v**2).sum(), ("a", "b")))
    equal(over(square, P("a"), P("a"), check_vma=False)(X), 2 * X * 8)


def test_gradients_over_one_of_two_names_add_up_over_it_alone():
    x = torch.arange(16, dtype=torch.float64).reshape(8, 2) / 7

    def loss(v):
        return (ts.lax.pmean(v, "b") * ts.lax.axis_index("a")).sin().sum().reshape(1, 1)

    def plain(y):
        means = y.reshape(4, 2, 2, 1).mean(2)  # of both columns, which lie along "b"
        return (means * torch.arange(4)[:, None, None]).sin().sum() * 2  # and each of both holds the mean

    got = ts.grad(lambda y: over(loss, P("a", "b"), P("a", "b"))(y).sum())(x)
    np.testing.assert_allclose(np.asarray(got), torch.func.grad(plain)(x), rtol=1e-12, atol=1e-12)


def test_constants_of_autograds_own_are_no_inputs():
    def f(v):
        return (torch.complex(v, 2 * v) * 1j).abs() ** 2

    got = ts.grad(lambda x: over(f, P("a"), P("a"))(x).sum())(X)
    np.testing.assert_allclose(np.asarray(got), 10 * X, rtol=1e-5)


# ---- nesting --------------------------------------------------------------------------------------------------------


def test_jit_inside_and_outside():
    normed = over(ts.jit(lambda v: v / ts.lax.psum(v.sum(), "a")), P("a"), P("a"))
    np.testing.assert_allclose(np.asarray(ts.jit(lambda x: normed(x) + normed(x))(X)), 2 * X / X.sum(), rtol=1e-5)
    equal(ts.jit(lambda x: over(lambda v: v * 2, P("a"), P("a"))(torch.arange(4.0)) + x)(torch.ones(4)), [1, 3, 5, 7])


def test_vmap_outside_maps_what_every_device_does_and_its_name_reaches_inside():
    both = torch.stack([X, X + 1])
    equal(ts.vmap(over(lambda v: ts.lax.psum(v, "a"), P("a"), P()))(both), both.reshape(2, 4, 2, 3).sum(1))
    total = over(lambda v: ts.lax.psum(v, ("a", "n")), P("a"), P())
    equal(ts.vmap(total, axis_name="n")(both), (2 * X + 1).reshape(4, 2, 3).sum(0).expand(2, 2, 3))


def test_vmap_inside_keeps_its_name_to_itself():
    def f(v):
        return ts.vmap(lambda u: ts.lax.psum(u, "n") + ts.lax.psum(u, "a"), axis_name="n")(v)

    blocks = X.reshape(4, 2, 3)
    equal(over(f, P("a"), P("a"))(X), (blocks.sum(1, keepdim=True) + blocks.sum(0)).reshape(8, 3))


def test_what_it_closes_over_is_looked_up_at_each_call():
    held = {"w": W}
    f = over(lambda v: v * held["w"], P("a"), P("a"))
    equal(f(X), X * W)
    held["w"] = W * 10
    equal(f(X), X * W * 10)
    equal(ts.grad(lambda w: over(lambda v: v * w, P("a"), P("a"))(X).sum())(W), X.sum(0))


def test_a_derivative_inside_by_a_value_of_a_derivative_outside():
    def loss(w):
        def own(v):
            return ts.grad(lambda u: ((v * u) ** 2).sum())(ts.lax.pcast(w, "a", to="varying"))[None]

        return over(own, P("a"), P("a"))(X).sum()

    equal(ts.grad(loss)(W), 2 * (X**2).sum(0))


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_keys_are_cut_by_specs_of_their_own_shape():
    keys = ts.random.split(ts.random.key(0), (8, 2))
    expected = np.array([[np.asarray(ts.random.uniform(keys[i, j])) for j in range(2)] for i in range(8)])
    draw = ts.vmap(ts.vmap(ts.random.uniform))
    equal(over(draw, P("a", "b"), P("a", "b"))(keys), expected)
    folded = over(lambda k: ts.vmap(ts.vmap(lambda k: ts.random.fold_in(k, 7)))(k), P("a"), P("a"))(keys)
    assert folded.shape == (8, 2)
    words = np.asarray(ts.random.key_data(ts.random.fold_in(keys[5, 1], 7)))
    equal(ts.random.key_data(folded)[5, 1], words)


@pytest.mark.parametrize(
    "call",
    [
        lambda keys: over(lambda k: ts.random.key_data(k), P("a", "b"), P("a"))(keys),
        lambda keys: over(lambda k: ts.random.fold_in(k[0], 1), P("a"), P("a"))(keys),
        lambda keys: ts.device_put(keys, ts.NamedSharding(mesh(), P("a", "b"))),
    ],
    ids=["argument", "result", "device_put"],
)
def test_a_spec_cannot_cut_the_words_of_keys(call):
    with pytest.raises(ValueError, match="does not fit the array's rank"):
        call(ts.random.split(ts.random.key(0), 8))


# ---- errors ---------------------------------------------------------------------------------------------------------

WRONG = {
    "no mesh": (lambda: ts.shard_map(lambda v: v, in_specs=P(), out_specs=P())(X), ValueError, ["set_mesh"]),
    "no in_specs": (lambda: ts.shard_map(lambda v: v, mesh=mesh(), out_specs=P())(X), TypeError, ["no in_specs"]),
    "no out_specs": (lambda: ts.shard_map(lambda v: v, mesh=mesh(), in_specs=P())(X), TypeError, ["PartitionSpecs"]),
    "a string for a spec": (lambda: over(lambda v: v, "a", P())(X), TypeError, ["'a' (str)"]),
    "too many specs": (
        lambda: over(lambda v: v, (P(), P()), P())(X),
        ValueError,
        ["in_specs do not fit the arguments", "2 entries for 1 positional"],
    ),
    "an uneven cut": (lambda: over(lambda v: v, P(None, "b"), P())(X), ValueError, ["dim 1", "3 must be a multiple"]),
    "an unknown axis": (lambda: over(lambda v: v, P("z"), P())(X), ValueError, ["'z'", "('a', 'b')"]),
    "an axis twice": (lambda: over(lambda v: v, P("b", "b"), P())(torch.ones(2, 2)), ValueError, ["'b' twice"]),
    "a spec too long": (lambda: over(lambda v: v, P("a", None, "b"), P())(X), ValueError, ["a 2-d array"]),
    "a result without that dim": (lambda: over(lambda v: v.sum(), P("a"), P("a"))(X), ValueError, ["a 0-d array"]),
    "an unknown axis in out_specs": (lambda: over(lambda v: v, P("a"), P("q"))(X), ValueError, ["'q'"]),
    "arguments by name": (lambda: over(lambda v, k: v, P("a"), P("a"))(X, k=X), TypeError, ["by name: k"]),
    "no function": (lambda: over(3, P(), P()), TypeError, ["3 (int)"]),
    "no such mesh": (
        lambda: ts.shard_map(lambda v: v, mesh=3, in_specs=P(), out_specs=P())(X),
        ValueError,
        ["3 (int)"],
    ),
    "an unbound name": (
        lambda: over(lambda v: ts.lax.psum(v, "c"), P("a"), P("a"))(X),
        NameError,
        ["'c'", "'a' of size 4", "'b' of size 2"],
    ),
    "shard_map inside": (
        lambda: over(over(lambda v: v, P("b"), P("b")), P("a"), P("a"))(X),
        ValueError,
        ["a device cannot be split again"],
    ),
    "shard_map in pmap": (
        lambda: ts.pmap(over(lambda v: v, P("b"), P("b")))(X),
        ValueError,
        ["a device cannot be split again"],
    ),
    "a constraint inside": (
        lambda: over(lambda v: ts.lax.with_sharding_constraint(v, P("b")), P("a"), P("a"))(X),
        ValueError,
        ["'a', 'b' are mapped"],
    ),
    "a branch": (lambda: over(lambda v: v if v.sum() > 0 else -v, P("a"), P("a"))(X), TypeError, ["traced"]),
    "committed elsewhere": (
        lambda: over(lambda v: v, P("a"), P("a"))(ts.device_put(X, ts.devices()[5])),
        ValueError,
        ["array device ids [5]", "ts.device_put"],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_use_says_what_it_got_and_the_rule(what):
    assert_refused(*WRONG[what])
