"""Flags for a block of code, shapes without values, which process this is, and classes of one's own as trees."""

import dataclasses

import numpy as np
import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


def test_a_default_device_is_where_values_live_that_are_not_placed():
    third = ts.devices()[3]
    f = ts.jit(lambda x: x + 1)
    assert f(torch.zeros(2)).devices() == {ts.devices()[0]}
    with ts.default_device(third):
        for x in (
            ts.array([1.0]),
            ts.random.normal(ts.random.key(0), (2,)),
            ts.device_put(torch.ones(2)),
            f(torch.zeros(2)),
            ts.random.gamma(ts.random.key(0), 2.0),
        ):
            assert x.devices() == {third} and not x.committed
        with ts.default_device(None):
            assert ts.array(1.0).devices() == {ts.devices()[0]}
        assert (ts.array(1.0) + ts.device_put(torch.ones(1), ts.devices()[1])).devices() == {ts.devices()[1]}
    assert ts.array(1.0).devices() == {ts.devices()[0]}


def test_what_is_no_device_is_refused():
    with pytest.raises(ts.config.UnknownFlagError), ts.default_device(3):
        pass
    ts.config.update("default_device", ts.devices()[7])
    ts.init(devices=2, runtime="local")
    try:
        with pytest.raises(ts.RuntimeStateError, match="default device"):
            ts.array(1.0)
    finally:
        ts.config.update("default_device", None)
        ts.init(devices=8, runtime="local")


def test_without_jit_functions_see_values_and_return_arrays():
    seen = []

    @ts.jit
    def f(x, n=2):
        seen.append(x)
        return {"y": x * n if x.sum() > 0 else -x, "n": None}

    with pytest.raises(ts.errors.TracedValueError):
        f(torch.ones(2))
    with ts.disable_jit():
        made = f(torch.ones(2))
        assert made["y"].tolist() == [2.0, 2.0] and made["n"] is None
        assert isinstance(seen[-1], ts.Array) and isinstance(made["y"], ts.Array)
        assert ts.jit(lambda x: ts.lax.while_loop(lambda v: v < 9, lambda v: v * 2, x))(torch.tensor(1)).item() == 16
        rows = ts.NamedSharding(ts.make_mesh((8,), "a"), ts.P("a"))
        assert ts.jit(lambda x: x + 1, out_shardings=rows)(torch.zeros(8)).sharding.is_equivalent_to(rows, 1)
        assert ts.grad(ts.jit(lambda x: (x**2).sum()))(torch.ones(2)).tolist() == [2.0, 2.0]
        assert ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(torch.ones(8)).tolist() == [8.0] * 8
        with ts.disable_jit(False), pytest.raises(ts.errors.TracedValueError):
            f(torch.ones(2))
    with pytest.raises(ts.errors.TracedValueError):
        f(torch.ones(2))


def test_the_way_of_counting_holds_for_a_block():
    key = ts.random.key(42)
    before = ts.random.uniform(key, (3,)).tolist()
    with ts.threefry_partitionable(False):
        assert ts.random.uniform(key, (3,)).tolist() != before
    assert ts.random.uniform(key, (3,)).tolist() == before
    with pytest.raises(ZeroDivisionError), ts.threefry_partitionable(False):
        1 / 0  # noqa: B018
    assert ts.random.uniform(key, (3,)).tolist() == before


def test_eval_shape_computes_nothing():
    calls = []

    def f(x, y):
        calls.append(x)
        return {"sum": x.sum(-1), "product": (x @ y, None), "n": (x > 0)}

    shapes = ts.eval_shape(f, torch.ones(3, 4), ts.ShapeDtypeStruct((4, 5), torch.float32))
    assert shapes["sum"] == ts.ShapeDtypeStruct((3,), torch.float32)
    assert shapes["product"][0].shape == (3, 5) and shapes["product"][1] is None
    assert shapes["n"].dtype == torch.bool
    assert len(calls) == 1


def test_one_controller_drives_all_devices():
    assert (ts.process_index(), ts.process_count(), ts.local_device_count()) == (0, 1, 8)
    assert ts.default_backend() == "cpu"


@ts.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: object
    bias: object
    name: str = dataclasses.field(default="", metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Sizes:
    width: int


ts.tree.register_static(Sizes)


def test_static_fields_of_a_dataclass_are_no_leaves_and_decide_on_the_trace():
    traces = []

    @ts.jit
    def f(layer, sizes):
        traces.append((layer.name, sizes.width))
        return dataclasses.replace(layer, weight=layer.weight * (2 if layer.name == "first" else 3) + sizes.width)

    x = torch.ones(2)
    assert ts.tree.leaves(Layer(x, None, "first")) == [x]
    made = f(Layer(x, x, "first"), Sizes(1))
    assert isinstance(made, Layer) and made.name == "first" and made.weight.tolist() == [3.0, 3.0]
    assert f(Layer(x, x, "second"), Sizes(1)).weight.tolist() == [4.0, 4.0]
    assert f(Layer(x, x, "first"), Sizes(5)).weight.tolist() == [7.0, 7.0]
    assert f(Layer(x + 1, x, "first"), Sizes(1)).weight.tolist() == [5.0, 5.0]
    assert traces == [("first", 1), ("second", 1), ("first", 5)]
    grads = ts.grad(lambda layer: (layer.weight * layer.bias).sum())(Layer(x, 3 * x, "first"))
    assert grads.name == "first" and grads.weight.tolist() == [3.0, 3.0]


def test_dataclass_instances_are_static_arguments():
    traces = []

    def f(x, sizes):
        traces.append(sizes)
        return x * sizes.width

    jitted = ts.jit(f, static_argnums=1)
    assert [jitted(torch.ones(1), Sizes(n)).item() for n in (2, 3, 2)] == [2.0, 3.0, 2.0]
    assert traces == [Sizes(2), Sizes(3)]


def test_fields_may_be_named():
    class Pair:
        def __init__(self, first, second, note):
            self.first, self.second, self.note = first, second, note

    ts.tree.register_dataclass(Pair, data_fields=["first", "second"], meta_fields=["note"])
    doubled = ts.tree.map(lambda x: 2 * x, Pair(1, 2, "n"))
    assert (doubled.first, doubled.second, doubled.note) == (2, 4, "n")
    with pytest.raises(TypeError, match="dataclass"):
        ts.tree.register_dataclass(type("Plain", (), {}))
    with pytest.raises(TypeError, match="not the fields"):
        ts.tree.register_dataclass(dataclasses.make_dataclass("Two", ["a", "b"]), ["a"], [])
    with pytest.raises(TypeError, match="both"):
        ts.tree.register_dataclass(Pair, data_fields=["first"])
    with pytest.raises(TypeError, match="takes a class"):
        ts.tree.register_static(3)


def test_all_leaves():
    assert ts.tree.all({"a": np.True_, "b": [ts.array(1), None]})
    assert not ts.tree.all([1, torch.tensor(0)])
