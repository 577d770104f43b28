"""NumPy's scalars and arrays beside Arrays: an Array comes back, as torch computes it, and gradients pass."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.rows import for_every_row

# with v a tensor, or an Array of the same values
CALLS = {
    "a double first": lambda v, a: np.sqrt(2.0) * v,
    "a double last": lambda v, a: v * np.sqrt(2.0),
    "a float32": lambda v, a: np.float32(2) - v,
    "a float16": lambda v, a: np.float16(2) / v,
    "an int": lambda v, a: np.int64(3) ** v,
    "a bool": lambda v, a: np.bool_(True) * v,
    "a complex": lambda v, a: np.complex64(1j) * v,
    "an array of no dims": lambda v, a: np.array(2.0) * v,
    "a product": lambda v, a: np.eye(8, dtype=np.float32) @ v,
    "a comparison": lambda v, a: np.float64(3) < v,
    "an equality": lambda v, a: np.float64(3) == v,
}
OF_ARRAYS = {
    "an array first": (lambda v, a: a + v, torch.add),
    "an array last": (lambda v, a: v - a, lambda v, a: torch.sub(v, a)),
    "a comparison": (lambda v, a: a > v, torch.gt),
    "backwards": (lambda v, a: a[::-1] * v, lambda a, v: a.flip(0) * v),
    "another order of bytes": (lambda v, a: a.astype(">f8") / v, torch.div),
}
UFUNCS = {
    "sin": torch.sin,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "arctan": torch.atan,
    "absolute": torch.abs,
    "negative": torch.neg,
    "isfinite": torch.isfinite,
    "rint": torch.round,
}


@pytest.fixture(autouse=True)
def _devices():
    ts.init(devices=2, runtime="local")


def values():
    return torch.arange(1.0, 9.0)


def cut(x):
    return ts.device_put(x, ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i")))


def check(made, want):
    assert isinstance(made, ts.Array)
    assert made.dtype == want.dtype
    assert torch.allclose(ts.device_get(made), want)


@for_every_row(CALLS)
def test_a_number_of_numpys_beside_an_array_gives_an_array(name):
    plain = values()
    want = {
        "a double first": 2.0**0.5 * plain,
        "a double last": 2.0**0.5 * plain,
        "a float32": 2 - plain,
        "a float16": 2 / plain,
        "an int": 3**plain,
        "a bool": plain,
        "a complex": 1j * plain,
        "an array of no dims": 2 * plain,
        "a product": plain,
        "a comparison": plain > 3,
        "an equality": plain == 3,
    }[name]
    check(CALLS[name](cut(plain), None), want)


@for_every_row(OF_ARRAYS)
def test_an_array_of_numpys_beside_an_array_gives_an_array(name):
    call, torchs = OF_ARRAYS[name]
    a = np.linspace(1, 2, 8)
    first, last = torch.from_numpy(a), values()
    want = torchs(last, first) if name == "an array last" else torchs(first, last)
    check(call(cut(values()), a), want)


@for_every_row(UFUNCS)
def test_a_function_of_numpys_gives_an_array(name):
    check(getattr(np, name)(cut(values())), UFUNCS[name](values()))


def test_a_function_of_two_takes_a_number_first():
    check(np.maximum(2.0, cut(values())), values().clamp(min=2))
    check(np.maximum(0.1, cut(values().double() * 0)), torch.full((8,), 0.1, dtype=torch.float64))


def test_gradients_pass_numpys_numbers_arrays_and_functions():
    w = cut(values()).requires_grad_()
    (np.sqrt(2.0) * w + np.ones(8) + np.sin(w)).sum().backward()
    assert torch.allclose(ts.device_get(w.grad), 2.0**0.5 + values().cos())
    got = ts.grad(lambda v: (np.sqrt(2.0) * v).sum())(cut(values()))
    assert torch.allclose(ts.device_get(got), torch.full((8,), 2.0**0.5))


def test_what_numpy_alone_can_do_is_done_on_the_values_and_not_for_a_gradient():
    assert np.allclose(np.cbrt(cut(values())), np.cbrt(values().numpy()))
    assert np.add.reduce(cut(values())) == 36
    with pytest.raises(ts.DtypeError, match="gradient"):
        np.cbrt(cut(values()).requires_grad_())


@pytest.mark.parametrize(
    "take",
    [
        ts.array,
        ts.device_put,
        ts.jit(torch.sin),
        ts.vmap(torch.sin),
        ts.pmap(torch.sin, axis_name="i"),
        lambda m: ts.jit(lambda x, y: x + y)(cut(values()), m),
        lambda m: ts.device_put({"a": [m]}),
        lambda m: np.multiply(cut(values())[:2], m),
    ],
)
def test_a_masked_array_is_refused(take):
    with pytest.raises(ts.DtypeError, match="masked"):
        take(np.ma.array([1.0, 2.0], mask=[False, True]))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
@pytest.mark.parametrize(
    "data", [lambda x: [x[0], x[1]], lambda x: [[x[0], 1], [2.5, x[3]]], lambda x: (x[0] > 0, x[1] > 3)]
)
def test_a_tensor_of_a_list_of_arrays_has_their_values(make, data):
    assert torch.equal(make(data(cut(values()))), make(data(values())))
    assert torch.equal(make(data(cut(values().long()))), make(data(values().long())))
