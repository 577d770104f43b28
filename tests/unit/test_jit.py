import concurrent.futures
import copy
import dataclasses
import functools
import logging
import pickle
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import P
from tinyshard.core.errors import TracedValueError

pytestmark = pytest.mark.usefixtures("local")

SCALE = torch.tensor(2.0)
PARTS = types.ModuleType("parts")
PARTS.weight = torch.tensor([1.0, 2.0])


@pytest.fixture
def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


@pytest.fixture
def host():
    return torch.arange(32.0).reshape(8, 4)


@pytest.fixture
def explained(capsys):
    """Calls a function; what it says about being traced."""
    ts.config.update("explain_cache_misses", True)
    capsys.readouterr()

    def call(function, *args, **kwargs):
        function(*args, **kwargs)
        return capsys.readouterr().err

    yield call
    ts.config.update("explain_cache_misses", False)


def same(got, wanted):
    torch.testing.assert_close(ts.device_get(got), wanted)


class Counted:
    """A function under jit, and how often Python has run it."""

    def __init__(self, function, **options):
        self.traces = 0

        @functools.wraps(function)
        def counting(*args, **kwargs):
            self.traces += 1
            return function(*args, **kwargs)

        self.jitted = ts.jit(counting, **options)

    def __call__(self, *args, **kwargs):
        return self.jitted(*args, **kwargs)


# ---- one trace a signature ------------------------------------------------------------------------------------------


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
    assert f().tolist() == f().tolist() == [1, 2, 3, 4]
    assert not f._found


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
    with pytest.raises(TypeError, match=r"no tensor|not a value") as caught:
        ts.jit(lambda x, y: x)(torch.ones(2), argument)
    assert isinstance(caught.value, ts.DtypeError)


def test_jit_takes_functions():
    with pytest.raises(TypeError, match="jit takes a function"):
        ts.jit(3)


def _by_backward(w, x):
    w = w.detach().requires_grad_()
    ((x @ w) ** 2).sum().backward()
    return w.grad


def _by_autograd(w, x):
    w = w.detach().requires_grad_()
    return torch.autograd.grad(((x @ w) ** 2).sum(), w)[0]


@pytest.mark.parametrize("slope", [_by_backward, _by_autograd])
@pytest.mark.parametrize("over_devices", [False, True])
def test_torchs_tape_in_a_traced_function_is_refused_with_a_pointer_to_grad(mesh, slope, over_devices):
    mapped = ts.shard_map(slope, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(TracedValueError, match=r"test_jit\.py:\d+: .*(backward\(\)|autograd\.grad)") as caught:
        (mapped if over_devices else ts.jit(slope))(torch.ones(4), torch.ones(8, 4))
    assert "a traced function runs without torch's tape" in str(caught.value)
    assert "ts.grad(loss)(w), or ts.value_and_grad" in str(caught.value)


# ---- static arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnums": (-1,)}, {"static_argnames": "n"}])
def test_a_static_argument_is_a_python_value_by_position_and_by_name(how):
    f = Counted(lambda x, n: x.sum() if n == 0 else x[:n], **how)
    if how != {"static_argnums": (-1,)}:
        same(f(torch.arange(4.0), n=2), torch.tensor([0.0, 1.0]))
    same(f(torch.arange(4.0), 2), torch.tensor([0.0, 1.0]))
    same(f(torch.arange(4.0), 0), torch.tensor(6.0))
    before = f.traces
    same(f(torch.arange(4.0) + 1, 2), torch.tensor([1.0, 2.0]))
    assert f.traces == before


def test_equal_static_values_of_different_types_do_not_share_a_trace():
    f = ts.jit(lambda x, n: x * n, static_argnums=1)
    assert f(torch.arange(2), 1).dtype == torch.int64
    assert f(torch.arange(2), 1.0).dtype == torch.float32
    assert f(torch.arange(2), True).dtype == torch.int64


@dataclasses.dataclass(frozen=True)
class Scale:
    by: Any


class Pair(NamedTuple):
    by: Any


@pytest.mark.parametrize(
    "wrap, unwrap",
    [
        (lambda n: (n,), lambda c: c[0]),
        (lambda n: ((2, (n,)),), lambda c: c[0][1][0]),
        (lambda n: frozenset([n]), lambda c: next(iter(c))),
        (Scale, lambda c: c.by),
        (lambda n: Scale((Pair(n),)), lambda c: c.by[0].by),
        (lambda n: Pair(Scale(n)), lambda c: c.by.by),
    ],
    ids=["tuple", "nested", "frozenset", "dataclass", "inside a dataclass", "named tuple"],
)
def test_equal_static_values_with_other_types_inside_do_not_share_a_trace(wrap, unwrap):
    f = ts.jit(lambda x, c: torch.full((2,), unwrap(c)) * x, static_argnums=1)
    x = torch.tensor([7, 8])
    for n in (1, 1.0, True, 1):
        out = f(x, wrap(n))
        want = torch.full((2,), n) * x
        assert out.dtype == want.dtype and out.tolist() == want.tolist()
    before = f._cache_size()
    f(x, wrap(1.0))
    assert f._cache_size() == before == 3


def test_types_inside_lists_and_dicts_of_a_static_dataclass_count_too():
    @dataclasses.dataclass
    class Config:
        sizes: Any

        def __hash__(self):
            return 0

    f = ts.jit(lambda x, c: torch.full((2,), c.sizes["n"][0]) * x, static_argnums=1)
    x = torch.tensor([7, 8])
    for n in (1, 1.0, True):
        assert f(x, Config({"n": [n]})).dtype == (torch.full((2,), n) * x).dtype


@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnames": "sizes"}])
def test_a_static_argument_that_cannot_be_hashed_is_named(how):
    f = ts.jit(lambda x, sizes: x.reshape(sizes), **how)
    same(f(torch.arange(4.0), (2, 2)), torch.arange(4.0).reshape(2, 2))
    with pytest.raises(ValueError, match=r"cannot be hashed\n.*argument 'sizes': list"):
        f(torch.arange(4.0), [2, 2])


def test_a_static_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"got:  'k'\n.*'x', 'n'"):
        ts.jit(lambda x, n: x, static_argnames="k")


