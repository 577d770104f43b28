"""Random expressions of torch ops on Arrays give what plain torch gives, on the local runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.expressions import check_round_trip, device_orders, leaf, placed, run_expression, run_operation
from tests.extent import every, examples
from tests.operations import OPERATIONS

# a first plan asks DTensor, which takes some tenths of a second
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@given(data=st.data())
@settings(max_examples=examples(60, 300))
def test_what_is_put_comes_back_and_each_shard_is_its_slice(data: Any) -> None:
    check_round_trip(data.draw)


# the random expressions, and those of the sweeps, draw from all operations
@pytest.mark.parametrize("name", every(4, sorted(OPERATIONS)))
@given(data=st.data())
@settings(max_examples=examples(3, 16), suppress_health_check=SLOW)
def test_an_op_gives_what_plain_torch_gives(name: str, data: Any) -> None:
    order = data.draw(device_orders())
    whole = leaf(data.draw, OPERATIONS[name])
    run_operation(data.draw, order, name, placed(data.draw, order, whole), whole)


@given(data=st.data())
@settings(max_examples=examples(120, 800), suppress_health_check=SLOW)
def test_an_expression_gives_what_plain_torch_gives(data: Any) -> None:
    run_expression(data.draw, data.draw(st.integers(2, 5)))


@given(data=st.data())
@settings(max_examples=examples(8, 25), suppress_health_check=SLOW)
def test_an_expression_is_the_same_on_any_number_of_devices(data: Any) -> None:
    x = leaf(data.draw, OPERATIONS["softmax"])
    made = []
    for count in (1, 2, 4, 8):
        sharding = ts.sharding.PositionalSharding(ts.devices()[:count])
        parts = [count, *[1] * (x.dim() - 1)] if x.shape[0] % count == 0 else None
        y = ts.device_put(x, sharding.reshape(parts) if parts else sharding.replicate())
        made.append(ts.device_get((y.softmax(0) * 2 - y).sum(0)))
    for other in made[1:]:
        torch.testing.assert_close(other, made[0], rtol=0.05, atol=0.05)
