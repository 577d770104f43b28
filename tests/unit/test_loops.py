"""`fori_loop`, `map` and `while_loop` compute what loops of Python's do."""

import pytest
import torch

import tinyshard as ts
from tests.unit.test_scan import close, normal


@pytest.fixture(autouse=True)
def local():
    ts.init(devices=8, runtime="local")


WAYS = {"in a program": ts.jit, "in Python": lambda f: f}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lower, upper", [(0, 5), (2, 7), (-2, 1), (3, 3), (5, 2)])
def test_a_fori_loop_counts_from_lower_to_upper(way, lower, upper):
    def f(x):
        return ts.lax.fori_loop(lower, upper, lambda i, v: {"x": v["x"] * i + 1, "n": v["n"] + 1}, {"x": x, "n": 0})

    x, n = torch.tensor(2.0), 0
    for i in range(lower, upper):
        x, n = x * i + 1, n + 1
    close(WAYS[way](f)(torch.tensor(2.0)), {"x": x, "n": torch.tensor(n)})


def test_the_gradient_of_a_fori_loop_is_the_loops():
    w = normal(1, 3, 3)

    def f(w):
        return ts.lax.fori_loop(0, 4, lambda i, v: torch.tanh(v @ w) * (i + 1), torch.ones(3)).sum()

    def by_hand(w):
        v = torch.ones(3)
        for i in range(4):
            v = torch.tanh(v @ w) * (i + 1)
        return v.sum()

    close(ts.jit(ts.grad(f))(w), torch.func.grad(by_hand)(w), rtol=1e-4, atol=1e-5)


def test_a_fori_loop_of_a_thousand_rounds_has_one_body():
    text = ts.make_graph(lambda x: ts.lax.fori_loop(0, 1000, lambda i, v: torch.sin(v), x))(torch.zeros(3))
    assert text.count("aten.sin.default") == 1


def test_loops_of_the_same_function_on_arrays_are_traced_once():
    traced = []

    def body(i, v):
        traced.append(1)
        return v + i

    def row(x):
        traced.append(1)
        return 2 * x

    for _ in range(3):
        close(ts.lax.fori_loop(0, 3, body, ts.array(1)), torch.tensor(4))
        close(ts.lax.map(row, ts.array([1, 2, 3]), batch_size=3), torch.tensor([2, 4, 6]))
    assert len(traced) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lower, upper", [(0, 5), (2, 7), (3, 3), (5, 2)])
def test_a_fori_loop_whose_bounds_are_computed_counts_alike(way, lower, upper):
    def f(first, last, x):
        return ts.lax.fori_loop(first * 2, last, lambda i, v: v * i + 1, x)

    x = torch.tensor(2.0)
    for i in range(2 * lower, upper):
        x = x * i + 1
    close(WAYS[way](f)(torch.tensor(lower), torch.tensor(upper, dtype=torch.int32), torch.tensor(2.0)), x)


@pytest.mark.parametrize("bound", [torch.tensor(3.0), torch.tensor([3]), 2.5, "3"])
def test_bounds_that_are_no_whole_numbers_are_refused(bound):
    with pytest.raises(ts.DtypeError, match=r"bounds of fori_loop are whole numbers[^~]*upper"):
        ts.lax.fori_loop(0, bound, lambda i, v: v, torch.zeros(()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 7, 100])
def test_map_is_the_function_on_each_row(way, batch_size):
    xs = {"a": normal(1, 7, 2), "b": (normal(2, 7), None)}

    def f(x):
        return {"sum": x["a"].sum() + x["b"][0], "none": x["b"][1]}

    made = WAYS[way](lambda xs: ts.lax.map(f, xs, batch_size=batch_size))(xs)
    assert made["none"] is None
    close(made["sum"], xs["a"].sum(1) + xs["b"][0])


def test_map_of_a_cut_operand_keeps_its_other_dims_cut():
    mesh = ts.make_mesh((8,), ("a",))
    xs = ts.device_put(normal(1, 5, 16), ts.NamedSharding(mesh, ts.P(None, "a")))
    f = ts.jit(lambda xs: ts.lax.map(torch.sin, xs))
    assert f.lower(xs).compile().cost_analysis().nbytes == 0
    assert f(xs).sharding.spec == ts.P(None, "a")
    close(f(xs), torch.sin(normal(1, 5, 16)))