# ---- forms ----------------------------------------------------------------------------------------------------------


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


# ---- shardings of arguments and results -----------------------------------------------------------------------------


def test_in_shardings_put_the_arguments_and_may_be_a_prefix(mesh, host):
    rows, whole = ts.NamedSharding(mesh, P("a")), ts.NamedSharding(mesh, P())
    f = ts.jit(lambda x, tree, y: (x * 1, tree["w"] * 1, tree["b"] * 1, y * 1), in_shardings=(rows, whole, None))
    out = f(host, {"w": host, "b": torch.ones(3)}, host[:3])
    assert [v.sharding for v in out[:3]] == [rows, whole, whole]
    for got, wanted in zip(out, (host, host, torch.ones(3), host[:3]), strict=True):
        same(got, wanted)
    text = f.lower(host, {"w": host, "b": torch.ones(3)}, host[:3]).compile().as_text()
    assert "%0: f32[2, 4] = input" in text


def test_in_shardings_leave_static_and_named_arguments_out(mesh, host):
    rows = ts.NamedSharding(mesh, P("a"))
    f = ts.jit(lambda n, x, *, y: x * n + y, static_argnums=0, in_shardings=(rows,))
    got = f(2, host, y=1.0)
    assert got.sharding == rows
    same(got, host * 2 + 1)


def test_an_argument_committed_elsewhere_than_in_shardings_says_is_an_error(mesh, host):
    f = ts.jit(lambda x: x, in_shardings=ts.NamedSharding(mesh, P("a")))
    with pytest.raises(ValueError, match=r"committed to another sharding.*\n.*P\('b'\)"):
        f(ts.device_put(host, ts.NamedSharding(mesh, P("b"))))
    with pytest.raises(ValueError, match="tree of shardings"):
        ts.jit(lambda x, y: x, in_shardings=(None,))(host, host)


def test_out_shardings_lay_out_the_results(mesh, host):
    rows, columns = (ts.NamedSharding(mesh, s) for s in (P("a"), P(None, "b")))
    f = ts.jit(lambda x: {"w": x + 1, "rest": (x - 1, x.sum(), "name")}, out_shardings={"w": columns, "rest": None})
    out = f(ts.device_put(host, rows))
    assert out["w"].sharding == columns
    assert out["rest"][0].sharding == rows
    assert out["rest"][2] == "name"
    for x in (host, ts.array(host)):
        out = ts.jit(lambda x: x + 1, out_shardings=columns)(x)
        assert out.sharding == columns
        assert out.committed
        same(out, host + 1)


