"""Random numbers on worker processes are those of the local runtime, in both modes, small and large."""

import itertools

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import mostly_whole


def drawn(shape):
    """Values of every kind, laid out over a mesh of 4 x 2."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    key = ts.random.key(11)
    cut = ts.NamedSharding(mesh, ts.P("a", "b"))
    rows = ts.NamedSharding(mesh, ts.P(("a", "b")))
    keys = ts.device_put(ts.random.split(key, 8), rows)
    draws = {
        "uniform": ts.jit(lambda k: ts.random.uniform(k, shape), out_shardings=cut),
        "normal": ts.jit(lambda k: ts.random.normal(k, shape), out_shardings=rows),
        "bits": ts.jit(lambda k: ts.random.bits(k, shape, torch.uint16), out_shardings=cut),
        "randint": ts.jit(lambda k: ts.random.randint(k, shape, -5, 99), out_shardings=rows),
        "alone": lambda k: ts.random.normal(k, shape),
    }
    made = {name: draw(key) for name, draw in draws.items()}
    made["mapped"] = torch.func.vmap(lambda k: ts.random.uniform(k, (3,)))(keys)
    made["keys"] = ts.jit(lambda k: ts.random.key_data(k))(keys)
    return {name: ts.device_get(x) for name, x in made.items()}


SHAPES = {"small": (8, 6), "by numba where it is": (4096, 2048)}


@pytest.mark.parametrize(
    "shape, partitionable",
    mostly_whole(itertools.product(SHAPES, (True, False)), lambda row: row[0] == "small"),
)
def test_workers_draw_what_the_local_runtime_draws(pool, shape, partitionable):
    ts.config.update("threefry_partitionable", partitionable)
    try:
        on_workers = drawn(SHAPES[shape])
        ts.init(devices=8, runtime="local")
        expected = drawn(SHAPES[shape])
    finally:
        ts.config.update("threefry_partitionable", True)
    for name, values in expected.items():
        np.testing.assert_array_equal(on_workers[name].numpy(), values.numpy(), err_msg=name)


def test_drawing_without_communication_hands_nothing_to_other_devices(pool):
    rows = ts.sharding.PositionalSharding(ts.devices())
    x = ts.device_put(torch.arange(24), rows).block_until_ready()
    f = ts.jit(lambda k, x: x + ts.random.uniform(k, x.shape))
    pool.handed()
    f(ts.random.key(42), x).block_until_ready()
    assert not any(pool.handed().values())
    ts.config.update("threefry_partitionable", False)
    try:
        f(ts.random.key(42), x).block_until_ready()
    finally:
        ts.config.update("threefry_partitionable", True)
    assert all(told for told in pool.handed().values())
