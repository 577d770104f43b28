"""`cond` and `switch`: the devices run one branch; gradients, tangents and mapped forms are those of that branch."""

import pytest
import torch

import tinyshard as ts
from tests.unit.test_scan import close, normal


@pytest.fixture(autouse=True)
def local():
    ts.init(devices=8, runtime="local")


WAYS = {"in a program": ts.jit, "in Python": lambda f: f}
W, X = normal(1, 8, 8), normal(2, 8)


def of(call):
    """A function of a number, in which each branch closes over something else, and one gives zeros."""

    def f(index, w, x):
        branches = [
            lambda v: {"y": torch.sin(v["x"] @ w), "n": v["n"] + 1},
            lambda v: {"y": torch.zeros(8), "n": v["n"]},
            lambda v: {"y": v["x"] * x.sum(), "n": 2 * v["n"]},
        ]
        return call(index, branches, {"x": x * 2, "n": 3})

    return f


def by_hand(index, branches, operand):
    made = branches[min(max(int(index), 0), 2)](operand)
    return {**made, "n": torch.as_tensor(made["n"])}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_a_switch_calls_the_branch_of_the_number_or_the_nearest(way, index):
    close(WAYS[way](of(ts.lax.switch))(torch.tensor(index), W, X), of(by_hand)(index, W, X))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pred", [torch.tensor(True), torch.tensor(False), torch.tensor(2), torch.tensor(0.0)])
def test_a_cond_calls_the_first_function_where_the_predicate_is_true(way, pred):
    f = lambda p, x: ts.lax.cond(p, torch.sin, lambda v: v * 2, x)  # noqa: E731
    close(WAYS[way](f)(pred, X), torch.sin(X) if pred else X * 2)


def test_a_python_value_chooses_at_once():
    close(ts.lax.cond(True, torch.sin, None, X), torch.sin(X))
    close(ts.lax.switch(9, [None, torch.cos], X), torch.cos(X))
    assert "cond(" not in ts.make_graph(lambda x: ts.lax.cond(True, torch.sin, torch.cos, x))(X)