def test_a_spec_may_stand_for_a_sharding_when_a_mesh_is_set(mesh, host):
    with ts.set_mesh(mesh):
        got = ts.jit(lambda x: x + 1, in_shardings=P("a", "b"), out_shardings=P("b", "a"))(host)
    assert got.sharding == ts.NamedSharding(mesh, P("b", "a"))
    same(got, host + 1)


def test_out_shardings_on_other_devices_than_the_arguments_are_an_error(host):
    x = ts.device_put(host, ts.devices()[0])
    away = ts.SingleDeviceSharding(ts.devices()[1])
    with pytest.raises(ValueError, match="Devices of all `Array` inputs and outputs should be the same"):
        ts.jit(lambda x: x + 1, out_shardings=away)(x)


def test_an_uncommitted_operand_is_put_where_the_first_op_wants_it_and_stays_right(mesh, host):
    x = ts.device_put(host, ts.NamedSharding(mesh, P("a", "b")))

    def f(x, t):
        return torch.addcmul(x, t, t), t.T @ x, t

    for got, wanted in zip(ts.jit(f)(x, host), f(host, host), strict=True):
        same(got, wanted)


# ---- what a function closes over ------------------------------------------------------------------------------------


def test_a_global_is_looked_up_at_each_call():
    global SCALE
    f = Counted(lambda x: x * SCALE)
    before = SCALE
    try:
        assert float(f(torch.tensor(3.0))) == 6
        SCALE = torch.tensor(5.0)
        assert float(f(torch.tensor(3.0))) == 15
        SCALE.fill_(7.0)
        assert float(f(torch.tensor(3.0))) == 21
        assert f.traces == 1
        SCALE = torch.tensor([1.0, 2.0])
        assert f(torch.tensor(3.0)).tolist() == [3, 6]
        SCALE = 10.0
        assert float(f(torch.tensor(3.0))) == 30
    finally:
        SCALE = before


def test_an_attribute_of_a_module_is_looked_up_at_each_call():
    f = ts.jit(lambda x: x * PARTS.weight)
    before = PARTS.weight
    try:
        assert f(torch.tensor(1.0)).tolist() == [1, 2]
        PARTS.weight = torch.tensor([3.0, 4.0])
        assert f(torch.tensor(1.0)).tolist() == [3, 4]
    finally:
        PARTS.weight = before


def test_cells_and_nested_functions_are_looked_up_at_each_call(mesh, host):
    w = ts.device_put(host, ts.NamedSharding(mesh, P("a")))

    def inner(x):
        return x + w

    f = Counted(lambda x: inner(x) * 2)
    same(f(host), host * 4)
    w = ts.device_put(host + 1, ts.NamedSharding(mesh, P(None, "b")))
    same(f(host), host * 4 + 2)
    assert f.traces == 1
    w = w.double()
    assert f(host).dtype == torch.float64
    assert f.traces == 2


def test_trees_of_tensors_are_looked_up_at_each_call(host):
    params = {"w": [host, host + 1]}
    f = Counted(lambda x: x * params["w"][0] + params["w"][1])
    same(f(host), host * host + host + 1)
    params["w"][1] = host
    same(f(host), host * host + host)
    params = {"w": (host + 1, host)}
    same(f(host), host * (host + 1) + host)
    assert f.traces == 1


def test_two_names_of_one_tensor_may_come_apart():
    left = right = torch.tensor(2.0)
    f = ts.jit(lambda x: x * left + right)
    assert float(f(torch.tensor(1.0))) == 4
    right = torch.tensor(10.0)
    assert float(f(torch.tensor(1.0))) == 12
    left = torch.tensor(3.0)
    assert float(f(torch.tensor(1.0))) == 13


def test_parameters_of_modules_are_inputs_and_may_change_in_place(host):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    f = Counted(lambda x: model(x))
    same(f(host), model(host).detach())
    with torch.no_grad():
        model[0].weight.add_(1.0)
    model[2].bias = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    same(f(host), model(host).detach())
    assert f.traces == 1
    same(ts.jit(model)(host), model(host).detach())
    assert "model.0.weight" in f.jitted.lower(host).as_text()


def test_buffers_of_modules_are_read_in_evaluation(host):
    model = torch.nn.BatchNorm1d(4).eval()
    f = ts.jit(lambda x: model(x))
    same(f(host), model(host).detach())
    model.running_mean.add_(3.0)
    same(f(host), model(host).detach())


