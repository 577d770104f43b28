"""Collectives: vmap, pmap on the local runtime and NumPy by hand agree; so do their derivatives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.collectives_by_hand import KINDS, LINEAR, MESHES, cases, extremes_keep_nan, over_two_axes, same
from tests.extent import every, examples, in_turn
from tests.slopes_by_hand import DIFFERENTIABLE, close, gradients_agree, slope_by_differences, sum_of_sines, weights

pytestmark = pytest.mark.usefixtures("local")


def drawn(data, kind, sizes=(1, 2, 3, 4, 6, 8), **options):
    return data.draw(cases(kind, data.draw(st.sampled_from(sizes)), **options))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(6, 40))
@given(data=st.data())
def test_vmap_and_pmap_give_what_numpy_gives(kind, data):
    case = drawn(data, kind)
    expected = case.by_hand(case.stack)
    same(ts.vmap(lambda v: case.call(v, "i"), axis_name="i")(case.operand), expected)
    same(ts.pmap(lambda v: case.call(v, "i"), axis_name="i")(case.operand), expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(3, 12))
@given(data=st.data())
def test_a_tuple_of_names_is_one_long_axis_however_they_are_bound(kind, data):
    mesh_shape = data.draw(st.sampled_from(MESHES))
    case = data.draw(cases(kind, mesh_shape[0] * mesh_shape[1], groups_allowed=False))
    expected = case.by_hand(case.stack)
    for way, got in over_two_axes(case, mesh_shape).items():
        try:
            same(got, expected)
        except AssertionError as error:
            raise AssertionError(f"{way}: {error}") from error


@pytest.mark.parametrize("kind", every(2, KINDS))
@settings(max_examples=examples(2, 10))
@given(data=st.data())
def test_one_of_two_names_works_for_each_position_of_the_other(kind, data):
    a, b = data.draw(st.sampled_from(MESHES))
    case = data.draw(cases(kind, b, dtypes=("int32", "float32", "bool")))
    stacks = np.stack([np.roll(case.stack, k, 0) for k in range(a)])
    expected = np.stack([case.by_hand(stack) for stack in stacks])
    both = torch.from_numpy(stacks)
    inner = lambda v: case.call(v, "b")  # noqa: E731
    same(ts.vmap(ts.vmap(inner, axis_name="b"), axis_name="a")(both), expected)
    same(ts.pmap(ts.vmap(inner, axis_name="b"), axis_name="a")(both), expected)
    same(ts.vmap(ts.pmap(inner, axis_name="b"), axis_name="a")(both), expected)
    same(
        ts.vmap(ts.vmap(inner, axis_name="b"), in_axes=1, out_axes=1)(both.transpose(0, 1)), np.moveaxis(expected, 0, 1)
    )


# ---- derivatives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
@settings(max_examples=examples(2, 6))
@given(data=st.data())
def test_gradients_are_the_finite_differences_inside_and_outside_of_the_map(kind, data):
    gradients_agree(drawn(data, kind, (1, 2, 4), distinct=True))


@pytest.mark.parametrize("kind", every(2, DIFFERENTIABLE))
@settings(max_examples=examples(2, 5))
@given(data=st.data())
def test_jvp_is_the_finite_difference_along_the_tangent(kind, data):
    case = drawn(data, kind, (1, 2, 4), distinct=True)
    tangent = np.random.default_rng(7).normal(size=case.stack.shape)
    expected = slope_by_differences(case, tangent)
    for mapped in (ts.vmap, ts.pmap):
        value, slope = ts.jvp(sum_of_sines(case, mapped), (case.operand,), (torch.from_numpy(tangent),))
        close(slope, expected)
        close(value, (weights(case.by_hand(case.stack).shape) * np.sin(case.by_hand(case.stack))).sum())


@pytest.mark.parametrize("kind", LINEAR)
@settings(max_examples=examples(2, 5))
@given(data=st.data())
def test_the_tangent_of_a_linear_collective_is_the_collective_of_the_tangent(kind, data):
    case = drawn(data, kind, (1, 2, 4), dtypes=("float64",))
    tangent = np.random.default_rng(7).normal(size=case.stack.shape)

    def pushed(v, t):
        return ts.jvp(lambda u: case.call(u, "i"), (v,), (t,))[1]

    for mapped in (ts.vmap, ts.pmap):
        close(mapped(pushed, axis_name="i")(case.operand, torch.from_numpy(tangent)), case.by_hand(tangent))


@pytest.mark.parametrize(
    "kind, mapped", in_turn(["psum", "pmean", "all_gather", "ppermute", "pshuffle"], (ts.vmap, ts.pmap))
)
def test_jacfwd_jacrev_and_hessian_through_the_map_are_the_matrices_by_hand(kind, mapped):
    n = 4
    calls = {
        "psum": (lambda v: ts.lax.psum(v, "i"), np.ones((n, n))),
        "pmean": (lambda v: ts.lax.pmean(v, "i"), np.full((n, n), 1 / n)),
        "all_gather": (lambda v: ts.lax.all_gather(v, "i").sum(), np.ones((n, n))),
        "ppermute": (lambda v: ts.lax.ppermute(v, "i", [(0, 1), (1, 3)]), np.zeros((n, n))),
        "pshuffle": (lambda v: ts.lax.pshuffle(v, "i", [2, 0, 3, 1]), np.eye(n)[[2, 0, 3, 1]]),
    }
    call, matrix = calls[kind]
    if kind == "ppermute":
        matrix[1, 0] = matrix[3, 1] = 1
    x = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    everyone = mapped(lambda v: call(v) ** 2, axis_name="i")
    y = matrix @ x.numpy()
    jacobian = 2 * y[:, None] * matrix
    close(ts.jacfwd(everyone)(x), jacobian)
    close(ts.jacrev(everyone)(x), jacobian)
    close(ts.hessian(lambda v: everyone(v).sum())(x), 2 * matrix.T @ matrix)


def test_the_gradient_of_a_sum_of_squares_counts_every_position():
    x = torch.tensor([1.0, 2.0, 3.0])
    for mapped in (ts.vmap, ts.pmap):
        found = mapped(ts.grad(lambda v: ts.lax.psum(v**2, "i")), axis_name="i")(x)
        np.testing.assert_allclose(np.asarray(found), [6.0, 12.0, 18.0])


def test_a_complex_gradient_goes_through_psum():
    x = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
    plain = torch.func.grad(lambda v: (v.sum().abs() ** 2) * 2)(x)
    for mapped in (ts.vmap, ts.pmap):
        found = torch.func.grad(
            lambda v, m=mapped: m(lambda u: ts.lax.psum(u, "i").abs() ** 2, axis_name="i")(v).sum()
        )(x)
        close(found, plain)


# ---- operands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_trees_go_through_every_collective_leaf_by_leaf(mapped):
    tree = {"w": torch.arange(16.0).reshape(4, 4), "b": [torch.arange(4), (torch.ones(4, 4),)]}
    made = mapped(lambda t: {"sum": ts.lax.psum(t, "i"), "max": ts.lax.pmax(t["b"], "i")}, axis_name="i")(tree)
    np.testing.assert_array_equal(np.asarray(made["sum"]["w"]), np.tile(np.arange(16.0).reshape(4, 4).sum(0), (4, 1)))
    np.testing.assert_array_equal(np.asarray(made["sum"]["b"][0]), [6, 6, 6, 6])
    np.testing.assert_array_equal(np.asarray(made["sum"]["b"][1][0]), np.full((4, 4), 4.0))
    np.testing.assert_array_equal(np.asarray(made["max"][0]), [3, 3, 3, 3])
    swapped = mapped(lambda t: ts.lax.all_to_all((t["w"], t["b"][1]), "i", 0, 0), axis_name="i")(tree)
    np.testing.assert_array_equal(np.asarray(swapped[0]), np.arange(16.0).reshape(4, 4).T)
    np.testing.assert_array_equal(np.asarray(swapped[1][0]), np.ones((4, 4)))


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_a_value_that_is_not_mapped_counts_once_for_every_position(mapped):
    held = torch.tensor([1.0, 2.0])
    x = torch.zeros(4)
    by_name = mapped(lambda v: v + ts.lax.psum(held, "i"), axis_name="i")(x)
    as_argument = mapped(lambda v, h: v + ts.lax.psum(h, "i"), axis_name="i", in_axes=(0, None))(x, held)
    for got in (by_name, as_argument):
        np.testing.assert_array_equal(np.asarray(got), np.tile([4.0, 8.0], (4, 1)))
    same_for_all = mapped(lambda v: v + ts.lax.pmax(held, "i") + ts.lax.pmean(held, "i"), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(same_for_all), np.tile([2.0, 4.0], (4, 1)))
    gathered = mapped(lambda v: ts.lax.all_gather(held, "i"), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(gathered), np.tile([1.0, 2.0], (4, 4, 1)))
    sent = mapped(lambda v: ts.lax.ppermute(held, "i", [(3, 0)]), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(sent), [[1, 2], [0, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_psum_of_a_number_is_a_number_times_the_size(mapped):
    found = []

    def f(v):
        found.append((ts.lax.psum(1, "i"), ts.lax.psum(2.5, "i"), ts.lax.axis_size("i")))
        return v

    mapped(f, axis_name="i")(torch.zeros(4))
    assert found[0] == (4, 10.0, 4)
    assert isinstance(found[0][0], int)


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_the_largest_and_the_smallest_of_numbers_and_nan_is_nan(mapped):
    extremes_keep_nan(mapped)


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_a_sum_of_ints_that_is_too_large_wraps_around_as_numpys(mapped):
    limits = [np.iinfo(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
    given = [np.array([n.max, n.max - 3, n.min + 1], n.dtype) for n in limits]
    lax = ts.lax
    sums, largest, smallest = mapped(lambda t: (lax.psum(t, "i"), lax.pmax(t, "i"), lax.pmin(t, "i")), axis_name="i")(
        given
    )
    for x, total, high, low in zip(given, sums, largest, smallest, strict=True):
        for values, expected in ((total, x.sum(dtype=x.dtype)), (high, x.max()), (low, x.min())):
            assert np.asarray(values).dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(values), [expected] * 3)


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_bfloat16_goes_through_every_collective_and_its_gradient(mapped):
    lax, x = ts.lax, torch.arange(16.0).reshape(4, 4)
    total = np.tile(x.sum(0), (4, 1))
    calls = {
        "psum": (lambda v: lax.psum(v, "i"), total),
        "pmean": (lambda v: lax.pmean(v, "i"), total / 4),
        "all_gather": (lambda v: lax.all_gather(v, "i"), np.stack([x] * 4)),
        "psum_scatter": (lambda v: lax.psum_scatter(v, "i"), x.sum(0)),
        "all_to_all": (lambda v: lax.all_to_all(v, "i", 0, 0), x.T),
        "pshuffle": (lambda v: lax.pshuffle(v, "i", [1, 2, 3, 0]), np.roll(x, -1, 0)),
        "pmax": (lambda v: lax.pmax(v, "i"), np.tile(x[3], (4, 1))),
    }
    everyone = mapped(lambda v: {name: call(v) for name, (call, _) in calls.items()}, axis_name="i")
    got = everyone(x.bfloat16())
    for name, (_, by_hand) in calls.items():
        assert got[name].dtype == torch.bfloat16, name
        np.testing.assert_array_equal(ts.device_get(got[name]).float(), by_hand, err_msg=name)
    back = ts.device_get(ts.grad(lambda v: sum(out.sum() for out in everyone(v).values()))(x.bfloat16()))
    assert back.dtype == torch.bfloat16
    slopes = 4 + 1 + 4 + 1 + 1 + 1 + np.array([[0.0], [0.0], [0.0], [4.0]])  # in the order of the calls
    np.testing.assert_array_equal(back.float(), np.broadcast_to(slopes, (4, 4)))


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
def test_values_without_elements_are_exchanged(mapped):
    none = torch.zeros(4, 0, 4)
    lax = ts.lax
    shapes = {
        (4, 0, 4): lambda v: lax.psum(v, "i") + lax.pmax(v, "i") + lax.ppermute(v, "i", [(0, 1)]),
        (4, 4, 0, 4): lambda v: lax.all_gather(v, "i"),
        (4, 0, 1): lambda v: lax.psum_scatter(v, "i", scatter_dimension=1, tiled=True),
        (4, 0, 16): lambda v: lax.all_to_all(v, "i", 0, 1, tiled=True),
    }
    for shape, f in shapes.items():
        assert tuple(mapped(f, axis_name="i")(none).shape) == shape


# ---- wrong uses -----------------------------------------------------------------------------------------------------

WRONG = {
    "a source twice": (lambda v: ts.lax.ppermute(v, "i", [(0, 1), (0, 2)]), ValueError, ["source 0", "unique"]),
    "a target twice": (lambda v: ts.lax.ppermute(v, "i", [(0, 1), (2, 1)]), ValueError, ["target 1", "unique"]),
    "a position beyond": (lambda v: ts.lax.ppermute(v, "i", [(0, 4)]), ValueError, ["target 4", "size 4"]),
    "no permutation": (lambda v: ts.lax.pshuffle(v, "i", [0, 0, 1, 2]), ValueError, ["[0, 0, 1, 2]", "0 .. 3"]),
    "part of a position": (lambda v: ts.lax.ppermute(v, "i", [(0.7, 1)]), ValueError, ["0.7", "whole numbers"]),
    "no pairs": (lambda v: ts.lax.ppermute(v, "i", [1, 2, 3, 0]), ValueError, ["[1, 2, 3, 0]", "whole numbers"]),
    "three in a pair": (lambda v: ts.lax.ppermute(v, "i", [(0, 1, 2)]), ValueError, ["(0, 1, 2)", "(source, target)"]),
    "no list of pairs": (lambda v: ts.lax.ppermute(v, "i", None), ValueError, ["None", "whole numbers"]),
    "parts of positions": (lambda v: ts.lax.pshuffle(v, "i", [1.0, 0, 2, 3]), ValueError, ["1.0", "whole numbers"]),
    "no list of positions": (lambda v: ts.lax.pshuffle(v, "i", None), ValueError, ["None", "whole numbers"]),
    "groups of no positions": (
        lambda v: ts.lax.psum(v, "i", axis_index_groups=[[0.5, 1], [2, 3]]),
        ValueError,
        ["0.5", "whole numbers"],
    ),
    "groups in letters": (lambda v: ts.lax.psum(v, "i", axis_index_groups="ab"), ValueError, ["'ab'", "whole numbers"]),
    "half a dim": (lambda v: ts.lax.all_gather(v, "i", axis=0.5, tiled=True), ValueError, ["axis=0.5 (float)"]),
    "a float for a dim": (
        lambda v: ts.lax.psum_scatter(v, "i", scatter_dimension=0.0),
        ValueError,
        ["scatter_dimension=0.0", "whole"],
    ),
    "a float to split": (lambda v: ts.lax.all_to_all(v, "i", 0.0, 0), ValueError, ["split_axis=0.0", "whole"]),
    "an unbound name": (lambda v: ts.lax.psum(v, "j"), NameError, ["'j'", "'i' of size 4"]),
    "one name unbound": (lambda v: ts.lax.psum(v, ("i", "j")), NameError, ["'j'", "'i' of size 4"]),
    "a name twice": (lambda v: ts.lax.psum(v, ("i", "i")), ValueError, ["twice", "('i', 'i')"]),
    "no name": (lambda v: ts.lax.psum(v, 0), ValueError, ["0 (int)", "string"]),
    "groups too small": (lambda v: ts.lax.psum(v, "i", axis_index_groups=[[0, 1]]), ValueError, ["[[0, 1]]", "size 4"]),
    "uneven groups": (
        lambda v: ts.lax.psum(v, "i", axis_index_groups=[[0, 1, 2], [3]]),
        ValueError,
        ["[[0, 1, 2], [3]]", "same size"],
    ),
    "no such dim": (lambda v: ts.lax.all_gather(v, "i", axis=3), ValueError, ["axis=3"]),
    "a dim too long": (lambda v: ts.lax.psum_scatter(v, "i"), ValueError, ["(3,)", "size 4"]),
    "an uneven tile": (lambda v: ts.lax.all_to_all(v, "i", 0, 0, tiled=True), ValueError, ["(3,)", "multiple", "to 4"]),
    "the largest complex": (lambda v: ts.lax.pmax(v + 1j, "i"), TypeError, ["complex64"]),
}


@pytest.mark.parametrize("what, mapped", in_turn(WRONG, (ts.vmap, ts.pmap)))
def test_a_wrong_use_says_what_it_got_and_the_rule(what, mapped):
    f, kind, words = WRONG[what]
    with pytest.raises(kind) as raised:
        mapped(f, axis_name="i")(torch.zeros(4, 3))
    assert isinstance(raised.value, ts.TinyshardError)
    for word in words:
        assert word in str(raised.value)
    np.testing.assert_array_equal(np.asarray(mapped(lambda v: v + 1, axis_name="i")(torch.zeros(4))), np.ones(4))


def test_a_name_outside_of_every_map_is_unbound():
    with pytest.raises(NameError, match="names in scope: none"):
        ts.lax.psum(torch.ones(3), "i")
