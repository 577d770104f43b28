"""Unit tests start no process: eight devices of the local runtime, the same for a whole file; and common values."""

import pytest
import torch

import tinyshard as ts


@pytest.fixture(scope="module")
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.fixture
def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


@pytest.fixture
def host():
    return torch.arange(32.0).reshape(8, 4)