# ---- Python's control flow ------------------------------------------------------------------------------------------


def test_branching_on_a_traced_value_names_the_line_and_what_to_write():
    def clip(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(TypeError, match=r"value of a traced tensor") as caught:
        ts.jit(clip)(torch.ones(3))
    text = str(caught.value)
    assert f"test_jit.py:{clip.__code__.co_firstlineno + 1}" in text
    for word in ("torch.where", "torch.cond", "static_argnums"):
        assert word in text


@pytest.mark.parametrize("ask", [float, int, bool, lambda x: x.item(), lambda x: x.tolist(), lambda x: x.numpy()])
def test_asking_a_traced_value_for_its_number_is_an_error(ask):
    with pytest.raises((TypeError, RuntimeError)) as caught:
        ts.jit(lambda x: ask(x.sum()))(torch.ones(3))
    assert isinstance(caught.value, ts.TinyshardError)


def test_cond_chooses_a_branch_by_value():
    f = ts.jit(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)))
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert f(-torch.ones(2)).tolist() == [-2, -2]


def test_cond_may_be_nested_have_several_results_and_close_over_tensors(mesh):
    w = torch.tensor([1.0, 10.0])

    def inner(x):
        return torch.cond(x.max() > 5, lambda x: (x * w, x + 1), lambda x: (x - w, x.clone()), (x,))

    f = ts.jit(lambda x: torch.cond(x.sum() > 0, inner, lambda x: (x * 0.5, x + w), (x,)))
    for values in ([1.0, 9.0], [1.0, 2.0], [-1.0, -2.0]):
        x = torch.tensor(values)
        wanted = ((x * w, x + 1) if x.max() > 5 else (x - w, x)) if x.sum() > 0 else (x * 0.5, x + w)
        for got, want in zip(f(ts.device_put(x, ts.NamedSharding(mesh, P("b")))), wanted, strict=True):
            same(got, want)


def test_a_shape_that_depends_on_values_is_a_clear_error():
    with pytest.raises(TypeError, match=r"shape of a result depends on values"):
        ts.jit(lambda x: x[x > 0])(torch.ones(3))
    with pytest.raises(TypeError, match=r"shape of a result depends on values"):
        ts.jit(torch.nonzero)(torch.ones(3))
    with pytest.raises(TypeError, match=r"shape of a result depends on values"):
        ts.jit(lambda x, i: x[i])(torch.ones(3), torch.tensor([1, 0, 1], dtype=torch.uint8))


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("spec", [P("a"), P(None, "b"), P()], ids=str)
def test_repeat_interleave_that_is_told_the_size_of_its_result_has_a_shape(wrap, spec):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x, times = torch.arange(32.0).reshape(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    cut = ts.device_put(x, ts.NamedSharding(mesh, spec))

    def f(x, times, size):
        return x.repeat_interleave(times, 0, output_size=size)

    assert torch.equal(ts.device_get(wrap(lambda x, times: f(x, times, 7))(cut, times)), f(x, times, 7))
    gradient = wrap(ts.grad(lambda x: (f(x, times, 7) ** 2).sum()))(cut)
    assert torch.equal(ts.device_get(gradient), 2 * x * times[:, None])
    with pytest.raises(RuntimeError, match="allocated size does not match required size"):
        ts.device_get(wrap(lambda x, times: f(x, times, 9))(cut, times))


# ---- writing in place -----------------------------------------------------------------------------------------------


def test_writing_into_values_made_inside_is_fine(mesh, host):
    def f(x):
        y = x.clone()
        y[0] = 7.0
        y[1:3, 2] += 1
        y.view(-1)[5:7].mul_(2)
        rows = y.T
        rows[1].zero_()
        z = torch.zeros(8, 4)
        z += y
        z.clamp_(min=1.0)
        return z, y

    for x in (host, ts.device_put(host, ts.NamedSharding(mesh, P("a", "b")))):
        for got, wanted in zip(ts.jit(f)(x), f(host), strict=True):
            same(got, wanted)


def test_writing_into_an_argument_names_it():
    def f(params, x):
        params["w"][0].add_(1)
        return x

    with pytest.raises(TypeError, match=r"changes its argument in place\n.*params\['w'\]\[0\]") as caught:
        ts.jit(f)({"w": [torch.ones(2)]}, torch.ones(2))
    assert isinstance(caught.value, ts.ImmutableError)


def test_writing_into_a_closed_over_tensor_is_refused():
    for w in (torch.ones(2), ts.array([1.0, 1.0]), torch.nn.Parameter(torch.ones(2))):
        with pytest.raises(ts.ImmutableError, match="closes over"):
            ts.jit(lambda x: w.add_(x))(torch.ones(2))  # noqa: B023 (called at once)
        assert w.tolist() == [1, 1]


def test_training_mode_of_batch_norm_is_refused_because_it_writes_its_buffers(host):
    model = torch.nn.BatchNorm1d(4)
    with pytest.raises(ts.ImmutableError):
        ts.jit(lambda x: model(x))(host)
    assert model.running_mean.tolist() == [0] * 4


@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, torch.nn.functional.dropout, lambda x: x + torch.randn(2), lambda x: x.clone().uniform_()],
)
def test_stateful_randomness_is_refused(draw):
    with pytest.raises(ts.StatefulRandomError, match=r"ts\.random"):
        ts.jit(draw)(torch.ones(2))


