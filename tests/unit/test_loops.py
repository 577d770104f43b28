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


@pytest.mark.parametrize("bound", [torch.tensor(3), 2.5, "3"])
def test_bounds_that_are_no_ints_are_refused(bound):
    with pytest.raises(ts.DtypeError, match=r"bounds of fori_loop are ints[^~]*upper"):
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
