"""Functions of torch that are written in Python, on Arrays: torch.testing, torch.func, torch.compile, torch.device."""

import numpy as np
import pytest
import torch
from torch.func import hessian, jacfwd, jacrev
from torch.testing import assert_close

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

HOST = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])


@pytest.fixture(autouse=True)
def distributions_as_before():
    """torch.compile, once loaded, lets torch.distributions check nothing in the whole process."""
    base = torch.distributions.Distribution
    before = base._validate_args
    yield
    base.set_default_validate_args(before)


@pytest.fixture(params=[P(), P("i")], ids=["one device", "in parts"])
def x(request):
    return ts.device_put(HOST, ts.NamedSharding(ts.make_mesh(4, "i"), request.param))


def test_assert_close_compares_arrays_and_says_what_differs(x):
    assert_close(x, HOST)
    assert_close(HOST, x)
    assert_close({"x": [x, x]}, {"x": [x, HOST]})
    for pair in ((x, x + 1), (HOST, x + 1), ([x], [HOST + 1])):
        with pytest.raises(AssertionError, match=r"Mismatched elements: 8 / 8 \(100.0%\)"):
            assert_close(*pair)
    with pytest.raises(AssertionError, match="'dtype' do not match"):
        assert_close(x, HOST.double())
    with pytest.raises(AssertionError, match="'shape' do not match"):
        assert_close(x, HOST[:1])


CUBE = {
    "jacrev": lambda jacobian: jacrev(lambda v: v**3),
    "jacrev in chunks": lambda jacobian: jacrev(lambda v: v**3, chunk_size=3),
    "jacfwd": lambda jacobian: jacfwd(lambda v: v**3),
    "ts.jacrev in chunks": lambda jacobian: ts.jacrev(lambda v: v**3, chunk_size=3),
    "ts.jacrev of one chunk": lambda jacobian: ts.jacrev(lambda v: v**3, chunk_size=100),
}


@pytest.mark.parametrize("jacobian", CUBE.values(), ids=CUBE)
def test_a_jacobian_of_an_array_by_torch_func_and_in_chunks(x, jacobian):
    wanted = np.diag(3 * HOST.numpy().ravel() ** 2).reshape(4, 2, 4, 2)
    for wrapped in (jacobian, lambda j: ts.jit(jacobian(j))):
        got = wrapped(None)(x)
        assert isinstance(got, ts.Array)
        np.testing.assert_allclose(got.numpy(), wanted)


def test_a_hessian_of_an_array_by_torch_func(x):
    for wrapped in (hessian, lambda f: ts.jit(hessian(f)), lambda f: hessian(ts.jit(f))):
        got = wrapped(lambda v: (v**3).sum())(x)
        np.testing.assert_allclose(got.numpy(), np.diag(6 * HOST.numpy().ravel()).reshape(4, 2, 4, 2))


def test_a_jacobian_by_two_arguments_of_torch_func(x):
    by_x, by_y = jacrev(lambda a, b: (a * b).sum(0), argnums=(0, 1))(x, 2 * x)
    plain_x, plain_y = jacrev(lambda a, b: (a * b).sum(0), argnums=(0, 1))(HOST, 2 * HOST)
    assert_close(by_x, plain_x)
    assert_close(by_y, plain_y)


def test_a_chunk_has_at_least_one_row():
    with pytest.raises(ts.DtypeError, match=r"chunk_size=0"):
        ts.jacrev(lambda v: v, chunk_size=0)


READ = {
    "str": lambda x: str(x) == str(HOST.numpy()),
    "repr": lambda x: repr(x).startswith("Array([[1., 2.],"),
    "tolist": lambda x: x.tolist() == HOST.tolist(),
    "numpy": lambda x: np.array_equal(x.numpy(), HOST.numpy()),
    "device_get": lambda x: torch.equal(ts.device_get(x), HOST),
    "a shard": lambda x: x.addressable_shards[0].data.tolist()[0] == [1.0, 2.0],
    "an op": lambda x: (x + 1).sum().item() == 44,
    "device_put": lambda x: ts.device_put(x, ts.devices()[0]).tolist() == HOST.tolist(),
    "array": lambda x: ts.array([1.0, 2.0]).tolist() == [1.0, 2.0],
    "a draw": lambda x: 0 <= ts.random.uniform(ts.random.key(0)).item() < 1,
    "jit": lambda x: ts.jit(lambda v, n: v * n)(x, 2.0).sum().item() == 72,
    "grad": lambda x: ts.grad(lambda v: (v**2).sum())(x).sum().item() == 72,
    "vmap": lambda x: ts.vmap(lambda v: v * 2)(x).sum().item() == 72,
    "jacrev": lambda x: ts.jacrev(lambda v: v.sum(0))(x).shape == (2, 4, 2),
}


@pytest.mark.parametrize("holds", READ.values(), ids=READ)
def test_a_default_device_of_the_users_is_not_that_of_the_values(x, holds):
    with torch.device("meta"):
        assert holds(x)
        assert torch.zeros(2).is_meta


def test_the_default_device_is_the_users_again_outside():
    torch.set_default_device("meta")
    try:
        assert ts.array([3.0]).tolist() == [3.0] and torch.ones(2).is_meta
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}], ids=["", "fullgraph"])
def test_a_compiled_function_computes_arrays_op_by_op(x, options):
    def f(v):
        return (v * 2).exp() + 1

    compiled = torch.compile(f, backend="eager", **options)
    assert_close(compiled(HOST), f(HOST))
    assert_close(ts.jit(compiled)(x), f(HOST))
    assert_close(compiled(x), f(HOST))
    assert_close(ts.grad(lambda v: compiled(v).sum())(x), 2 * (HOST * 2).exp())


LARGE = (2**70, -(2**63) - 1, 2**63)


@pytest.mark.parametrize("number", LARGE)
def test_an_integer_that_no_dtype_holds_is_refused(number):
    for call in (
        lambda: ts.jit(lambda v, n: v + n)(HOST, number),
        lambda: ts.pmap(lambda v, n: v + n, in_axes=(0, None))(HOST, number),
        lambda: ts.jit(lambda v, n: v + n)(HOST, n=number),
    ):
        with pytest.raises(ts.DtypeError, match=rf"out of the range of int64\n  got:  {number}\n"):
            call()
    with pytest.raises(ts.DtypeError, match="int64"):
        ts.array(number)