# ---- results --------------------------------------------------------------------------------------------------------


def test_an_argument_may_be_passed_through_unchanged(mesh, host):
    f = ts.jit(lambda x, y: (y, x, x))
    x = ts.device_put(host, ts.NamedSharding(mesh, P("a", "b")))
    y, one, two = f(x, host + 1)
    assert one.sharding == x.sharding
    for got, wanted in ((y, host + 1), (one, host), (two, host)):
        same(got, wanted)
    del x, one
    same(two, host)


def test_results_that_are_no_tensors_come_back_as_they_are():
    f = ts.jit(lambda x: {"y": x + 1, "name": "f", "n": 3, "none": None, "shape": x.shape})
    out = f(torch.zeros(2))
    assert out["y"].tolist() == [1, 1]
    assert (out["name"], out["n"], out["none"], tuple(out["shape"])) == ("f", 3, None, (2,))


def test_a_function_without_results_gives_none():
    assert ts.jit(lambda x: None)(torch.ones(2)) is None
    assert ts.jit(lambda: 5)() == 5


def test_a_function_without_arguments_and_constants_inside():
    assert ts.jit(lambda: torch.arange(3) + torch.tensor([1, 2, 3]))().tolist() == [1, 3, 5]
    assert ts.jit(lambda: torch.zeros(2))().tolist() == [0, 0]
    f = ts.jit(lambda x: x + torch.tensor([1.0, 2.0]) * torch.ones(2) + torch.full((2,), 0.5))
    assert f(torch.zeros(2)).tolist() == [1.5, 2.5]


def test_closed_over_values_may_be_the_result():
    w = ts.array([1.0, 2.0])
    assert ts.jit(lambda x: w)(torch.ones(1)).tolist() == [1, 2]
    plain = torch.ones(2)
    assert isinstance(ts.jit(lambda: plain)(), ts.Array)


def test_named_tuples_and_nested_trees_come_back_whole():
    import collections

    point = collections.namedtuple("point", "x y")
    out = ts.jit(lambda p: point(p.y, [p.x, {"k": p.x + p.y}]))(point(torch.tensor(1.0), torch.tensor(2.0)))
    assert isinstance(out, point)
    assert (float(out.x), float(out.y[0]), float(out.y[1]["k"])) == (2, 1, 3)


def test_uncommitted_arguments_give_uncommitted_results_and_committed_ones_committed(mesh, host):
    f = ts.jit(lambda x, y: x + y)
    assert not f(host, ts.array(host)).committed
    got = f(host, ts.device_put(host, ts.devices()[3]))
    assert got.committed
    assert got.devices() == {ts.devices()[3]}


# ---- effects --------------------------------------------------------------------------------------------------------


def test_a_failed_check_inside_reaches_who_asks_for_a_result():
    factor = ts.jit(torch.linalg.cholesky)
    same(factor(4 * torch.eye(2)), 2 * torch.eye(2))
    bad = factor(-torch.eye(2))
    with pytest.raises(ts.RemoteError, match="positive-definite"):
        bad.numpy()


def test_a_check_survives_though_nobody_uses_its_values(host):
    def f(x):
        torch.linalg.cholesky(x)
        return x + 1

    got = ts.jit(f)(-torch.eye(2))
    with pytest.raises(ts.RemoteError, match="positive-definite"):
        got.numpy()
    same(ts.jit(f)(torch.eye(2)), torch.eye(2) + 1)


