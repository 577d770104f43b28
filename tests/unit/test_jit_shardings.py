"""Shardings of a jitted function's arguments and results."""

import pytest
import torch

import tinyshard as ts
from tests.traces import same
from tinyshard import P
from tinyshard.compile import trace_cache

pytestmark = pytest.mark.usefixtures("local")


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
    with pytest.raises(ValueError, match="in_shardings do not fit the arguments"):
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


def test_uncommitted_arguments_give_uncommitted_results_and_committed_ones_committed(mesh, host):
    f = ts.jit(lambda x, y: x + y)
    assert not f(host, ts.array(host)).committed
    got = f(host, ts.device_put(host, ts.devices()[3]))
    assert got.committed
    assert got.devices() == {ts.devices()[3]}


def test_a_constraint_takes_a_tree_of_shardings_and_numbers():
    mesh = ts.make_mesh((8,), "a")
    rows, whole = ts.NamedSharding(mesh, ts.P("a")), ts.NamedSharding(mesh, ts.P())
    made = ts.jit(lambda t: ts.lax.with_sharding_constraint(t, {"x": rows, "n": whole}))({"x": torch.ones(8), "n": 3.0})
    assert made["x"].sharding == rows
    assert made["n"].sharding == whole


def test_a_call_on_results_of_a_call_is_planned_once(mesh, host, monkeypatch):
    planned = []
    compile_graph = trace_cache.compile_graph
    monkeypatch.setattr(trace_cache, "compile_graph", lambda *args: planned.append(args) or compile_graph(*args))
    for spec in (P(), P("a"), P(("a", "b"))):
        place = ts.NamedSharding(mesh, spec)
        f = ts.jit(lambda x: x * 2, out_shardings=place)
        f(f(ts.device_put(torch.ones(8, 2), place)))
    assert len(planned) == 3