@pytest.mark.parametrize("spec", [ts.P(), ts.P("a"), ts.P(("a", "b"))])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_branches_of_a_cut_value_are_those_of_the_whole_and_their_gradient_too(spec, index):
    x = ts.device_put(X, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), spec))
    close(ts.jit(of(ts.lax.switch))(torch.tensor(index), W, x), of(by_hand)(index, W, X), rtol=1e-4, atol=1e-5)

    def total(call):
        return lambda index, w, x: of(call)(index, w, x)["y"].pow(2).sum()

    expected = torch.func.grad(total(by_hand), (1, 2))(index, W, X)
    got = ts.jit(ts.grad(total(ts.lax.switch), (1, 2)))(torch.tensor(index), W, x)
    close(got, expected, rtol=1e-4, atol=1e-4)
    tangents = normal(3, 8, 8), normal(4, 8)
    expected = torch.func.jvp(lambda w, x: total(by_hand)(index, w, x), (W, X), tangents)
    f = lambda i, *given: ts.jvp(lambda w, x: total(ts.lax.switch)(i, w, x), given[:2], given[2:])  # noqa: E731
    close(ts.jit(f)(torch.tensor(index), W, x, *tangents), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_each_example_of_a_mapped_number_has_its_branch(way):
    index, xs = torch.tensor([0, 1, 2, 5, -3]), normal(5, 5, 8)
    made = WAYS[way](ts.vmap(of(ts.lax.switch), (0, None, 0)))(index, W, xs)
    for i in range(5):
        close({k: v[i] for k, v in made.items()}, of(by_hand)(index[i], W, xs[i]), rtol=1e-4, atol=1e-5)


def test_a_number_that_all_examples_share_runs_one_branch():
    f = ts.vmap(of(ts.lax.switch), (None, None, 0))
    assert "aten.where" not in ts.make_graph(f)(torch.tensor(0), W, normal(5, 5, 8))
    close(ts.jit(f)(torch.tensor(0), W, normal(5, 5, 8))["y"], torch.sin(2 * normal(5, 5, 8) @ W), rtol=1e-4, atol=1e-5)


def test_a_program_has_each_branch_once_and_runs_one():
    seen = []

    def checked(v):
        seen.append(1)
        return torch.linalg.cholesky(v)  # fails for what is no positive matrix

    f = ts.jit(lambda p, x: ts.lax.cond(p, checked, lambda v: v + 1, x))
    close(f(torch.tensor(False), -torch.eye(3)), 1 - torch.eye(3))
    assert len(seen) == 1
    text = f.lower(torch.tensor(False), torch.eye(3)).compile().as_text()
    assert text.count(" = cond(") == text.count("linalg_cholesky_ex") == 1
    with pytest.raises(ts.RemoteError, match="positive-definite"):
        f(torch.tensor(True), -torch.eye(3)).block_until_ready()


def test_branches_that_differ_only_in_what_they_cut_agree_on_the_most_parts():
    x = ts.device_put(X, ts.NamedSharding(ts.make_mesh((8,), ("a",)), ts.P("a")))
    f = ts.jit(lambda p, x: ts.lax.cond(p, lambda v: torch.zeros(8), lambda v: v + 1, x))
    assert f(torch.tensor(False), x).sharding.spec == ts.P("a")
    assert f.lower(torch.tensor(False), x).compile().cost_analysis().nbytes == 0


def test_of_branches_the_one_that_costs_most_is_counted():
    f = ts.jit(lambda p, w: ts.lax.cond(p, lambda w: w @ w @ w, lambda w: w @ w, w))
    assert f.lower(torch.tensor(True), W).compile().cost_analysis().flops == 2 * 2 * 8**3


def test_devices_that_exchange_data_in_a_branch_agree_on_it():
    mesh = ts.make_mesh((8,), ("a",))
    x = ts.device_put(X, ts.NamedSharding(mesh, ts.P("a")))
    f = ts.jit(lambda p, x: ts.lax.cond(p, lambda v: v / v.sum(), torch.sin, x))
    close(f(torch.tensor(True), x), X / X.sum(), rtol=1e-4, atol=1e-5)
    close(f(torch.tensor(False), x), torch.sin(X))
    text = f.lower(torch.tensor(False), x).compile().as_text()
    assert text.split(" = cond(")[0].count("op=min") == 1


def test_on_shards_devices_may_choose_for_themselves_where_they_exchange_nothing():
    f = lambda x: ts.lax.cond(x > 3, lambda v: v * 10, lambda v: -v, x)  # noqa: E731
    close(ts.pmap(f)(torch.arange(8)), torch.tensor([0, -1, -2, -3, 40, 50, 60, 70]))


def test_on_shards_devices_that_exchange_data_choose_by_what_they_share():
    def f(x):
        return ts.lax.cond(ts.lax.psum(x, "i") > 3, lambda v: ts.lax.psum(v, "i"), lambda v: v, x)

    close(ts.pmap(f, axis_name="i")(torch.arange(8)), torch.full((8,), 28))
    with pytest.raises(ts.ShardingError, match=r"cond or switch asks for may differ between devices"):
        ts.pmap(lambda x: ts.lax.cond(x > 3, lambda v: ts.lax.psum(v, "i"), lambda v: v, x), axis_name="i")(
            torch.arange(8)
        )


def test_branches_inside_of_a_scan_choose_in_each_round():
    def body(c, i):
        c = ts.lax.switch(i % 3, [torch.sin, torch.cos, lambda v: v * 2], c)
        return c, c.sum()

    def total(loop):
        return lambda c: loop(c)[1].sum()

    def unrolled(c):
        made = []
        for i in range(7):
            c = [torch.sin, torch.cos, lambda v: v * 2][i % 3](c)
            made.append(c.sum())
        return c, torch.stack(made)

    scanned = lambda c: ts.lax.scan(body, c, torch.arange(7))  # noqa: E731
    close(ts.jit(scanned)(X), unrolled(X), rtol=1e-4, atol=1e-5)
    close(ts.jit(ts.grad(total(scanned)))(X), torch.func.grad(total(unrolled))(X), rtol=1e-4, atol=1e-5)


def test_branches_without_operands_are_called():
    f = ts.jit(lambda p: ts.lax.cond(p, lambda: torch.ones(3), lambda: torch.zeros(3)))
    close(f(torch.tensor(True)), torch.ones(3))


def test_the_same_branches_on_arrays_are_traced_once():
    traced = []

    def branch(x):
        traced.append(1)
        return x + 1

    for _ in range(3):
        close(ts.lax.cond(ts.array(True), branch, torch.neg, ts.array(1.0)), torch.tensor(2.0))
    assert len(traced) == 1


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda p: ts.lax.cond(p, lambda: torch.ones(2), lambda: torch.ones(3)), r"different results[^~]*f32\[3\]"),
        (lambda p: ts.lax.cond(p, lambda: torch.ones(2), lambda: (torch.ones(2),)), r"different results"),
        (lambda p: ts.lax.cond(torch.stack([p, p]), torch.sin, torch.cos, p), r"pred is a value without dims"),
        (lambda p: ts.lax.switch(p, [torch.sin], p), r"index is a whole number"),
        (lambda p: ts.lax.switch(p, []), r"no branches"),
    ],
)
def test_what_are_no_branches_is_refused(call, words):
    with pytest.raises(ts.DtypeError, match=words):
        ts.jit(call)(torch.tensor(True))