def test_the_gradient_of_map_is_that_of_vmap():
    xs = normal(1, 5, 3)
    f = lambda xs: ts.lax.map(lambda x: torch.sin(x).prod(), xs, batch_size=2).pow(2).sum()  # noqa: E731
    expected = torch.func.grad(lambda xs: torch.sin(xs).prod(1).pow(2).sum())(xs)
    close(ts.jit(ts.grad(f))(xs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ts.lax.map(torch.sin, None), "map has no rows"),
        (lambda: ts.lax.map(torch.sin, torch.ones(3), batch_size=0), "batch_size is at least 1"),
        (lambda: ts.lax.map(torch.sin, torch.tensor(1.0)), "have rows"),
    ],
)
def test_what_cannot_be_mapped_is_refused(call, words):
    with pytest.raises(ts.MappingError, match=words):
        call()


# ---- while_loop ------------------------------------------------------------------------------------------------------


def doubled(loop):
    """Double until the norm is large; the loop counts its rounds."""

    def f(w, x):
        def body(v):
            return {"x": torch.tanh(v["x"] @ w) + v["x"] * 1.5, "n": v["n"] + 1}

        return loop(lambda v: v["x"].pow(2).sum() < 50, body, {"x": x, "n": 0})

    return f


def by_hand(test, body, value):
    while test(value):
        value = body(value)
    return {**value, "n": torch.as_tensor(value["n"])}


@pytest.mark.parametrize("way", WAYS)
def test_a_while_loop_goes_on_as_long_as_its_test_is_true(way):
    w, x = normal(1, 4, 4), normal(2, 4)
    close(WAYS[way](doubled(ts.lax.while_loop))(w, x), doubled(by_hand)(w, x))
    close(WAYS[way](doubled(ts.lax.while_loop))(w, 100 * x), doubled(by_hand)(w, 100 * x))


@pytest.mark.parametrize("spec", [ts.P(), ts.P("a"), ts.P(("a", "b"))])
def test_a_while_loop_of_a_cut_value_is_the_loop(spec):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    w, x = normal(1, 8, 8) / 3, normal(2, 8)
    got = ts.jit(doubled(ts.lax.while_loop))(w, ts.device_put(x, ts.NamedSharding(mesh, spec)))
    close(got, doubled(by_hand)(w, x), rtol=1e-4, atol=1e-5)


def test_the_text_of_a_while_loop_has_a_test_and_a_body():
    mesh = ts.make_mesh((8,), ("a",))
    x = ts.device_put(normal(2, 8), ts.NamedSharding(mesh, ts.P("a")))
    lowered = ts.jit(doubled(ts.lax.while_loop)).lower(normal(1, 8, 8), x)
    assert "a test and a body" in lowered.as_text()
    text = lowered.compile().as_text()
    assert text.count("aten.tanh.default") == text.count(" = while(") == 1
    assert "all_reduce" in text.split(" = while(")[1].split("return")[0]


def test_the_devices_agree_to_go_on_where_they_exchange_data():
    def agreements(spec):
        x = ts.device_put(normal(2, 8), ts.NamedSharding(ts.make_mesh((8,), ("a",)), spec))
        return ts.jit(doubled(ts.lax.while_loop)).lower(normal(1, 8, 8), x).compile().as_text().count("op=min")

    assert (agreements(ts.P("a")), agreements(ts.P())) == (1, 0)


