"""A reduction along a cut dim leaves a part of the result on each device; what is computed of it is as of the whole."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

Function = Callable[[Any], Any]

REDUCTIONS: dict[str, Function] = {
    "any": lambda x: x.any(0),
    "any of all": lambda x: x.any(),
    "any of dims": lambda x: x.any(dim=(0, 1)),
    "all": lambda x: x.all(0),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(0),
    "sum as bool": lambda x: x.sum(0, dtype=torch.bool),
    "product": lambda x: x.prod(0),
    "sum": lambda x: x.sum(0),
    "sum as it is": lambda x: x.sum(0, dtype=x.dtype),
}
USES: dict[str, Function] = {
    "itself": lambda r: r,
    "float": lambda r: r.float(),
    "int8": lambda r: r.to(torch.int8),
    "int64": lambda r: r.to(torch.int64),
    "uint8": lambda r: r.to(torch.uint8),
    "sum": lambda r: r.sum(),
    "any": lambda r: r.any(),
    "quarter": lambda r: r / 4,
    "twice": lambda r: r + r,
    "doubled": lambda r: r * 2,
    "product": lambda r: r.float().reshape(1, -1) @ r.float().reshape(-1, 1),
    "column": lambda r: r.reshape(-1, 1).expand(-1, 3),
}
# with sums and maxima beyond what their dtype, or a smaller one, can hold; products of these floats are exact
VALUES = {
    torch.uint8: torch.arange(32).reshape(8, 4).mul(37).remainder(251),
    torch.int8: torch.arange(32).reshape(8, 4).mul(37).remainder(255) - 127,
    torch.int64: torch.arange(32).reshape(8, 4).mul(137).remainder(1001) - 500,
    torch.bool: torch.arange(32).reshape(8, 4).remainder(3),
    torch.float32: torch.arange(32).reshape(8, 4).mul(37).remainder(3) + 0.5,
}
LAYOUTS = [P("x"), P(("x", "y")), P("y", "x")]


def programs(dtype: torch.dtype, spec: P) -> list[tuple[str, str]]:
    """Reductions and their uses: in `make test` each of them for one or two of the dtypes and layouts."""
    shift = list(VALUES).index(dtype) + len(VALUES) * LAYOUTS.index(spec)
    rows = itertools.product(enumerate(REDUCTIONS), enumerate(USES))
    return [(r, u) for (i, r), (j, u) in rows if IS_WHOLE or (i + j + shift) % (2 * len(VALUES)) == 0]


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize("spec", LAYOUTS, ids=str)
def test_what_is_computed_of_a_reduction_is_as_of_the_whole(dtype: torch.dtype, spec: P) -> None:
    value = VALUES[dtype].to(dtype)
    x = ts.device_put(value, ts.NamedSharding(ts.make_mesh((4, 2), ("x", "y")), spec))
    wrong = []
    for reduction, use in programs(dtype, spec):

        def function(v: Any, reduce: Function = REDUCTIONS[reduction], compute: Function = USES[use]) -> Any:
            return compute(reduce(v))

        got, want = ts.device_get(ts.jit(function)(x)), function(value)
        if got.dtype != want.dtype or not torch.equal(got, want):
            wrong.append((reduction, use))
    assert not wrong


def on_four(value: torch.Tensor) -> torch.Tensor:
    return ts.device_put(value, ts.NamedSharding(ts.make_mesh((4,), ("x",), devices=ts.devices()[:4]), P("x")))


def test_parts_that_are_too_large_for_half_precision_add_up_before_they_are_converted() -> None:
    value = torch.tensor([1e5, -1e5, 3.0, 4.0])
    assert ts.jit(lambda v: v.sum().half())(on_four(value)).item() == 7.0


def test_a_block_without_a_greatest_number_does_not_spoil_the_greatest() -> None:
    value = torch.tensor([-torch.inf, 2.0, 1.0, 0.0])
    assert ts.jit(lambda v: v.amax() + torch.inf)(on_four(value)).item() == torch.inf


def test_an_op_that_rounds_integers_takes_their_sum_and_not_its_parts() -> None:
    value = torch.arange(64).reshape(4, 2, 8).mul(37).remainder(7)

    def function(v: Any) -> Any:
        return torch.nn.functional.avg_pool1d(v.sum(0), 2)

    assert torch.equal(ts.device_get(ts.jit(function)(on_four(value))), function(value))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_weights_of_a_loss_are_no_parts_of_a_sum_though_its_logits_are(reduction: str) -> None:
    value = torch.arange(40.0).reshape(4, 10)
    x = ts.device_put(value, ts.NamedSharding(ts.make_mesh((4, 2), ("x", "y")), P("x", "y")))

    def function(v: Any) -> Any:
        return torch.ops.aten.nll_loss_forward(v.sum(0), torch.tensor(3), None, 1 if reduction == "mean" else 2, -100)

    got = ts.device_get(ts.jit(function)(x))
    assert [g.item() for g in got] == [w.item() for w in function(value)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32], ids=str)
def test_the_sum_of_products_of_small_integers_keeps_their_dtype(dtype: torch.dtype) -> None:
    value = torch.arange(64).reshape(4, 4, 4).to(dtype)
    want = torch.addbmm(value[0], value, value)
    got = ts.device_get(torch.addbmm(value[0], on_four(value), value))
    assert got.dtype == dtype
    assert torch.equal(got, want)


def in_rows(value: torch.Tensor) -> ts.Array:
    return ts.device_put(value, ts.NamedSharding(ts.make_mesh((8,), ("x",)), P("x")))


def test_a_sum_is_combined_before_it_is_copied() -> None:
    x, w = in_rows(torch.randn(8, 100)), torch.randn(100, 100)
    for f in (lambda x: x.sum(0).expand(100, 100), lambda x: w * x.sum()):
        program = ts.jit(f).lower(x).compile()
        assert [c.nbytes <= 7 * 100 * 4 for c in ts.collectives_in(program)] == [True]
    copies = ts.jit(lambda x: x.sum(0).expand(3, 100))(x)
    assert bool((copies == copies[0]).all())


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: x.sum() * 2000, torch.tensor([40.0, -39.0] * 4).half()),
        (lambda x: x.sum() * 1e-6, torch.full((8,), 0.01).half()),  # each part would be 0
        (lambda x: x.sum() / torch.zeros(()), torch.tensor([3.0, -2.0] * 4)),
        (lambda x: x.sum() * torch.tensor(math.inf), torch.tensor([3.0, -2.0] * 4)),
    ],
)
def test_parts_of_a_sum_are_not_scaled_where_they_may_overflow_or_vanish(f: Function, x: torch.Tensor) -> None:
    assert ts.jit(f)(in_rows(x)).item() == f(x).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("f", [torch.var, torch.std, lambda x, dim: torch.var_mean(x, dim)[0]])
def test_a_spread_of_16_bit_numbers_is_rounded_once(f: Callable[..., Any], dtype: torch.dtype) -> None:
    x = (256 + 2 * torch.arange(64 * 3).reshape(64, 3)).to(dtype)
    assert torch.equal(torch.as_tensor(f(in_rows(x), 0).float().numpy()), f(x, 0).float())


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (torch.addmm, [(8, 5), (8, 4), (4, 5)]),
        (torch.addmv, [(8,), (8, 4), (4,)]),
        (torch.addbmm, [(3, 5), (8, 3, 4), (8, 4, 5)]),
        (torch.baddbmm, [(8, 3, 5), (8, 3, 4), (8, 4, 5)]),
    ],
)
def test_what_is_added_to_a_product_is_not_read_where_its_factor_is_0(op: Any, shapes: list[Any]) -> None:
    c, a, b = (torch.ones(shape) for shape in shapes)
    c = c * math.nan
    for call in (functools.partial(op, beta=0), ts.jit(functools.partial(op, beta=0))):
        assert call(c, in_rows(a), b).tolist() == op(c, a, b, beta=0).tolist()
