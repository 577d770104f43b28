"""A jitted function that asks for the shape of a tensor that it closes over: each shape and dtype has a trace."""

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")

SCALES = torch.ones(2)


def test_a_global_of_another_shape_or_dtype_is_traced_again(monkeypatch) -> None:
    f = ts.jit(lambda x: x * SCALES.shape[0] * SCALES.dtype.itemsize + SCALES.sum())
    for scales in (torch.ones(2), torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(2)):
        monkeypatch.setitem(globals(), "SCALES", scales)
        assert float(f(torch.tensor(10.0))) == 10 * len(scales) * scales.dtype.itemsize + len(scales)
