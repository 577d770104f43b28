"""What a recording counts is what devices send, and it counts it for the device that sends it."""

from collections.abc import Iterator

import pytest

import tinyshard as ts
from course.widgets.traffic import record


@pytest.fixture(scope="module", autouse=True)
def local() -> Iterator[None]:
    ts.init(devices=4, runtime="local")
    yield
    ts.shutdown()


def test_only_a_device_that_sends_has_sent() -> None:
    found = record(lambda row: ts.lax.ppermute(row, "i", [(0, 3), (3, 1)]), count=4)
    # rows of four float32
    assert found.sent() == [16.0, 0.0, 0.0, 16.0]
