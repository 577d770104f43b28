"""What the members of a group gave is combined in their order, to the last bit as torch combines it."""

import functools
import itertools
import warnings

import pytest
import torch

from tests.extent import mostly_whole
from tinyshard.runtime.collectives.reduction import PIECE_NBYTES, combine

DTYPES = [
    torch.float32, torch.float64, torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8,
    torch.complex64, torch.complex128,
]  # fmt: skip
# torch orders no complex numbers and takes no mean of ints
IN_ORDER = {"sum": torch.add, "avg": torch.add, "product": torch.mul, "max": torch.maximum, "min": torch.minimum}
CASES = [
    (op, dtype)
    for op in IN_ORDER
    for dtype in DTYPES
    if op == "sum" or dtype.is_floating_point or not (dtype.is_complex or op == "avg")
]
SIZES = [0, 1, 33, 1000, LARGE := PIECE_NBYTES // 4 + 5]


def rows_of(count, size, dtype):
    """Numbers of very different sizes, so that the order in which they are added is seen in the sum."""
    step = size + 13
    generator = torch.Generator().manual_seed(count * 1000 + size)
    flat = torch.randn(count * step + size, generator=generator, dtype=torch.float64)
    flat = flat * (3 * torch.randn(len(flat), generator=generator, dtype=torch.float64)).exp()
    return flat.to(dtype).as_strided((count, size), (step, 1))


def combined(rows, op):
    out = torch.empty(rows.shape[1:], dtype=rows.dtype)
    combine(list(rows), op, out)
    return out


def _is_in_part(row):
    size, (op, dtype) = row
    return size < LARGE or dtype in {"sum": (torch.float32, torch.complex128), "avg": (torch.float64,)}.get(op, ())


@pytest.mark.parametrize("size, case", mostly_whole(itertools.product(SIZES, CASES), _is_in_part))
def test_members_are_combined_one_after_the_other(size, case):
    op, dtype = case
    for count in (2, 3, 8):
        rows = rows_of(count, size, dtype)
        wanted = functools.reduce(IN_ORDER[op], rows)
        wanted = wanted / count if op == "avg" else wanted
        assert torch.equal(combined(rows, op), wanted)


@pytest.mark.parametrize("op", IN_ORDER)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_combined_in_single_precision(dtype, op):
    rows = rows_of(8, 1000, torch.float32).clamp(-2, 2).to(dtype)
    wanted = functools.reduce(IN_ORDER[op], rows.double())
    wanted = wanted / 8 if op == "avg" else wanted
    torch.testing.assert_close(combined(rows, op), wanted.to(dtype))


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sum_in_half_precision_has_torchs_bits(dtype, op):
    for count, size in itertools.product((2, 3, 8), (1000, PIECE_NBYTES // 2 + 5)):
        rows = rows_of(count, size, torch.float32).clamp(-99, 99).to(dtype)
        assert torch.equal(combined(rows, op), rows.sum(0) if op == "sum" else rows.mean(0))


def test_of_bools_the_sum_is_any_and_the_product_all():
    rows = torch.tensor([[True, True, False, False], [True, False, True, False]])
    for op, wanted in [("sum", [1, 1, 1, 0]), ("max", [1, 1, 1, 0]), ("product", [1, 0, 0, 0]), ("min", [1, 0, 0, 0])]:
        assert combined(rows, op).tolist() == list(map(bool, wanted))


def test_complex_numbers_are_multiplied_and_averaged():
    rows = rows_of(6, 100, torch.float64).reshape(3, 2, -1).transpose(1, 2).contiguous()
    rows = torch.view_as_complex(rows)
    torch.testing.assert_close(combined(rows, "product"), rows.prod(0))
    torch.testing.assert_close(combined(rows, "avg"), rows.mean(0))


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins(op):
    rows = torch.tensor([[1.0, torch.nan, torch.inf], [torch.nan, 2.0, -torch.inf], [3.0, 3.0, 0.0]])
    wanted = torch.tensor([torch.nan, torch.nan, torch.inf if op == "max" else -torch.inf])
    torch.testing.assert_close(combined(rows, op), wanted, equal_nan=True)


def test_infinities_are_added_without_a_warning():
    rows = torch.tensor([[torch.inf], [-torch.inf], [3e38], [3e38]]).expand(4, 64).contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for some, wanted in ((rows[:2], torch.nan), (rows[2:], torch.inf)):
            torch.testing.assert_close(combined(some, "sum"), torch.full((64,), wanted), equal_nan=True)


def test_ints_wrap_as_torch_wraps_them():
    rows = torch.tensor([[120, -120], [100, -100]], dtype=torch.int8)
    assert torch.equal(combined(rows, "sum"), rows[0] + rows[1])
    assert torch.equal(combined(rows, "product"), rows[0] * rows[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_no_sum_is_minus_zero(op, dtype):
    made = combined(torch.full((8, 100), -0.0, dtype=dtype), op)
    assert not torch.view_as_real(made.to(torch.complex64)).signbit().any()


def test_the_order_matters_for_these_numbers():
    rows = rows_of(8, 4096, torch.float32)
    assert not torch.equal(combined(rows, "sum"), combined(rows.flip(0), "sum"))
