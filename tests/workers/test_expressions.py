"""The cases of tests/unit/test_expressions.py on eight worker processes: fewer of them, the same oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.expressions import check_round_trip, device_orders, leaf, placed, run_expression, run_operation
from tests.extent import examples
from tests.operations import OPERATIONS

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture(scope="module", autouse=True)
def eight_workers() -> Iterator[None]:
    ts.init(devices=8, runtime="process")
    yield
    ts.init(devices=8, runtime="local")


@given(data=st.data())
@settings(max_examples=examples(10, 150), suppress_health_check=SLOW)
def test_what_is_put_comes_back_and_each_shard_is_its_slice(data: Any) -> None:
    check_round_trip(data.draw)


@given(data=st.data())
@settings(max_examples=examples(15, 150), suppress_health_check=SLOW)
def test_an_expression_gives_what_plain_torch_gives(data: Any) -> None:
    run_expression(data.draw, data.draw(st.integers(2, 4)))


# those that exchange data in every way, in every dtype that they take
@pytest.mark.parametrize(
    "name", ["add", "mm", "sum_over_dim", "amax_over_dim", "any", "prod", "reshape", "flip", "conv1d"]
)
@given(data=st.data())
@settings(max_examples=examples(3, 6), suppress_health_check=SLOW)
def test_an_op_gives_what_plain_torch_gives(name: str, data: Any) -> None:
    order = data.draw(device_orders())
    whole = leaf(data.draw, OPERATIONS[name])
    run_operation(data.draw, order, name, placed(data.draw, order, whole), whole)
