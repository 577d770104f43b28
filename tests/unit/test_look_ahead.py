"""Partial sums that several ops take are combined once, in the layout that the ops ahead have use for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tinyshard as ts
from tests.extent import every, in_words

P = ts.P


@pytest.fixture(scope="module", autouse=True)
def mesh() -> Iterator[ts.Mesh]:
    ts.init(devices=8, runtime="local")
    yield ts.make_mesh((8,), ("d",))
    ts.shutdown()


def adam(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.01 * m / (v.sqrt() + 1e-8), m, v


def clipped(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
    return adam(g * (1 / (g * g).sum().sqrt()).clamp(max=1), m, v, p)


def signs(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
    return (p - 0.01 * g.sign(),)


def added(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
    return (2 * g + 3 * g,)


def transposed(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
    return (p - g.t().t(), (g.t() * g.t()).sum())


def of_a_product(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
    return g @ p.t(), g @ m.t(), g.t() @ v


def program(mesh: ts.Mesh, update: Callable[..., Any], spec: ts.PartitionSpec) -> tuple[Any, tuple[Tensor, ...]]:
    """An update by the gradient of a weight over a batch, all that has the weight's shape sharded by `spec`."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 16), torch.randn(64, 32)
    weights = tuple(torch.rand(16, 32) for _ in range(3))

    def step(x: Tensor, y: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
        return update(x.t() @ y, m, v, p)

    batch, at = ts.NamedSharding(mesh, P("d")), ts.NamedSharding(mesh, spec)
    given = tuple(ts.device_put(t, batch if t.shape[0] == 64 else at) for t in (x, y, *weights))
    compiled = ts.jit(step).lower(*given).compile()
    for got, want in zip(compiled(*given), step(x, y, *weights), strict=True):
        torch.testing.assert_close(ts.device_get(got), want, rtol=1e-4, atol=1e-4)
    return compiled, given


def kinds(compiled: Any) -> dict[str, int]:
    """How many collectives of each kind carry more than a number."""
    found: dict[str, int] = {}
    for each in ts.collectives_in(compiled):
        if each.nbytes > 64 * each.count:
            found[each.kind] = found.get(each.kind, 0) + each.count
    return found


@pytest.mark.parametrize("update", every(2, [adam, clipped, signs, added, transposed]))
def test_a_gradient_is_combined_once(mesh: ts.Mesh, update: Callable[..., Any]) -> None:
    assert kinds(program(mesh, update, P())[0]) == {"all_reduce": 1}


@pytest.mark.parametrize(
    "update, spec", every(5, itertools.product((adam, clipped, signs), (P("d"), P(None, "d")))), ids=in_words
)
def test_a_gradient_is_combined_where_the_moments_are(
    mesh: ts.Mesh, update: Callable[..., Any], spec: ts.PartitionSpec
) -> None:
    assert kinds(program(mesh, update, spec)[0]) == {"reduce_scatter": 1}


def test_a_sum_that_several_products_take_is_combined_once(mesh: ts.Mesh) -> None:
    assert kinds(program(mesh, of_a_product, P())[0]) == {"all_reduce": 1}


def test_a_sum_is_followed_through_more_ops_than_python_calls_may_be_nested(mesh: ts.Mesh) -> None:
    def scaled(g: Tensor, m: Tensor, v: Tensor, p: Tensor) -> Any:
        for _ in range(1100):
            g = g * 1.001
        return (g,)

    assert kinds(program(mesh, scaled, P())[0]) == {"all_reduce": 1}


def test_a_sum_in_bfloat16_that_meets_a_sharded_value_in_float32_is_scattered(mesh: ts.Mesh) -> None:
    def step(x: Tensor, y: Tensor, p: Tensor) -> Tensor:
        return p + (x.bfloat16().t() @ y.bfloat16()).float()

    batch, at = ts.NamedSharding(mesh, P("d")), ts.NamedSharding(mesh, P("d"))
    x, y, p = torch.ones(64, 16), torch.ones(64, 32), torch.ones(16, 32)
    given = ts.device_put(x, batch), ts.device_put(y, batch), ts.device_put(p, at)
    compiled = ts.jit(step, out_shardings=at).lower(*given).compile()
    assert {(each.kind, each.count) for each in compiled.cost_analysis().traffic} == {("reduce_scatter", 1)}
    assert torch.equal(ts.device_get(ts.jit(step, out_shardings=at)(*given)), torch.full((16, 32), 65.0))
