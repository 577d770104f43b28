"""Adding up rows of one tensor in one op gives every bit that adding them one after the other gives."""

import pytest
import torch

from tinyshard.runtime.combining import combine, combine_rows

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
@pytest.mark.parametrize("count", [2, 3, 5, 8, 15, 16, 20])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 1000, 4096, 70000])
def test_rows_are_summed_as_one_after_the_other(dtype, count, size):
    rows = rows_of(count, size, dtype)
    together, in_turn = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
    combine_rows(rows, "sum", together)
    combine(list(rows), "sum", in_turn)
    assert torch.equal(bits(together), bits(in_turn))


@pytest.mark.parametrize("op", ["avg", "max", "min", "product"])
def test_other_reductions_of_rows_are_those_of_their_list(op):
    rows = rows_of(8, 1000, torch.float32)
    together, in_turn = torch.empty(1000), torch.empty(1000)
    combine_rows(rows, op, together)
    combine(list(rows), op, in_turn)
    assert torch.equal(bits(together), bits(in_turn))


@pytest.mark.parametrize("size", [10, 64, 100])
def test_no_sum_is_minus_zero_whichever_way_it_is_made(size):
    rows = torch.full((8, size), -0.0)
    for made in (lambda out: combine_rows(rows, "sum", out), lambda out: combine(list(rows), "sum", out)):
        out = torch.empty(size)
        made(out)
        assert not out.signbit().any()


def test_the_order_matters_for_these_numbers():
    rows = rows_of(8, 4096, torch.float32)
    forward, backward = torch.empty(4096), torch.empty(4096)
    combine(list(rows), "sum", forward)
    combine(list(rows)[::-1], "sum", backward)
    assert not torch.equal(forward, backward)
