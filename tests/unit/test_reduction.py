"""What several members gave is added up in their order, to the last bit as torch adds it."""

import warnings

import pytest
import torch

from tinyshard.collectives import reduced
from tinyshard.runtime.collectives.reduction import add_up, adds_in_order, combine

DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16, torch.complex64, torch.uint8]


def rows_of(count, size, dtype):
    """Numbers of very different sizes, so that the order in which they are added is seen in the sum."""
    step = size + 13
    generator = torch.Generator().manual_seed(count * 1000 + size)
    flat = torch.randn(count * step + size, generator=generator, dtype=torch.float64)
    flat = flat * (3 * torch.randn(len(flat), generator=generator, dtype=torch.float64)).exp()
    return flat.to(dtype).as_strided((count, size), (step, 1))


def bits(tensor):
    return tensor.view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 8, 15, 16])
@pytest.mark.parametrize("size", [0, 1, 32, 33, 64, 128, 1000, 1024, 8192])
def test_what_numpy_adds_is_what_torch_adds(dtype, count, size):
    rows = rows_of(count, size, dtype)
    if not adds_in_order((size,), dtype, "sum", count):
        assert not size or dtype not in (torch.float32, torch.int64) or count == 16 or size * dtype.itemsize % 256
        return
    out = torch.empty(size, dtype=dtype)
    add_up(list(rows.numpy()), out.numpy())
    assert torch.equal(bits(out), bits(reduced(rows, "sum").to(dtype)))


def test_numpy_adds_nothing_but_sums():
    assert not any(adds_in_order((64,), torch.float32, op, 8) for op in ("avg", "max", "min", "product"))


def test_infinities_are_added_without_a_word():
    rows = torch.tensor([[torch.inf], [-torch.inf], [3e38], [3e38]]).expand(4, 64).contiguous()
    out = torch.empty(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for some, wanted in ((rows[:2], torch.nan), (rows[2:], torch.inf)):
            add_up(list(some.numpy()), out.numpy())
            torch.testing.assert_close(out, torch.full((64,), wanted), equal_nan=True)
            combine(list(some), "sum", out)
            torch.testing.assert_close(out, torch.full((64,), wanted), equal_nan=True)


@pytest.mark.parametrize("size", [10, 64, 100])
def test_no_sum_is_minus_zero_whichever_way_it_is_made(size):
    rows = torch.full((8, size), -0.0)
    ways = [
        lambda out: combine(list(rows), "sum", out),
        lambda out: add_up(list(rows.numpy()), out.numpy()),
    ]
    for made in ways:
        out = torch.empty(size)
        made(out)
        assert not out.signbit().any()


def test_the_order_matters_for_these_numbers():
    rows = rows_of(8, 4096, torch.float32)
    forward, backward = torch.empty(4096), torch.empty(4096)
    combine(list(rows), "sum", forward)
    combine(list(rows)[::-1], "sum", backward)
    assert not torch.equal(forward, backward)
