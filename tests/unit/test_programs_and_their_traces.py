"""What a traced function returns, does and keeps, under jit and pmap, alone and within transformations."""

import gc
import linecache
import weakref
from typing import Any

import pytest
import torch

import tinyshard as ts
from tinyshard.core.errors import RemoteError, ShardingError
from tinyshard.sharding import P

X = torch.arange(1.0, 9.0)


@pytest.fixture(autouse=True)
def devices() -> None:
    ts.init(devices=8, runtime="local")


def at(*spec: Any) -> ts.NamedSharding:
    return ts.NamedSharding(ts.make_mesh((8,), ("a",)), P(*spec))


@pytest.mark.parametrize("f", [lambda s: (s, s), lambda s: (s.detach(), s), lambda s: (s, s, s)])
def test_an_input_that_is_returned_twice_is_whole_each_time(f: Any) -> None:
    out = (None, *[at("a")] * (len(f(X)) - 1))
    g = ts.jit(f, out_shardings=out)
    for made in g(X):
        assert made.tolist() == X.tolist()
        assert made.sum().item() == 36
    assert ts.grad(lambda x: (g(x)[-1] * x).sum())(X).tolist()[0] == 2 * X[0]


def test_a_mesh_of_earlier_devices_is_refused_and_the_devices_go_on() -> None:
    away = at("a")
    mesh = away.mesh
    ts.shutdown()
    ts.init(devices=2, runtime="local")
    over = ts.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    for call in (
        ts.jit(lambda v: v * 2, out_shardings=away),
        ts.jit(lambda v: ts.lax.with_sharding_constraint(v * 2, away)),
        over,
        ts.grad(lambda v: over(v).sum()),
    ):
        with pytest.raises(ShardingError, match="devices that are not there"):
            call(X)
    assert (ts.array([1.0]) + 1).tolist() == [2.0]


@pytest.mark.parametrize("f", [torch.linalg.inv, lambda a: torch.linalg.solve(a, torch.ones(3))])
def test_a_jitted_function_with_a_check_of_values_is_differentiated(f: Any) -> None:
    a = torch.eye(3) * 2 + torch.ones(3, 3)
    wanted = torch.func.grad(lambda a: f(a).sum())(a)
    torch.testing.assert_close(ts.device_get(ts.grad(lambda a: ts.jit(f)(a).sum())(a)), wanted)


@pytest.mark.parametrize(
    "f",
    [ts.jit(lambda x: torch.argmax(x).float()), ts.jit(lambda v: torch.ones(8)), ts.pmap(lambda v: v.int())],
)
def test_what_no_gradient_flows_through_has_a_tangent_of_zeros(f: Any) -> None:
    _, moved = ts.jvp(lambda x: f(x) + 0 * x + x * 2, (X,), (torch.ones(8),))
    assert moved.tolist() == [2.0] * 8


def refuse_large(v: torch.Tensor) -> None:
    torch._assert_async((v < 5).all(), "too large")


def refused(v: torch.Tensor) -> torch.Tensor:
    refuse_large(v)
    return v * 2


@pytest.mark.parametrize(
    "f",
    [
        ts.pmap(refuse_large),
        ts.jit(lambda x: (ts.pmap(refuse_large)(x), x + 1)[1]),
        ts.jit(lambda x: (ts.pmap(refused)(x), x + 1)[1]),
        ts.jit(lambda x: (ts.jit(refused)(x), x + 1)[1]),
    ],
)
def test_a_check_of_values_is_made_though_nothing_uses_what_comes_of_it(f: Any) -> None:
    x = ts.device_put(X / 10, at("a"))
    ts.block_until_ready([f(x), x + 1])
    x = ts.device_put(X, at("a"))
    with pytest.raises(RemoteError, match="too large"):
        ts.block_until_ready([f(x), x + 1])


def test_as_many_traces_are_kept_for_one_signature_as_are_promised() -> None:
    traced = []
    w = torch.ones(1)

    def f(x: torch.Tensor) -> torch.Tensor:
        traced.append(1)
        return x.sum() + w.sum()

    for g in (ts.jit(f), ts.pmap(f)):
        traced.clear()
        for _ in range(2):
            for size in range(1, 13):
                w = torch.ones(size)
                g(X)
        assert len(traced) == 12


def test_pmap_is_lowered_for_described_values() -> None:
    described = ts.ShapeDtypeStruct((8, 3), torch.float32)
    assert "mul" in ts.pmap(lambda v: v * 2).lower(described).as_text()


def test_grad_of_pmap_brings_what_is_committed_elsewhere_as_pmap_does() -> None:
    x = ts.device_put(X, ts.devices()[3])
    assert ts.grad(lambda x: ts.pmap(lambda v: v * 2)(x).sum())(x).tolist() == [2.0] * 8


def test_a_number_is_a_tensor_in_a_jitted_function_within_another() -> None:
    inner = ts.jit(lambda x, n: x * n.to(torch.float32))
    for f in (lambda x: inner(x, 3), ts.jit(lambda x: inner(x, 3)), ts.vmap(lambda v: inner(v, 3), axis_name="i")):
        assert f(X).tolist() == (X * 3).tolist()


def step_of(w: torch.Tensor) -> None:
    f = ts.pmap(lambda v: v * w)
    f(X)
    ts.grad(lambda x: f(x).sum())(X)
    ts.vmap(f)(torch.ones(2, 8))


def test_a_mapped_function_that_is_gone_leaves_nothing_that_it_closed_over() -> None:
    left = []
    for n in range(3):
        w = torch.tensor(float(n))
        left.append(weakref.ref(w))
        step_of(w)
    del w
    gc.collect()
    gc.collect()
    assert [ref() for ref in left] == [None] * 3


@pytest.mark.parametrize("transform", [ts.jit, ts.pmap])
def test_what_a_function_closed_over_at_its_trace_is_not_kept_when_the_name_means_something_else(
    transform: Any,
) -> None:
    w = torch.ones(100)
    before = weakref.ref(w)
    f = transform(lambda x: x * w.sum())
    assert f(X)[0].item() == 100
    w = w * 2
    assert f(X)[0].item() == 200
    gc.collect()
    assert before() is None


def test_the_source_of_a_graph_is_not_kept_by_torch() -> None:
    """A notebook that defines its functions again and again would grow with each."""
    w = ts.device_put(torch.randn(8, 8), at())

    def define() -> tuple[int, int]:
        ts.jit(lambda x: x * 2)(X)
        ts.pmap(lambda x: x * 2)(X)
        ts.grad(ts.jit(lambda x: torch.linalg.det(x) + x.logsumexp(0).sum()))(w)
        return len(torch.fx.graph_module._loader.eval_cache), sum(
            n.startswith("<eval_with_key>") for n in linecache.cache
        )

    define()
    before = define()
    assert define() == before
