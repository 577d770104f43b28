"""Unit tests start no process: eight devices of the local runtime, the same for a whole file."""

import pytest

import tinyshard as ts


@pytest.fixture(scope="module")
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()