def test_a_tangent_goes_through_a_while_loop():
    w, x = normal(1, 4, 4), normal(2, 4)

    def of(loop):
        return lambda w, x: doubled(loop)(w, x)["x"]

    given = (w, x), (normal(3, 4, 4), normal(4, 4))
    expected = torch.func.jvp(of(by_hand), *given)
    close(ts.jit(lambda p, t: ts.jvp(of(ts.lax.while_loop), p, t))(*given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_axes", [(None, 0), (0, None), (0, 0)])
def test_each_example_of_a_mapped_while_loop_goes_round_as_often_as_it_asks(in_axes):
    both = normal(1, 4, 4), normal(2, 4)
    given = [torch.stack([x, x / 4, -8 * x]) if d == 0 else x for x, d in zip(both, in_axes, strict=True)]
    got = ts.jit(ts.vmap(doubled(ts.lax.while_loop), in_axes))(*given)
    for i in range(3):
        one = [x if d is None else x[i] for x, d in zip(given, in_axes, strict=True)]
        close({k: v[i] for k, v in got.items()}, doubled(by_hand)(*one), rtol=1e-4, atol=1e-5)


def test_a_while_loop_whose_test_is_the_same_for_all_examples_asks_once():
    def f(x):
        return ts.lax.while_loop(lambda v: v[1] < 3, lambda v: (v[0] * 2, v[1] + 1), (x, torch.tensor(0)))

    text = ts.make_graph(ts.vmap(f, out_axes=(0, None)))(torch.ones(5))
    assert "aten.where" not in text and "any" not in text
    close(ts.jit(ts.vmap(f, out_axes=(0, None)))(torch.ones(5)), (torch.full((5,), 8.0), torch.tensor(3)))


def test_a_while_loop_on_devices_may_go_round_as_often_as_each_asks_where_nothing_is_exchanged():
    def f(n):
        return ts.lax.while_loop(lambda v: v[0] > 0, lambda v: (v[0] - 1, v[1] * 2), (n, torch.tensor(1)))[1]

    close(ts.pmap(f)(torch.arange(8)), 2 ** torch.arange(8))


def test_a_while_loop_on_devices_that_asks_for_a_sum_exchanges_in_each_round():
    def f(x):
        return ts.lax.while_loop(lambda v: ts.lax.psum(v, "i") < 100, lambda v: v + ts.lax.pmax(v, "i"), x)

    x, expected = torch.arange(8.0), torch.arange(8.0)
    while expected.sum() < 100:
        expected = expected + expected.max()
    close(ts.pmap(f, axis_name="i")(x), expected)


def test_a_while_loop_that_may_end_for_some_devices_before_others_exchange_is_refused():
    def f(x):
        return ts.lax.while_loop(lambda v: v < 100, lambda v: v + ts.lax.psum(v, "i"), x)

    with pytest.raises(ts.ShardingError, match=r"while_loop asks for may differ between devices"):
        ts.pmap(f, axis_name="i")(torch.arange(8.0))


def test_an_error_in_a_round_of_a_while_loop_ends_it_for_all_devices():
    mesh = ts.make_mesh((8,), ("a",))
    x = torch.tensor([0, 0, 0, 7, 0, 0, 0, 0])

    def body(v):
        n, x = v
        return n + 1 + 0 * torch.ones(10).index_select(0, x + n).sum().long(), x

    f = ts.jit(lambda x: ts.lax.while_loop(lambda v: v[0] < 5, body, (torch.tensor(0), x))[0])
    with pytest.raises(ts.RemoteError, match="index"):
        f(ts.device_put(x, ts.NamedSharding(mesh, ts.P("a")))).item()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "test, body, words",
    [
        (lambda v: v.sum(), lambda v: v, r"returns a bool\[\][^~]*f32\[\]"),
        (lambda v: v > 0, lambda v: v, r"returns a bool\[\][^~]*bool\[2\]"),
        (lambda v: v.sum() < 9, lambda v: (v, v), r"changes from round to round"),
        (lambda v: v.sum() < 9, lambda v: v.long(), r"given f32\[2\], returned i64\[2\]"),
    ],
)
def test_what_is_no_while_loop_is_refused(way, test, body, words):
    with pytest.raises(ts.DtypeError, match=words):
        WAYS[way](lambda x: ts.lax.while_loop(test, body, x))(torch.ones(2))


def test_a_while_loop_has_no_gradient_in_reverse():
    with pytest.raises(ts.DtypeError, match=r"no gradient in reverse[^~]*fori_loop"):
        ts.jit(ts.grad(lambda x: ts.lax.while_loop(lambda v: v < 9, lambda v: v * 2, x)))(torch.tensor(1.0))