# ---- why it is traced again -----------------------------------------------------------------------------------------


def test_explanations_name_the_argument_and_show_old_and_new(explained):
    @functools.partial(ts.jit, static_argnames="n")
    def f(params, x, n=1):
        return params["w"] + x * n

    w = {"w": torch.ones(2)}
    assert explained(f, w, torch.ones(2)).startswith("f is traced: it was not called before\n  at ")
    assert explained(f, w, torch.zeros(2)) == ""
    assert "\n  x: f32[2], now f32[1]\n" in explained(f, w, torch.zeros(1))
    assert "\n  params['w']: f32[2], now f64[2]\n" in explained(f, {"w": torch.ones(2).double()}, torch.ones(2))
    assert "\n  static argument 'n': not given, now 3\n" in explained(f, w, torch.ones(2), n=3)
    assert "\n  static argument 'n': 3, now 4\n" in explained(f, w, torch.ones(2), n=4)
    text = explained(f, {"w": torch.ones(2), "b": torch.ones(2)}, torch.ones(2))
    assert "put together otherwise: ({'w': *}, *), now ({'w': *, 'b': *}, *)" in text
    assert "test_jit.py:" in text


def test_explanations_compare_with_a_call_of_the_same_containers_where_there_was_one(explained):
    f = ts.jit(lambda pair: pair[0] + pair[1])
    explained(f, [torch.ones(2), torch.ones(2)])
    assert "put together otherwise: ([*, *]), now ((*, *))" in explained(f, (torch.ones(2), torch.ones(2)))
    told = explained(f, [torch.ones(2), torch.ones(2).double()])
    assert "\n  pair[1]: f32[2], now f64[2]\n" in told
    assert "otherwise" not in told


def test_explanations_tell_of_closed_over_tensors(explained):
    w = torch.ones(2)
    f = ts.jit(lambda x: x + w)
    explained(f, torch.ones(2))
    w = torch.ones(1)
    assert "closes over" in explained(f, torch.ones(2))


def test_flags_have_names_and_types():
    with pytest.raises(AttributeError, match="explain_cache_misses"):
        ts.config.update("explain", True)
    with pytest.raises(ts.TinyshardError, match="takes a bool"):
        ts.config.update("explain_cache_misses", 1)


def _sets_an_element(x, w):
    w[0] = 5.0
    return x + w


def _writes_through_a_view(x, w):
    w.view(-1).mul_(3.0)
    return x + w


@pytest.mark.parametrize(
    "change",
    [
        _sets_an_element,
        _writes_through_a_view,
        lambda x, w: torch.add(x, 1, out=w),
        lambda x, w: torch._foreach_add_([w], 1.0) or x,
    ],
)
def test_every_way_of_writing_into_a_closed_over_tensor_is_refused(change):
    w = torch.ones(8, 2)
    with pytest.raises(ts.ImmutableError, match="closes over"):
        ts.jit(lambda x: change(x, w))(torch.ones(8, 2))
    assert torch.equal(w, torch.ones(8, 2))


class Holder:
    shared = torch.tensor(1.0)

    def __init__(self):
        self.own = torch.tensor(1.0)

    def by_class(self, x):
        return x * Holder.shared

    @property
    def doubled(self):
        return self.own * 2


class Slotted:
    __slots__ = ("own",)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(1.0)
        self.parts = [torch.tensor(1.0)]

    def forward(self, x):
        return x * self.scale * self.parts[0]


def test_rebinding_what_classes_modules_slots_and_containers_hold_is_seen(monkeypatch):
    monkeypatch.setattr(Holder, "shared", torch.tensor(1.0))
    holder, slotted, layer, keyed = Holder(), Slotted(), Layer(), {(0, 1): torch.tensor(1.0)}
    slotted.own = torch.tensor(1.0)
    functions = [
        ts.jit(lambda x: x * Holder.shared),
        ts.jit(lambda x: holder.by_class(x)),
        ts.jit(lambda x: x * holder.doubled / 2),
        ts.jit(lambda x: x * slotted.own),
        ts.jit(lambda x: layer(x)),
        ts.jit(lambda x: x * keyed[0, 1]),
    ]
    assert [float(f(torch.tensor(1.0))) for f in functions] == [1.0] * 6
    Holder.shared, holder.own, slotted.own = torch.tensor(5.0), torch.tensor(5.0), torch.tensor(5.0)
    layer.scale, keyed[0, 1] = torch.tensor(5.0), torch.tensor(5.0)
    assert [float(f(torch.tensor(1.0))) for f in functions] == [5.0] * 6
    layer.parts[0] = torch.tensor(2.0)
    assert float(functions[4](torch.tensor(1.0))) == 10.0


