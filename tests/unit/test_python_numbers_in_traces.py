"""A Python number that is an argument of a traced function gives results the dtypes that eager torch gives them."""

import operator

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import pairwise
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool)
NUMBERS = (3, 2.5, True, 1 + 2j, np.float32(2.5), np.int64(3))
FUNCTIONS = {
    "mul": operator.mul,
    "radd": lambda x, n: n + x,
    "div": operator.truediv,
    "rpow": lambda x, n: n**x,
    "where": lambda x, n: torch.where(torch.tensor([True, False]), x, n),
    "eq": lambda x, n: x * 1 == n,
    "from numbers": lambda x, n: x * (n * 2 + 1),
    "clamp": lambda x, n: x.clamp(min=n),
    "as_tensor": lambda x, n: x * torch.as_tensor(n),
    "asarray": lambda x, n: torch.asarray(n) + x,
    "twice": lambda x, n: (x + n, n + n * x),
}


def has_answer(dtype, number, name):
    """Half complex numbers are an experiment of torch's; bools are clamped by tensors alone, as a traced number is."""
    return not (
        (dtype in (torch.float16, torch.bfloat16) and number == 1 + 2j)
        or (dtype is torch.bool and number is True and name == "clamp")
    )


ROWS = [row for row in pairwise(DTYPES, NUMBERS, tuple(FUNCTIONS)) if has_answer(*getattr(row, "values", row))]


def same(got, wanted):
    for a, b in zip(*([v] if isinstance(v, torch.Tensor) else v for v in (ts.device_get(got), wanted)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(("dtype", "number", "name"), ROWS)
def test_a_number_beside_a_0d_argument_has_no_dtype_of_its_own(dtype, number, name):
    x = torch.tensor(1.0).to(dtype)
    try:
        wanted = FUNCTIONS[name](x, number)
    except (RuntimeError, TypeError):  # as the clamp of a complex number
        with pytest.raises((RuntimeError, TypeError)):
            ts.device_get(ts.jit(FUNCTIONS[name])(x, number))
        return
    same(ts.jit(FUNCTIONS[name])(x, number), wanted)


def test_a_number_beside_a_0d_value_under_pmap_and_shard_map():
    rows = torch.arange(8, dtype=torch.int8)
    got = ts.pmap(operator.add, in_axes=(0, None))(rows, 1)
    same(got, rows + 1)
    halves = torch.linspace(0, 1, 8, dtype=torch.float16)
    mesh = ts.make_mesh(8, "i")
    scaled = ts.shard_map(lambda v, s: v.sum()[None] * s, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"))
    same(scaled(halves, 3.0), halves * 3.0)


NESTED = {
    "jit in jit": lambda x, n: ts.jit(lambda v, m: ts.jit(torch.mul)(v, m))(x, n),
    "a number inside": lambda x, n: ts.jit(lambda v: ts.jit(torch.mul)(v, n))(x),
    "a tree": lambda x, n: ts.jit(lambda v, o: v * o["rate"])(x, {"rate": n}),
    "by name": lambda x, n: ts.jit(lambda v, rate=1.0: v * rate)(x, rate=n),
    "pmap in jit": lambda x, n: ts.jit(lambda v, m: ts.pmap(torch.mul, in_axes=(0, None))(v, m))(x.expand(8), n)[0],
    "vmap in jit": lambda x, n: ts.jit(lambda v, m: ts.vmap(torch.mul, in_axes=(0, None))(v, m))(x[None], n)[0],
    "jit in vmap": lambda x, n: ts.vmap(ts.jit(torch.mul), in_axes=(0, None))(x[None], n)[0],
}


@pytest.mark.parametrize("call", NESTED.values(), ids=NESTED)
def test_a_number_that_is_handed_on_stays_one(call):
    x = torch.tensor(1.5, dtype=torch.float16)
    same(call(x, 3.0), x * 3.0)


def test_a_loss_of_half_precision_is_scaled_as_in_eager_torch():
    loss = torch.tensor(0.5, dtype=torch.float16)
    same(ts.jit(operator.mul)(loss, 65536.0), loss * 65536.0)  # 65536 itself is infinite in float16
    mapped = ts.jit(lambda x, n: ts.vmap(operator.mul, in_axes=(0, None))(x, n))
    same(mapped(loss[None], 65536.0), loss[None] * 65536.0)


def test_a_tensor_in_the_place_of_a_number_has_a_dtype_and_its_own_trace():
    f = ts.jit(torch.mul)
    x = torch.tensor(1.5, dtype=torch.float16)
    assert f(x, 2.0).dtype is torch.float16
    assert f(x, torch.tensor(2.0)).dtype is torch.float32
    assert f(x, 2.0).dtype is torch.float16


def test_a_number_that_is_cast_has_the_dtype_it_is_cast_to():
    x = torch.tensor(1.5, dtype=torch.float16)
    got = ts.jit(lambda x, n: x * n.to(torch.float64))(x, 2.0)
    assert got.dtype is torch.float64


def test_gradients_beside_a_number_have_the_dtypes_of_their_arguments():
    x = torch.tensor(1.5, dtype=torch.float16)
    slope, by_number = ts.jit(ts.grad(lambda x, n: x * n, argnums=(0, 1)))(x, 2.0)
    assert (slope.dtype, slope.item(), by_number.item()) == (torch.float16, 2.0, 1.5)
    assert ts.grad(ts.jit(torch.mul))(x, 2.0).dtype is torch.float16


def test_a_trace_for_a_number_is_explained_beside_one_for_a_tensor(capsys):
    f = ts.jit(torch.mul)
    f(torch.ones(()), torch.tensor(2.0))
    ts.config.update("explain_cache_misses", True)
    try:
        f(torch.ones(()), 2.0)
    finally:
        ts.config.update("explain_cache_misses", False)
    assert "f32[], now a number, f32[]" in capsys.readouterr().err
