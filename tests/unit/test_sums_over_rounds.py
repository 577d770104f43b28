"""A scan that adds up gradients adds up parts of them; what it returns is combined once, and is what a loop adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tinyshard as ts

P = ts.P
ROUNDS = 4


@pytest.fixture(scope="module", autouse=True)
def local() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def normal(number: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(number))


XS, YS, W = normal(1, ROUNDS, 16, 8), normal(2, ROUNDS, 16, 4), normal(3, 8, 4)


def by_hand(f: Callable[..., Any], init: Any, xs: Any, reverse: bool = False, **_: Any) -> Any:
    rounds = range(ROUNDS)
    for at in reversed(rounds) if reverse else rounds:
        init, _ = f(init, ts.tree.map(lambda x, at=at: x[at], xs))
    return init, None


def product(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + x[0].mT @ x[1], None), torch.zeros(8, 4), (xs, ys))[0]


def other_way_round(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (x[0].mT @ x[1] + g, None), torch.zeros(8, 4), (xs, ys), reverse=True)[0]


def mean(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + (x[0] @ w - x[1]).pow(2).mean(), None), torch.zeros(()), (xs, ys))[0]


def widened(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    def add(g: Tensor, x: Any) -> Any:
        return g + (x[0].bfloat16().mT @ x[1].bfloat16()).float(), None

    return loop(add, torch.zeros(8, 4), (xs, ys))[0]


def transposed(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + (x[0].mT @ x[1]).mT, None), torch.zeros(4, 8), (xs, ys))[0]


def two_a_round(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (x[0].mT @ x[1] + (x[0].mT @ (x[0] @ w) + g), None), torch.zeros(8, 4), (xs, ys))[0]


def gradients(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (x @ w - y).pow(2).mean()

    def add(total: Any, x: Any) -> Any:
        return ts.tree.map(torch.add, total, ts.value_and_grad(loss)(w, *x)), None

    return loop(add, (torch.zeros(()), torch.zeros_like(w)), (xs, ys))[0]


def of_what_is_closed_over(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    def loss(w: Tensor) -> Tensor:
        return loop(lambda c, x: (torch.tanh(c + x[0] @ w), None), torch.zeros(16, 4), (xs, ys))[0].sum()

    return ts.grad(loss)(w)


SUMS = [product, other_way_round, mean, widened, transposed, two_a_round, gradients, of_what_is_closed_over]


def compiled(sums: Callable[..., Any], mesh: ts.Mesh, w: ts.PartitionSpec) -> Any:
    """A program over batches cut along "d", after a comparison with a loop of torch's."""
    batch = ts.NamedSharding(mesh, P(None, "d"))
    given = ts.device_put(XS, batch), ts.device_put(YS, batch), ts.device_put(W, ts.NamedSharding(mesh, w))
    program = ts.jit(lambda *args: sums(ts.lax.scan, *args)).lower(*given).compile()
    tolerance = 0.03 if sums is widened else 1e-4
    for got, want in zip(ts.tree.leaves(program(*given)), ts.tree.leaves(sums(by_hand, XS, YS, W)), strict=True):
        torch.testing.assert_close(ts.device_get(got), want, rtol=tolerance, atol=tolerance)
    return program


def exchanges(program: Any) -> list[tuple[str, int]]:
    """How often a program combines each kind of parts along "d"."""
    return [(each.kind, each.count) for each in ts.collectives_in(program) if "d" in each.axes]


@pytest.mark.parametrize("shape", [(8,), (4, 2)])
@pytest.mark.parametrize("sums", SUMS)
def test_what_is_added_up_is_combined_once(sums: Callable[..., Any], shape: tuple[int, ...]) -> None:
    mesh = ts.make_mesh(shape, ("d", "m")[: len(shape)])
    several = 2 if sums is gradients else 1  # the mean of the losses, and the sum of their gradients
    assert exchanges(compiled(sums, mesh, P())) == [("all_reduce", several)]


