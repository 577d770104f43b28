"""Seed 003 from "Computation follows data sharding" to the end of "Examples: neural networks"."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests import network
from tests.counting import announced
from tests.extent import IS_WHOLE, examples
from tinyshard.sharding import PositionalSharding

pytestmark = pytest.mark.usefixtures("local")

TWO_BY_FOUR = """\
┌───────┬───────┬───────┬───────┐
│       │       │       │       │
│ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │
│       │       │       │       │
│       │       │       │       │
├───────┼───────┼───────┼───────┤
│       │       │       │       │
│ CPU 4 │ CPU 5 │ CPU 6 │ CPU 7 │
│       │       │       │       │
│       │       │       │       │
└───────┴───────┴───────┴───────┘
"""
ON_ALL = """\
┌───────────────────────┐
│                       │
│                       │
│                       │
│                       │
│  CPU 0,1,2,3,4,5,6,7  │
│                       │
│                       │
│                       │
│                       │
└───────────────────────┘
"""


@pytest.fixture
def sharding():
    return PositionalSharding(ts.mesh_utils.create_device_mesh((8,)))


@pytest.fixture
def host():
    return torch.arange(64.0).reshape(8, 8)


def picture(capsys, x):
    capsys.readouterr()
    ts.debug.visualize_array_sharding(x)
    return capsys.readouterr().out


def test_losses_are_those_of_one_device_and_of_numpy_and_layouts_stay(capsys, monkeypatch):
    monkeypatch.setattr(network, "STEPS", examples(2, network.STEPS))
    by_hand = network.by_hand(*network.init_model())
    assert by_hand[0] - by_hand[1] > 0.1
    assert by_hand[1] - by_hand[2] > 0.1
    np.testing.assert_allclose(network.run(capsys), by_hand, rtol=0, atol=1e-4)
    if IS_WHOLE:
        np.testing.assert_allclose(network.on_one_device(), by_hand, rtol=0, atol=1e-4)


def test_a_tensor_parallel_pair_has_one_all_reduce_in_the_forward_pass(sharding):
    params, (inputs, _) = network.init_model()
    four_by_two = sharding.reshape(4, 2)
    params = network.under_model_parallelism(params, four_by_two)
    x = ts.device_put(inputs, four_by_two.replicate(1))
    hidden = ts.jit(network.predict)(params[:1], x)
    program = ts.jit(network.predict).lower(params[1:3], hidden).compile().program
    assert announced(program) == [("all_reduce", 2, network.BATCH // 4 * 32 * 4)]
    whole = ts.jit(network.predict).lower(params, x).compile().program
    assert [name for name, _, _ in announced(whole)] == ["all_reduce"]


def test_arrays_on_different_devices_do_not_meet_in_jit_either(host):
    left, right = PositionalSharding(ts.devices()[:4]), PositionalSharding(ts.devices()[4:])
    add = ts.jit(lambda y, z: y + z)
    y, z = ts.device_put(host, left.reshape(2, 2)), ts.device_put(host, right.reshape(2, 2))
    with pytest.raises(ValueError, match="Devices of all `Array` inputs and outputs should be the same") as caught:
        add(y, z)
    assert "array device ids [0, 1, 2, 3] on platform CPU" in str(caught.value)
    assert "another array's device ids [4, 5, 6, 7] on platform CPU" in str(caught.value)


def test_arrays_on_devices_in_another_order_do_not_meet_in_jit_either(host):
    permuted = [ts.devices()[i] for i in (0, 1, 2, 3, 6, 7, 4, 5)]
    y = ts.device_put(host, PositionalSharding(ts.devices()).reshape(4, 2))
    z = ts.device_put(host, PositionalSharding(permuted).reshape(4, 2))
    closing_over, add = ts.jit(lambda y: y + z), ts.jit(lambda y, z: y + z)
    for call in (lambda: add(y, z), lambda: closing_over(y)):
        with pytest.raises(ValueError, match="Devices of all") as caught:
            call()
        assert "[0, 1, 2, 3, 4, 5, 6, 7]" in str(caught.value)
        assert "[0, 1, 2, 3, 6, 7, 4, 5]" in str(caught.value)


def test_uncommitted_values_move_to_the_committed_ones(host, sharding):
    y = ts.device_put(host, sharding.reshape(4, 2))

    def f(y, n):
        return y + torch.ones_like(y) + torch.arange(y.numel()).reshape(y.shape) + n

    wanted = f(host, host)
    for got in (f(y, ts.array(host)), ts.jit(f)(y, ts.array(host)), ts.jit(f)(y, host)):
        assert got.committed
        assert got.sharding.is_equivalent_to(y.sharding, 2)
        torch.testing.assert_close(ts.device_get(got), wanted)


def test_a_constraint_decides_where_the_result_lies(capsys, host, sharding):
    x = ts.device_put(host, sharding.reshape(4, 2))
    for wanted, drawn in ((sharding.reshape(2, 4), TWO_BY_FOUR), (sharding.replicate(), ON_ALL)):

        def f(x, wanted=wanted):
            x = x + 1
            return ts.lax.with_sharding_constraint(x, wanted)

        for function in (ts.jit(lambda x, f=f: f(x)), f):
            y = function(x)
            assert picture(capsys, y) == drawn
            torch.testing.assert_close(ts.device_get(y), host + 1)


def test_a_constraint_places_uncommitted_values(capsys, host, sharding):
    got = ts.jit(lambda x: ts.lax.with_sharding_constraint(x * 2, sharding.reshape(2, 4)))(host)
    assert picture(capsys, got) == TWO_BY_FOUR
    torch.testing.assert_close(ts.device_get(got), host * 2)


def test_a_constraint_on_other_devices_than_the_arguments_is_an_error(host):
    x = ts.device_put(host, PositionalSharding(ts.devices()[:4]).reshape(4, 1))
    away = PositionalSharding(ts.devices()[4:]).reshape(4, 1)
    with pytest.raises(ValueError, match="Devices of all"):
        ts.jit(lambda x: ts.lax.with_sharding_constraint(x, away))(x)


def test_a_constraint_that_does_not_fit_is_an_error(sharding):
    def constrain(x):
        return ts.lax.with_sharding_constraint(x, sharding)

    for f in (constrain, ts.jit(constrain)):
        with pytest.raises(ts.ShardingError, match="multiple of 8"):
            f(torch.ones(10))
