"""Derivatives by 0-d tensors, floats, NumPy arrays and empty tensors, and values that do not fit their partners."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.extent import every, in_words
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def cube(x):
    return x**3


ZERO_DIM = {
    "tensor": lambda: torch.tensor(2.0),
    "float64 tensor": lambda: torch.tensor(2.0, dtype=torch.float64),
    "Array": lambda: ts.array(2.0),
    "replicated Array": lambda: ts.device_put(2.0, ts.NamedSharding(ts.make_mesh((8,), "x"), ts.P())),
    "float": lambda: 2.0,
    "NumPy scalar": lambda: np.float32(2.0),
    "NumPy array": lambda: np.array(2.0),
}


@pytest.mark.parametrize("make", ZERO_DIM.values(), ids=ZERO_DIM)
def test_derivatives_of_a_function_of_one_number(make):
    for name, want in (("grad", 12.0), ("jacfwd", 12.0), ("jacrev", 12.0), ("hessian", 12.0)):
        got = getattr(ts, name)(cube)(make())
        assert isinstance(got, torch.Tensor) and got.shape == () and float(got) == want, name
    value, slope = ts.value_and_grad(cube)(make())
    assert (float(value), float(slope)) == (8.0, 12.0)


def test_a_float_is_a_tensor_of_float32_and_a_numpy_array_keeps_its_dtype():
    assert ts.grad(cube)(2.0).dtype == torch.float32
    assert ts.grad(cube)(np.float64(2.0)).dtype == torch.float64
    assert ts.grad(lambda x: (x**2).sum())(np.ones(3, dtype=np.float32)).dtype == torch.float32


def test_jacobians_between_numbers_and_vectors():
    x = torch.tensor([1.0, 2.0])
    for jacobian in (ts.jacfwd, ts.jacrev):
        assert jacobian(lambda s: s * x)(torch.tensor(3.0)).tolist() == [1.0, 2.0]
        assert jacobian(lambda v: (v**2).sum())(x).tolist() == [2.0, 4.0]
        tree = jacobian(lambda d: d["s"] * d["v"])({"s": 3.0, "v": np.array([1.0, 2.0])})
        assert tree["s"].tolist() == [1.0, 2.0] and tree["v"].tolist() == [[3.0, 0.0], [0.0, 3.0]]
        assert jacobian(lambda s: torch.tensor(3.0))(torch.tensor(2.0)).tolist() == 0.0


def test_hessian_by_a_number_and_a_vector():
    found = ts.hessian(lambda d: d["s"] ** 2 * d["v"].sum())({"s": torch.tensor(3.0), "v": torch.tensor([1.0, 2.0])})
    assert found["s"]["s"].tolist() == 6.0
    assert found["s"]["v"].tolist() == found["v"]["s"].tolist() == [6.0, 6.0]
    assert found["v"]["v"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_grad_by_one_of_several_numbers():
    assert float(ts.grad(lambda x, y: x * y, argnums=1)(2.0, 3.0)) == 2.0
    assert [float(g) for g in ts.grad(lambda x, y: x * y, argnums=(0, 1))(2.0, 3.0)] == [3.0, 2.0]
    got = ts.grad(lambda p: p["w"] * p["b"])({"w": 2.0, "b": np.float32(5.0)})
    assert (float(got["w"]), float(got["b"])) == (5.0, 2.0)
    assert float(ts.jit(ts.grad(cube))(2.0)) == 12.0
    assert ts.vmap(ts.grad(cube))(np.arange(3.0)).tolist() == [0.0, 3.0, 12.0]


def test_grad_does_not_change_or_share_a_numpy_array():
    x = np.array([1.0, 2.0])
    value, _ = ts.vjp(lambda v: v, x)
    x[0] = 9.0
    assert value.tolist() == [1.0, 2.0]


def test_jvp_and_vjp_of_numbers_and_numpy_arrays():
    assert [float(x) for x in ts.jvp(cube, (2.0,), (1.0,))] == [8.0, 12.0]
    value, tangent = ts.jvp(cube, (np.array([1.0, 2.0]),), (np.array([1.0, 10.0]),))
    assert value.tolist() == [1.0, 8.0] and tangent.tolist() == [3.0, 120.0]
    value, back = ts.vjp(cube, 2.0)
    assert float(value) == 8.0 and float(back(1.0)[0]) == 12.0
    value, back = ts.vjp(cube, np.array([1.0, 2.0]))
    assert back(np.array([1.0, 10.0]))[0].tolist() == [3.0, 120.0]


def test_a_number_takes_the_dtype_of_its_partner():
    x = torch.tensor(2.0, dtype=torch.float64)
    assert ts.jvp(cube, (x,), (1.0,))[1].dtype == torch.float64
    assert ts.vjp(cube, x)[1](1)[0].dtype == torch.float64


WRONG_TANGENTS = {
    "dtype": ((torch.tensor(2.0),), (torch.tensor(1.0, dtype=torch.float64),)),
    "int for float": ((torch.tensor(2.0),), (torch.tensor(1),)),
    "NumPy's dtype": ((2.0,), (np.float64(1.0),)),
    "shape": ((torch.tensor(2.0),), (torch.tensor([1.0]),)),
    "list for tuple": (([torch.tensor(2.0)],), ((torch.tensor(1.0),),)),
    "list of tangents": ((torch.tensor(2.0),), [torch.tensor(1.0)]),
    "other keys": (({"a": torch.tensor(2.0)},), ({"b": torch.tensor(1.0)},)),
    "int primal": ((torch.tensor(2),), (torch.tensor(1),)),
    "text": (("x",), (1.0,)),
}


@pytest.mark.parametrize("case", WRONG_TANGENTS.values(), ids=WRONG_TANGENTS)
def test_jvp_refuses_tangents_that_do_not_fit(case):
    primals, tangents = case
    with pytest.raises(ts.DtypeError, match=r"(?s)jvp.*got:"):
        ts.jvp(lambda x: x, primals, tangents)


def test_jvps_error_names_the_leaf():
    with pytest.raises(ts.DtypeError, match=r"f64\[\] for \[0\]\['w'\], which is f32\[\]"):
        ts.jvp(lambda d: d["w"], ({"w": torch.tensor(1.0)},), ({"w": torch.tensor(1.0, dtype=torch.float64)},))


def test_vjp_refuses_cotangents_that_do_not_fit():
    x = torch.tensor([2.0, 3.0])
    _, back = ts.vjp(cube, x)
    for wrong in (x.double(), torch.tensor([1, 1]), torch.tensor(1.0), torch.ones(2, 1), (x,), [x], np.ones(2)):
        with pytest.raises(ts.DtypeError, match=r"(?s)vjp.*got:"):
            back(wrong)
    _, back = ts.vjp(lambda v: (v, {"twice": 2 * v}), x)
    assert back((x, {"twice": x}))[0].tolist() == [6.0, 9.0]
    for wrong in ([x, {"twice": x}], (x, x), (x, {"once": x}), (x, {"twice": x.double()})):
        with pytest.raises(ts.DtypeError, match=r"(?s)vjp.*got:"):
            back(wrong)


def test_vjp_inside_jit_and_vmap_checks_too():
    def pulled(x, g):
        return ts.vjp(cube, x)[1](g)[0]

    x = torch.tensor([1.0, 2.0])
    assert ts.jit(pulled)(x, x).tolist() == ts.vmap(pulled)(x, x).tolist() == [3.0, 24.0]
    with pytest.raises(ts.DtypeError, match="vjp"):
        ts.jit(pulled)(x, x.double())


def test_derivatives_by_integers_and_strings_are_an_error():
    for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian"):
        for wrong in (2, True, torch.tensor(2), np.arange(3), "x"):
            with pytest.raises(ts.DtypeError, match="real floating-point"):
                getattr(ts, name)(cube)(wrong)
        with pytest.raises(ts.DtypeError, match="nothing to differentiate with respect to"):
            getattr(ts, name)(cube)(None)
    with pytest.raises(ts.DtypeError, match="floating-point"):
        ts.vjp(cube, torch.tensor(2))


def test_derivatives_by_complex_numbers_point_to_vjp():
    for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian"):
        with pytest.raises(ts.DtypeError, match=r"ts\.vjp"):
            getattr(ts, name)(cube)(torch.tensor(1 + 2j))
        with pytest.raises(ts.DtypeError, match=r"ts\.vjp"):
            getattr(ts, name)(cube)(1 + 2j)
    # torch's convention: the conjugate of the derivative 3z^2
    z = torch.tensor(1 + 2j)
    assert complex(ts.vjp(cube, z)[1](1.0)[0]) == (3 * (1 + 2j) ** 2).conjugate()


@pytest.mark.parametrize("argnums", [(0, 0), (1, -1), [0, 1, -2]])
def test_an_argument_named_twice_by_argnums_is_refused(argnums):
    for transform in (ts.grad, ts.value_and_grad, ts.jacfwd, ts.jacrev, ts.hessian):
        with pytest.raises(ts.DtypeError, match=r"to one argument twice(?s:.*)argnums=(?s:.*)try:  argnums="):
            transform(lambda x, y: x * y, argnums=argnums)(1.0, 2.0)


LOSSES = (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss)


@pytest.mark.parametrize(("shape", "loss"), every(3, itertools.product([(0,), (0, 8), (8, 0)], LOSSES)), ids=in_words)
def test_a_mean_loss_of_nothing_is_torchs_with_its_gradient(shape, loss):
    x, y = torch.zeros(shape), torch.ones(shape)
    value, slope = torch.func.grad_and_value(loss)(x, y)[::-1]
    spec = P(*("x" if n == 8 else None for n in shape))
    for put in (x, ts.device_put(x, ts.NamedSharding(ts.make_mesh((8,), "x"), spec))):
        for call in (ts.value_and_grad(loss), ts.jit(ts.value_and_grad(loss)), ts.value_and_grad(ts.jit(loss))):
            got = ts.device_get(call(put, y))
            torch.testing.assert_close(got, (value, slope), equal_nan=True)


@pytest.mark.parametrize("transform", [ts.grad, ts.value_and_grad, ts.jacrev, ts.jacfwd, ts.hessian])
def test_with_has_aux_a_function_that_returns_no_pair_is_refused(transform):
    with pytest.raises(ts.errors.DtypeError, match=r"returns \(result, anything else\)"):
        transform(lambda x: x * 2, has_aux=True)(torch.ones(2))
