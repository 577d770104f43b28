"""Random expressions of torch ops on Arrays give what plain torch gives, on the local runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.expressions import device_orders, leaf, placed, run_expression, run_operation, shapes, shardings
from tests.operations import ANY, OPERATIONS, numbers


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@given(data=st.data())
@settings(max_examples=4)
def test_an_op_gives_what_plain_torch_gives(name: str, data: Any) -> None:
    order = data.draw(device_orders())
    whole = leaf(data.draw, OPERATIONS[name])
    run_operation(data.draw, order, name, placed(data.draw, order, whole), whole)


@given(data=st.data())
@settings(max_examples=200)
def test_an_expression_gives_what_plain_torch_gives(data: Any) -> None:
    run_expression(data.draw, data.draw(st.integers(2, 5)))
