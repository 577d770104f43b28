"""Floats from random bits: bits -> uniform -> normal, in steps with a fixed rounding each.

`compiled_draws` has the same arithmetic for numba. Both round after each operation and do not call a library
for the logarithm, so both give the same bits. The polynomial for erfinv is Giles's, as in XLA: torch.erfinv differs
from it by up to 6e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# log(1 + m) = m - m*m/2 + m*m*m * (this polynomial in m), for 1 + m between sqrt(1/2) and sqrt(2)
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is log(2); the first has few bits, so e * it is exact
ROOT_HALF_BITS = 0x3F3504F3  # sqrt(1/2) as a float32

# erfinv(x) = x * (one of these polynomials), in w - 2.5 where w = -log(1 - x*x) < 5, else in sqrt(w) - 3
CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
SQRT2 = 1.4142135


@dataclass(frozen=True, slots=True)
class Float:
    """How a float dtype is filled with random bits.

    Attributes:
        bits: of the dtype.
        mantissa: the number of its random bits.
        drawn: the number of bits that are drawn for it.
        below_one: the least number above -1, negated.
    """

    bits: int
    mantissa: int
    drawn: int
    below_one: float

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        exponent_bits = self.bits - 1 - self.mantissa
        return ((1 << (exponent_bits - 1)) - 1) << self.mantissa


FLOATS = {
    torch.float64: Float(64, 52, 64, 1 - 2.0**-53),
    torch.float32: Float(32, 23, 32, 1 - 2.0**-24),
    torch.float16: Float(16, 10, 16, 1 - 2.0**-11),
    torch.bfloat16: Float(16, 7, 8, 1 - 2.0**-8),  # JAX draws 8 bits where the mantissa has fewer
}
_INTS = {16: torch.int16, 32: torch.int32, 64: torch.int64}


def uniform(raw: Tensor, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """Random bits as floats of [low, high).

    Args:
        raw: int64 for float64, else int32; its lowest `FLOATS[dtype].drawn` bits are random.
        dtype: of the result.
        low, high: numbers of that dtype.
    """
    known = FLOATS[dtype]
    filled = (raw >> (known.drawn - known.mantissa)) & ((1 << known.mantissa) - 1) | known.one  # in [1, 2)
    unit = filled.to(_INTS[known.bits]).view(dtype) - 1
    return unit if (low, high) == (0, 1) else scaled(unit, low, high)


def scaled(unit: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Scale numbers of [0, 1) to [low, high).

    XLA multiplies and adds float32 with one rounding: here both are done in float64, and the sum is rounded.
    """
    if unit.dtype != torch.float32:
        return torch.clamp(unit * (_as(unit, high) - _as(unit, low)) + _as(unit, low), min=_as(unit, low))
    low, high = _as(unit, low), _as(unit, high)
    exact = unit.double() * (high - low).double() + low.double()
    return torch.clamp(exact.float(), min=low)


def rounded(number: float, dtype: torch.dtype) -> float:
    """The nearest number that a float dtype has; computed without a tensor, so that it works in a trace.

    Example:
        >>> rounded(0.1, torch.bfloat16)
        0.10009765625
    """
    if dtype == torch.bfloat16:
        bits = int(np.float32(number).view(np.uint32))
        high = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000  # ties round to even
        return float(np.uint32(high).view(np.float32))
    kinds: dict[torch.dtype, Any] = {torch.float16: np.float16, torch.float32: np.float32}
    return float(kinds.get(dtype, np.float64)(number))


def _as(like: Tensor, value: float | Tensor) -> Tensor:
    return torch.as_tensor(value).to(device=like.device, dtype=like.dtype)


def normal(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """Random bits as numbers of the standard normal distribution: sqrt(2) * erfinv of a uniform number of (-1, 1).

    Args:
        raw: as for `uniform`.
        dtype: of the result; for the 16-bit ones erfinv is computed in float32, as XLA does.
    """
    x = uniform(raw, dtype, -FLOATS[dtype].below_one, 1.0)
    if dtype == torch.float64:
        return torch.erfinv(x) * math.sqrt(2)
    wide = x.float()
    drawn = erfinv_of(wide, -log(1 - wide * wide)).to(dtype)
    return drawn * torch.tensor(SQRT2, dtype=dtype, device=drawn.device)


def log(x: Tensor) -> Tensor:
    """The natural logarithm of positive normal float32 numbers, from sums and products only.

    Example:
        >>> log(torch.tensor([1.0, 0.25])) - torch.log(torch.tensor([1.0, 0.25]))
        tensor([0., 0.])
    """
    shifted = x.view(torch.int32) - ROOT_HALF_BITS
    exponent = (shifted >> 23).float()
    m = ((shifted & 0x7FFFFF) + ROOT_HALF_BITS).view(torch.float32) - 1
    square = m * m
    tail = polynomial(LOG, m) * m * square + LN2_LOW * exponent - 0.5 * square
    return m + tail + LN2_HIGH * exponent


def erfinv(x: Tensor) -> Tensor:
    """The inverse of the error function, for float32 as XLA computes it; it has derivatives.

    Args:
        x: floats of [-1, 1].
    """
    if x.dtype == torch.float64:
        return torch.erfinv(x)
    wide = x.float()
    result = erfinv_of(wide, -torch.log1p(-wide * wide))
    return torch.where(wide == 1, math.inf, torch.where(wide == -1, -math.inf, result)).to(x.dtype)


def erfinv_of(x: Tensor, w: Tensor) -> Tensor:
    """erfinv of float32 numbers inside (-1, 1), given w = -log(1 - x*x)."""
    # where w < 5 the root is not used: 5 replaces w, where the root has a derivative; torch's float32 root is
    # not always the nearest float, the rounded float64 root is
    root = torch.where(w < 5, 5.0, w).double().sqrt().float() - 3
    return torch.where(w < 5, polynomial(CENTRE, w - 2.5), polynomial(TAIL, root)) * x


def polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """The polynomial with these coefficients, highest first, by Horner's rule."""
    value = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value
