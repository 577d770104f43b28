"""The workers have torch's default dtype of the program that they run."""

import pytest
import torch

import tinyshard as ts


@pytest.fixture(autouse=True)
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("pool")
def test_ints_become_what_the_caller_has_as_default():
    x = ts.device_put(torch.arange(8))
    f = ts.jit(lambda v: (v / 3).sum())
    for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        for y, wanted in ((x / 3, torch.arange(8) / 3), (f(x), (torch.arange(8) / 3).sum())):
            assert y.dtype == ts.device_get(y).dtype == dtype
            assert torch.equal(ts.device_get(y), wanted)
