"""Seed 003's network on worker processes: the losses of NumPy, the pictures, the collectives of each step."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests import network


@pytest.mark.on_gloo
def test_losses_on_workers_are_those_of_numpy_and_layouts_stay(pool, capsys):
    np.testing.assert_allclose(network.run(capsys), network.by_hand(*network.init_model()), rtol=0, atol=1e-4)


def test_steps_that_are_data_parallel_by_hand_and_tensor_parallel_by_the_partitioner(pool):
    """Each step sums gradients along "data" in a shard_map for that axis alone; "model" cuts the weights."""
    mesh = ts.make_mesh((4, 2), ("data", "model"))
    draw = torch.Generator().manual_seed(5)
    x, y, v, w = (torch.randn(shape, generator=draw) for shape in ((16, 8), (16, 4), (8, 12), (12, 4)))

    def loss(weights, x, y):
        return ((torch.relu(x @ weights[0]) @ weights[1] - y) ** 2).mean()

    def step(weights, x, y):
        value, g = ts.value_and_grad(loss)(ts.lax.pcast(weights, "data", to="varying"), x, y)
        value, g = ts.lax.pmean((value, g), "data")
        right = ts.lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)])
        return value, tuple(a - 0.1 * b for a, b in zip(weights, g, strict=True)), right

    def put(t, *spec):
        return ts.device_put(t, ts.NamedSharding(mesh, ts.P(*spec)))

    specs = {"in_specs": (ts.P(), ts.P("data"), ts.P("data")), "out_specs": (ts.P(), ts.P(), ts.P("data"))}
    mapped = ts.shard_map(step, mesh=mesh, axis_names={"data"}, **specs)
    weights, rows, wanted = (put(v, None, "model"), put(w, "model")), put(x, "data", "model"), (v, w)
    moved = x
    for call in (mapped, ts.jit(mapped)):
        value, weights, rows = call(weights, rows, put(y, "data"))
        g, expected = torch.func.grad_and_value(loss)(wanted, moved, y)
        wanted, moved = tuple(a - 0.1 * b for a, b in zip(wanted, g, strict=True)), moved.roll(4, 0)
        torch.testing.assert_close(ts.device_get(value), expected)
        for got, want in zip((*weights, rows), (*wanted, moved), strict=True):
            torch.testing.assert_close(ts.device_get(got), want)
    assert [a.sharding.spec for a in (*weights, rows)] == [ts.P(None, "model"), ts.P("model"), ts.P("data", "model")]
