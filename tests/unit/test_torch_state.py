"""What torch keeps for a whole process decides what ops make: default dtype, autocast, inference_mode."""

import contextlib

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture(autouse=True)
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_a_trace_is_of_one_autocast():
    x = ts.device_put(torch.randn(8, 8))
    f = ts.jit(lambda v: v @ v)
    for _ in range(2):
        assert f(x).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert f(x).dtype == (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.float16):
            assert f(x).dtype == torch.float16
    assert f._cache_size() == 3


def test_a_transformed_jitted_function_computes_as_it_says_itself_in_autocast():
    def product(w):
        with torch.autocast("cpu", enabled=False):
            return w @ w

    ws = torch.randn(3, 4, 4)
    f, there = ts.jit(product), ts.device_put(ws)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = ts.vmap(f)(there)
        value, tangent = ts.jvp(f, (there[0],), (there[1],))
        wanted = torch.func.jvp(product, (ws[0],), (ws[1],))
    torch.testing.assert_close(ts.device_get(mapped), ws @ ws)
    torch.testing.assert_close(ts.device_get((value, tangent)), wanted)


def _mapped_by_shard_map(function):
    return ts.shard_map(function, mesh=ts.make_mesh((2,), ("i",)), in_specs=ts.P(), out_specs=ts.P())


def _mapped_by_pmap(function):
    mapped = ts.pmap(function, in_axes=None, out_axes=None, axis_name="i", axis_size=2)
    return lambda w: mapped(w)


@pytest.mark.parametrize("mapped", [ts.jit, _mapped_by_shard_map, _mapped_by_pmap])
@pytest.mark.parametrize("order", [(False, True, False), (True, False, True)])
def test_the_gradient_of_a_mapped_function_is_of_one_autocast(mapped, order):
    def product(w):
        return w @ w

    w = torch.randn(8, 8)
    f = mapped(product)
    for is_cast in order:
        value, pull = ts.vjp(f, ts.device_put(w))
        _, wanted = torch.func.vjp(product, w)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
            g, expected = pull(torch.ones_like(value))[0], wanted(torch.ones(8, 8))[0]
        torch.testing.assert_close(ts.device_get(g), expected)


def test_an_op_and_a_trace_are_of_one_default_dtype():
    x = ts.device_put(torch.arange(8))
    f = ts.jit(lambda v: v / 3)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        for y in (x / 3, f(x)):
            assert y.dtype == ts.device_get(y).dtype == dtype
            assert torch.equal(ts.device_get(y), torch.arange(8) / 3)


def test_a_program_keeps_the_default_dtype_of_its_trace():
    x = ts.device_put(torch.arange(8))
    compiled = ts.jit(lambda v: v / 3).lower(x).compile()
    torch.set_default_dtype(torch.float64)
    y = compiled(x)
    assert y.dtype == ts.device_get(y).dtype == torch.float32
    assert torch.get_default_dtype() == torch.float64


def test_a_trace_is_compiled_under_its_own_default_dtype():
    x = ts.device_put(torch.arange(8))
    f = ts.jit(lambda v: v / 3)
    torch.set_default_dtype(torch.float64)
    lowered = f.lower(x)
    torch.set_default_dtype(torch.float32)
    assert lowered.compile()(x).dtype == torch.float64
    torch.set_default_dtype(torch.float64)
    assert f(x).dtype == ts.device_get(f(x)).dtype == torch.float64


def test_a_python_float_is_not_rounded_beside_doubles():
    x = ts.device_put(torch.ones(2, dtype=torch.float64))
    f = ts.jit(lambda x, c: (x * c).max())
    for c in (0.1, 1e-60, 1e60):
        assert f(x, c).item() == c
        assert ts.jit(lambda x, c: x[0] * c).lower(x, c).compile()(x, c).item() == c
    assert ts.jit(lambda x, c: x + c)(x.float(), 0.1).dtype == torch.float32
    assert ts.jit(lambda x, c: x * c)(x, 0.1j).dtype == torch.complex128


def test_views_of_arrays_are_taken_in_inference_mode():
    x = ts.device_put(torch.arange(6.0).reshape(2, 3))
    with torch.inference_mode():
        assert x[1].tolist() == [3.0, 4.0, 5.0]
        assert (x * 2)[1].detach().tolist() == [6.0, 8.0, 10.0]
        assert torch.func.vmap(lambda row: row[1:].sum())(x).tolist() == [3.0, 9.0]


def test_a_write_to_a_view_by_a_traced_number_is_not_lost_in_inference_mode():
    def written(x, i):
        y = x.clone()
        y[i].add_(10.0)
        return y

    x, xs = ts.device_put(torch.zeros(3)), ts.device_put(torch.zeros(2, 3))
    f = ts.jit(written)
    with torch.inference_mode():
        assert f(x, 1).tolist() == [0.0, 10.0, 0.0]
        assert ts.vmap(written)(xs, ts.array([0, 2])).tolist() == [[10.0, 0.0, 0.0], [0.0, 0.0, 10.0]]
    assert f(x, 1).tolist() == [0.0, 10.0, 0.0]


def test_no_gradient_passes_by_what_a_traced_function_computes_in_inference_mode():
    def loss(w):
        with torch.inference_mode():
            target = w * 2
        return (w + target).sum()

    w = torch.arange(4.0)
    plain = w.clone().requires_grad_()
    loss(plain).backward()
    for of in (ts.jit(loss), loss):
        v = ts.device_put(w).requires_grad_()
        of(v).backward()
        assert torch.equal(ts.device_get(v.grad), plain.grad)


def test_an_error_within_torch_leaves_its_dispatcher_as_it_was():
    """torch 2.13 fails with an internal assertion here, and the error holds a guard of its dispatcher."""
    x = torch.arange(6.0).reshape(2, 3)
    before = str(torch._C._dispatch_tls_local_exclude_set())
    with contextlib.suppress(RuntimeError):
        ts.jit(lambda x: ts.jvp(lambda v: (v * 2).lerp_(v, torch.full((2, 3), 0.5)).sum(), (x,), (x,)))(x)
    assert str(torch._C._dispatch_tls_local_exclude_set()) == before
    assert torch.equal(torch.func.jvp(torch.sin, (x,), (x,))[1], x.cos() * x)