def test_threads_may_trace_at_once():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: float(ts.jit(lambda x: (x * n).sum())(torch.ones(4))), range(8)))
    assert made == [4.0 * n for n in range(8)]


def test_a_described_value_is_not_computed_with():
    with pytest.raises(ts.DtypeError, match="has no values"):
        ts.jit(lambda x: x + 1)(ts.ShapeDtypeStruct((2,), torch.float32))


def test_a_constraint_takes_a_tree_of_shardings_and_numbers():
    mesh = ts.make_mesh((8,), "a")
    rows, whole = ts.NamedSharding(mesh, ts.P("a")), ts.NamedSharding(mesh, ts.P())
    made = ts.jit(lambda t: ts.lax.with_sharding_constraint(t, {"x": rows, "n": whole}))({"x": torch.ones(8), "n": 3.0})
    assert made["x"].sharding == rows
    assert made["n"].sharding == whole


def test_a_retrace_for_a_closed_over_tensor_names_it_old_against_new(capsys):
    holder = Holder()
    f = ts.jit(lambda x: (x * holder.own).sum())
    f(torch.ones(2))
    holder.own = torch.ones(2, dtype=torch.float64)
    ts.config.update("explain_cache_misses", True)
    try:
        f(torch.ones(2))
    finally:
        ts.config.update("explain_cache_misses", False)
    assert "holder.own, which it closes over: f32[], now f64[2]" in capsys.readouterr().err


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


@ts.jit
def decorated(x):
    return x * SCALE


class Scaled(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        rows = ts.NamedSharding(mesh, P(("a", "b")))
        self.ways = [
            ts.jit(self.forward),
            ts.jit(self.forward, out_shardings=rows),
            ts.pmap(self.forward),
            ts.shard_map(self.forward, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b"))),
        ]

    def forward(self, x):
        return x * self.weight


def test_a_jitted_function_is_copied_and_pickled_as_a_function_is(mesh, host):
    assert pickle.loads(pickle.dumps(decorated)) is copy.copy(decorated) is decorated
    twin = copy.deepcopy(decorated)
    assert torch.equal(ts.device_get(twin(host)), host * 2)
    with pytest.raises(pickle.PicklingError, match="jit of decorated"):  # another one than its module has
        pickle.dumps(twin)


def test_a_copied_module_calls_its_own_jitted_methods(mesh, host):
    module = Scaled(mesh)
    first = [ts.device_get(way(host)) for way in module.ways]
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.mul_(3)
    for way, before, again in zip(twin.ways, first, module.ways, strict=True):
        assert torch.equal(before, host)
        assert torch.equal(ts.device_get(way(host)), host * 3)
        assert torch.equal(ts.device_get(again(host)), host)


class Edited:
    def scaled(self, v):
        return v * 2

    def __call__(self, v):
        return v * 2


class EditedModule(torch.nn.Module):
    def forward(self, v):
        return v * 2


def passed_on(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


def test_a_function_whose_code_is_edited_is_traced_again(host):
    """IPython's autoreload puts the code of an edited module into the functions that there are."""

    def scaled(v):
        return v * 2

    functions = [scaled, Edited().scaled, Edited(), EditedModule(), functools.partial(scaled), passed_on(scaled)]
    functions.append(ts.vmap(passed_on(scaled)))
    x = ts.device_put(host, ts.NamedSharding(ts.make_mesh(8, "i"), P("i")))
    ways = [make(f) for make in (ts.jit, ts.pmap) for f in functions]
    texts = [way.lower(x).as_text() for way in ways]
    for _ in range(2):
        for way in ways:
            same(way(x), host * 2)
    scaled.__code__ = (lambda v: v * 3 + SCALE).__code__
    for method in (Edited.scaled, Edited.__call__, EditedModule.forward):
        method.__code__ = (lambda self, v: v * 3 + SCALE).__code__
    for _ in range(2):
        for way in [*ways, *map(ts.jit, functions), *map(ts.pmap, functions)]:
            same(way(x), host * 3 + 2)
    assert all(way.lower(x).as_text() != before for way, before in zip(ways, texts, strict=True))