@pytest.mark.parametrize("sums", [mean, gradients, of_what_is_closed_over])
def test_parts_of_a_cut_weights_gradient_are_as_small_as_the_weight(sums: Callable[..., Any]) -> None:
    program = compiled(sums, ts.make_mesh((4, 2), ("d", "m")), P(None, "m"))
    assert sum(count for _, count in exchanges(program)) == (2 if sums is gradients else 1)
    assert "f32[8, 4] = carry" not in program.as_text()


def test_what_is_cut_along_the_batchs_axis_is_combined_in_each_round() -> None:
    program = compiled(gradients, ts.make_mesh((8,), ("d",)), P("d"))
    assert ("reduce_scatter", ROUNDS) in exchanges(program)


def scaled(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (0.9 * (g + x[0].mT @ x[1]), None), torch.zeros(8, 4), (xs, ys))[0]


def used_twice(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + x[0].mT @ (x[1] + g.sum()), None), torch.zeros(8, 4), (xs, ys))[0]


def started_elsewhere(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + x[0].mT @ x[1], None), torch.ones(8, 4), (xs, ys))[0]


def beside_a_penalty(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + x[0].mT @ x[1] + 0.1 * w, None), torch.zeros(8, 4), (xs, ys))[0]


def largest(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + x[0].amax(0), None), torch.zeros(8), (xs, ys))[0]


def narrowed(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + (x[0].double().mT @ x[1].double()).float(), None), torch.zeros(8, 4), (xs, ys))[0]


def wholes(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    return loop(lambda g, x: (g + (x[0].mT @ x[1]).int(), None), torch.zeros(8, 4, dtype=torch.int32), (xs, ys))[0]


def beside_a_norm(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    def add(total: Any, x: Any) -> Any:
        g = x[0].mT @ x[1]
        return (total[0] + g, torch.maximum(total[1], g.norm())), None

    return loop(add, (torch.zeros(8, 4), torch.zeros(())), (xs, ys))[0]


def cancelling(loop: Any, xs: Tensor, ys: Tensor, w: Tensor) -> Any:
    signs = 1 - torch.arange(16) // 2 % 2 * 2.0  # of 8 devices, in turn
    return loop(
        lambda g, x: (g + (x[0].exp() * 0 + 3e4 * signs[:, None]).half().sum(0), None), torch.zeros(8).half(), (xs, ys)
    )[0]


OTHERS = [scaled, used_twice, started_elsewhere, beside_a_penalty, beside_a_norm, largest, narrowed, wholes, cancelling]


@pytest.mark.parametrize("sums", OTHERS)
def test_what_is_not_added_up_in_parts_is_combined_in_each_round(sums: Callable[..., Any]) -> None:
    found = exchanges(compiled(sums, ts.make_mesh((8,), ("d",)), P()))
    assert [count for _, count in found] == [ROUNDS]


def test_sums_so_far_that_are_returned_are_combined_in_each_round() -> None:
    def so_far(xs: Tensor, ys: Tensor) -> Any:
        def add(g: Tensor, x: Any) -> Any:
            g = g + x[0].mT @ x[1]
            return g, g

        return ts.lax.scan(add, torch.zeros(8, 4), (xs, ys))

    batch = ts.NamedSharding(ts.make_mesh((8,), ("d",)), P(None, "d"))
    given = ts.device_put(XS, batch), ts.device_put(YS, batch)
    program = ts.jit(so_far).lower(*given).compile()
    want = (XS.mT @ YS).cumsum(0)
    for got, expected in zip(program(*given), (want[-1], want), strict=True):
        torch.testing.assert_close(ts.device_get(got), expected)
    assert exchanges(program) == [("all_reduce", ROUNDS)]


def test_a_gradient_keeps_no_sum_of_each_round() -> None:
    program = ts.jit(lambda *args: of_what_is_closed_over(ts.lax.scan, *args)).lower(XS, YS, W).compile()
    assert "f32[4, 8, 4]" not in program.as_text(), "sums of the weight's gradient, stacked"
