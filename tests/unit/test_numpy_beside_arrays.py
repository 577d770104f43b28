"""NumPy's scalars and arrays beside Arrays: an Array comes back, as torch computes it, and gradients pass."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.rows import for_every_row
from tinyshard.core.errors import TracedValueError

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


REDUCTIONS = {
    "sum": lambda x: np.sum(x),
    "sum of rows": lambda x: np.sum(x, 1, keepdims=True),
    "sum of all": lambda x: np.sum(x, axis=(0, 1)),
    "mean": lambda x: np.mean(x, axis=-1),
    "prod": lambda x: np.prod(x, axis=0),
    "std": lambda x: np.std(x),
    "var": lambda x: np.var(x, ddof=1),
    "max": lambda x: np.max(x),
    "amin": lambda x: np.amin(x, 0),
    "any": lambda x: np.any(x > 3, axis=1),
    "all": lambda x: np.all(x > 3),
}


@for_every_row(REDUCTIONS)
def test_a_sum_of_numpys_and_its_like_give_an_array(name):
    x = values().double().reshape(2, 4)
    check(REDUCTIONS[name](cut(x)), torch.as_tensor(np.asarray(REDUCTIONS[name](x.numpy()))))


def test_a_sum_of_numpys_has_a_gradient_and_takes_numpys_other_arguments():
    w = cut(values()).requires_grad_()
    np.sum(w * w).backward()
    assert torch.equal(ts.device_get(w.grad), 2 * values())
    assert np.sum(cut(values()), dtype=np.float64, initial=2.0) == 38


LEAVE = {
    "numpy()": lambda w: w.numpy(),
    "asarray": lambda w: np.asarray(w),
    "array of parts": lambda w: np.array([w, w]),
    "concatenate": lambda w: np.concatenate([w, w]),
    "where": lambda w: np.where(w > 3, w, 0),
    "clip": lambda w: np.clip(w, 2, 5),
    "reshape": lambda w: np.reshape(w, (2, 4)),
    "dot": lambda w: np.dot(np.ones(8), w),
    "norm": lambda w: np.linalg.norm(w),
    "another ufunc": lambda w: np.cbrt(w),
    "a reduction of a ufunc": lambda w: np.add.reduce(w),
}


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # torch's own is of NumPy 1
@for_every_row(LEAVE)
def test_values_go_to_numpy_only_where_no_gradient_is_lost(name):
    LEAVE[name](cut(values()))
    for asked in (torch.enable_grad, torch.no_grad):
        with asked(), pytest.raises(ts.DtypeError, match="NumPy takes no gradient"):
            LEAVE[name](cut(values()).requires_grad_())


def test_a_gradient_is_left_behind_where_the_user_says_so():
    w = cut(values()).requires_grad_()
    for made in (w.numpy(force=True), w.detach().numpy(), ts.device_get(w).numpy(), w.tolist()):
        assert np.array_equal(made, values().numpy())
    assert repr(w).startswith("Array([1., 2.")


def new_tensor(data):
    return cut(values()).new_tensor(data)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray, new_tensor])
@pytest.mark.parametrize(
    "data", [lambda x: [x[0], x[1]], lambda x: [[x[0], 1], [2.5, x[3]]], lambda x: (x[0] > 0, x[1] > 3)]
)
def test_a_tensor_of_a_list_of_arrays_has_their_values(make, data):
    assert torch.equal(make(data(cut(values()))), make(data(values())))
    if make is not new_tensor:  # it makes float32, from integers only where they are none of a tensor's
        assert torch.equal(make(data(cut(values().long()))), make(data(values().long())))


LISTS = {
    "tensor": lambda v: torch.tensor([v[0], v[1]]),
    "as_tensor": lambda v: torch.as_tensor([v[0], 1.0]),
    "asarray": lambda v: torch.asarray([[v[0]], [v[1]]]),
}


@for_every_row(LISTS)
def test_a_list_of_values_that_are_followed_is_for_stack(name):
    x = cut(values())
    with pytest.raises(TracedValueError, match=rf"torch\.{name} of traced(?s:.*)torch\.stack"):
        ts.jit(LISTS[name])(x)
    with pytest.raises(ts.DtypeError, match=rf"torch\.{name} of values(?s:.*)torch\.stack"):
        ts.grad(lambda v: LISTS[name](v).sum())(x)


def test_a_new_tensor_of_traced_values_is_for_stack():
    with pytest.raises(TracedValueError, match=r"x\.new_tensor of traced(?s:.*)torch\.stack"):
        ts.jit(lambda v: v.new_tensor([v[0], 1.0]))(cut(values()))
    made = ts.jit(lambda v: v.new_tensor([1.0, 2.0]) * v[:2])(cut(values()))
    assert torch.equal(ts.device_get(made), torch.tensor([1.0, 4.0]))
