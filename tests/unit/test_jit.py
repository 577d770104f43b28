"""A jitted function: when Python runs it, what it is called with, and what may be jitted."""

import concurrent.futures
import functools
import logging

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.traces import Counted, same
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def test_the_function_runs_once_for_each_shape_and_dtype():
    f = Counted(lambda x: x * 2)
    for x in (torch.ones(3), torch.zeros(3), torch.ones(4), torch.ones(3, dtype=torch.int32), torch.ones(3)):
        same(f(x), x * 2)
    assert f.traces == 3


def test_another_layout_is_partitioned_again_and_not_traced_again(mesh, host):
    f = Counted(lambda x, y: (x @ y.T).sum(0) + x.mean())
    wanted = (host @ host.T).sum(0) + host.mean()
    for left in (P("a", "b"), P("b"), P(None, "a"), P(("a", "b"))):
        for right in (P("a", "b"), P()):
            x, y = (ts.device_put(host, ts.NamedSharding(mesh, spec)) for spec in (left, right))
            same(f(x, y), wanted)
    same(f(host, host), wanted)
    assert f.traces == 1


def test_calls_that_differ_only_in_what_decides_on_the_program_do_not_share_one(mesh, host):
    """Committed arguments are a short way to the program: it must know all that matters."""
    factor = [torch.tensor(2.0)]
    plain, closing = ts.jit(lambda x: x * 2), ts.jit(lambda x: x * factor[0])
    other = ts.make_mesh((2, 4), ("c", "d"))
    rows, columns = ts.NamedSharding(mesh, ts.P("a")), ts.NamedSharding(mesh, ts.P(None, "b"))
    places = [rows, columns, ts.NamedSharding(other, ts.P("d"))]
    for _ in range(2):
        for place in places:
            x = ts.device_put(host, place)
            for f in (plain, closing):
                y = f(x)
                assert torch.equal(ts.device_get(y), host * 2)
                assert y.sharding.mesh == place.mesh
                assert y.committed
        assert not plain(ts.array(host)).committed
        assert torch.equal(ts.device_get(plain(ts.device_put(host.long(), rows))), host.long() * 2)
    factor[0] = torch.tensor(3.0)
    assert torch.equal(ts.device_get(closing(x)), host * 3)
    assert torch.equal(ts.device_get(torch.func.vmap(plain)(x)), host * 2)


def test_a_function_without_arguments_is_asked_each_time_where_it_runs():
    f = ts.jit(lambda: torch.arange(4) + 1)
    for count in (8, 2, 8):
        ts.init(devices=count, runtime="local")
        assert f().tolist() == f().tolist() == [1, 2, 3, 4]


def test_the_order_of_a_dict_does_not_mix_up_its_values():
    f = ts.jit(lambda d: d["a"] - d["b"])
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    assert float(f({"a": one, "b": two})) == -1
    assert float(f({"b": two, "a": one})) == -1


def test_an_argument_may_come_by_name():
    f = ts.jit(lambda x, y: x - y)
    assert float(f(torch.tensor(3.0), y=torch.tensor(1.0))) == 2
    assert float(f(y=torch.tensor(1.0), x=torch.tensor(3.0))) == 2


def test_python_numbers_are_traced_and_need_no_new_trace():
    f = Counted(lambda x, n: x * n)
    for n in (1.5, 2.5, -3.0):
        same(f(torch.ones(2), n), torch.ones(2) * n)
    assert f.traces == 1
    same(f(torch.ones(2, dtype=torch.float64), 2.5), torch.full((2,), 2.5, dtype=torch.float64))
    same(f(torch.ones(2), np.arange(2)), torch.tensor([0.0, 1.0]))
    same(f(torch.ones(2), True), torch.ones(2))


def test_none_among_the_arguments_stays_none():
    f = Counted(lambda x, bias=None: x if bias is None else x + bias)
    same(f(torch.ones(2), None), torch.ones(2))
    same(f(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    same(f(torch.ones(2)), torch.ones(2))
    assert f.traces == 3


@pytest.mark.parametrize("argument", ["text", len, object()])
def test_what_is_no_tensor_is_refused(argument):
    with pytest.raises(TypeError, match=r"not a tensor|not a value") as caught:
        ts.jit(lambda x, y: x)(torch.ones(2), argument)
    assert isinstance(caught.value, ts.DtypeError)


def test_jit_takes_functions():
    with pytest.raises(TypeError, match="jit takes a function"):
        ts.jit(3)


def test_it_is_a_decorator_with_and_without_arguments():
    @ts.jit
    def double(x):
        """Twice."""
        return x * 2

    @ts.jit(static_argnames=("n",))
    def first(x, *, n):
        return x[:n]

    @functools.partial(ts.jit, static_argnums=(1,))
    def power(x, n):
        return x**n

    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert double(torch.tensor(2.0)).item() == 4
    assert first(torch.arange(3.0), n=1).tolist() == [0.0]
    assert power(torch.tensor(3.0), 2).item() == 9


def test_a_method_sees_its_own_object_as_it_is_now():
    class Layer:
        def __init__(self, w):
            self.w = torch.tensor(w)

        @functools.partial(ts.jit, static_argnums=0)
        def apply(self, x):
            return x * self.w

    one, two = Layer(2.0), Layer(3.0)
    x = torch.tensor(1.0)
    assert [float(layer.apply(x)) for layer in (one, two)] == [2, 3]
    one.w = torch.tensor(5.0)
    assert [float(layer.apply(x)) for layer in (one, two)] == [5, 3]
    assert "aten.mul.Tensor" in one.apply.lower(x).as_text()


def test_a_bound_method_and_a_partial_are_functions_too():
    class Adder:
        w = torch.tensor(1.0)

        def add(self, x, y):
            return x + y + self.w

    adder = Adder()
    assert float(ts.jit(adder.add)(torch.tensor(1.0), 2.0)) == 4
    assert float(ts.jit(functools.partial(adder.add, y=torch.tensor(5.0)))(torch.tensor(1.0))) == 7


def test_jit_in_jit_is_one_program(host):
    inner = Counted(lambda x: torch.sin(x))
    f = ts.jit(lambda x: inner(x) + inner(x * 2))
    same(f(host), torch.sin(host) + torch.sin(host * 2))
    assert f.lower(host).as_text().count("aten.sin") == 2
    same(f(host), torch.sin(host) + torch.sin(host * 2))


def test_under_vmap_and_grad_it_gives_what_the_function_gives(host):
    square = ts.jit(lambda x: (x * x).sum())
    same(torch.func.vmap(square)(host), (host * host).sum(1))
    same(ts.grad(square)(host), 2 * host)
    same(ts.jit(torch.func.vmap(square))(host), (host * host).sum(1))


def test_threads_may_trace_at_once():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: float(ts.jit(lambda x: (x * n).sum())(torch.ones(4))), range(8)))
    assert made == [4.0 * n for n in range(8)]


def test_a_described_value_is_not_computed_with():
    with pytest.raises(ts.DtypeError, match="has no values"):
        ts.jit(lambda x: x + 1)(ts.ShapeDtypeStruct((2,), torch.float32))


def test_a_shape_that_does_not_fit_is_torchs_own_error_and_is_not_logged_besides():
    told = []
    handler = logging.Handler()
    handler.emit = told.append
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            ts.jit(lambda v: v @ torch.ones(3, 3))(ts.device_put(torch.ones(8, 2), ts.devices()[0]))
        log.error("a later one")
    finally:
        log.removeHandler(handler)
    assert [record.getMessage() for record in told] == ["a later one"]
