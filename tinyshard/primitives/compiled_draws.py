"""The numba form of drawing: one pass over memory, in blocks that fit in the cache. Imported only if numba exists.

It makes the same bits as `tinyshard.primitives.floats`: each operation rounds to float32, none is fused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit

from tinyshard.primitives.floats import CENTRE, LN2_HIGH, LN2_LOW, LOG, ROOT_HALF_BITS, SQRT2, TAIL
from tinyshard.primitives.threefry import PARITY

BLOCK = 2048
U, S, F, D = np.uint32, np.int32, np.float32, np.float64
_log = tuple(map(F, LOG))
_centre = tuple(map(F, CENTRE))
_tail = tuple(map(F, TAIL))
_ln2_high, _ln2_low, _sqrt2, _half = F(LN2_HIGH), F(LN2_LOW), F(SQRT2), F(0.5)
_lowest, _root_half, _mantissa = F(-(1 - 2.0**-24)), S(ROOT_HALF_BITS), S(0x7FFFFF)
_parity, _one_bits = U(PARITY), U(0x3F800000)


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder for its cache
        return njit(nogil=True)(function)


@njit(inline="always")
def _turn(x, y, by):  # type: ignore[no-untyped-def]
    x = U(x + y)
    return x, U(U(U(y << U(by)) | U(y >> U(32 - by))) ^ x)


@njit(inline="always")
def _four(x, y, a, b, c, d):  # type: ignore[no-untyped-def]
    x, y = _turn(x, y, a)
    x, y = _turn(x, y, b)
    x, y = _turn(x, y, c)
    return _turn(x, y, d)


@_compiled
def _raw(key0, key1, starts, run, row, position, size, high, low, out):  # type: ignore[no-untyped-def]
    """The random words of the next `size` counters, from `position` in run number `row`."""
    done = 0
    while done < size:
        take = min(run - position, size - done)
        first = starts[row] + position
        for i in range(take):
            low[done + i] = U(first + i)
            high[done + i] = U((first + i) >> 32)
        done += take
        position += take
        if position == run:
            position = 0
            row += 1
    k0, k1 = U(key0), U(key1)
    k2 = U(k0 ^ k1 ^ _parity)
    for i in range(size):
        x, y = U(high[i] + k0), U(low[i] + k1)
        x, y = _four(x, y, 13, 15, 26, 6)
        x, y = U(x + k1), U(y + k2 + U(1))
        x, y = _four(x, y, 17, 29, 16, 24)
        x, y = U(x + k2), U(y + k0 + U(2))
        x, y = _four(x, y, 13, 15, 26, 6)
        x, y = U(x + k0), U(y + k1 + U(3))
        x, y = _four(x, y, 17, 29, 16, 24)
        x, y = U(x + k1), U(y + k2 + U(4))
        x, y = _four(x, y, 13, 15, 26, 6)
        x, y = U(x + k2), U(y + k0 + U(5))
        out[i] = x ^ y
    return row, position


@_compiled
def draw_bits(key0, key1, starts, run, low, high, out):  # type: ignore[no-untyped-def]
    """Fill `out`, uint32[n], with the bits of n counters."""
    hi, lo = np.empty(BLOCK, U), np.empty(BLOCK, U)
    row, position = 0, 0
    for base in range(0, out.size, BLOCK):
        size = min(BLOCK, out.size - base)
        row, position = _raw(key0, key1, starts, run, row, position, size, hi, lo, out[base : base + size])


@_compiled
def draw_uniform(key0, key1, starts, run, low, high, out):  # type: ignore[no-untyped-def]
    """Fill `out`, float32[n], with numbers of [low, high)."""
    hi, lo, raw = np.empty(BLOCK, U), np.empty(BLOCK, U), np.empty(BLOCK, U)
    floats = raw.view(F)
    least, span = F(low), F(F(high) - F(low))
    row, position = 0, 0
    for base in range(0, out.size, BLOCK):
        size = min(BLOCK, out.size - base)
        row, position = _raw(key0, key1, starts, run, row, position, size, hi, lo, raw)
        for i in range(size):
            raw[i] = U((raw[i] >> U(9)) | _one_bits)
        if low == 0.0 and high == 1.0:
            for i in range(size):
                out[base + i] = floats[i] - F(1)
        else:
            for i in range(size):
                out[base + i] = max(least, F(D(floats[i] - F(1)) * D(span) + D(least)))


@_compiled
def draw_normal(key0, key1, starts, run, low, high, out):  # type: ignore[no-untyped-def]
    """Fill `out`, float32[n], with normal numbers."""
    hi, lo, raw = np.empty(BLOCK, U), np.empty(BLOCK, U), np.empty(BLOCK, U)
    floats, ints = raw.view(F), raw.view(S)
    xs, exponents = np.empty(BLOCK, F), np.empty(BLOCK, F)
    row, position = 0, 0
    for base in range(0, out.size, BLOCK):
        size = min(BLOCK, out.size - base)
        row, position = _raw(key0, key1, starts, run, row, position, size, hi, lo, raw)
        for i in range(size):
            raw[i] = U((raw[i] >> U(9)) | _one_bits)
        for i in range(size):
            x = (floats[i] - F(1)) * F(2) + _lowest
            xs[i] = x
            floats[i] = F(1) - x * x
        for i in range(size):
            shifted = S(ints[i] - _root_half)
            exponents[i] = F(S(shifted >> S(23)))
            ints[i] = S(S(shifted & _mantissa) + _root_half)
        for i in range(size):
            m, e = floats[i] - F(1), exponents[i]
            square = m * m
            y = m * _log[0] + _log[1]
            y = y * m + _log[2]
            y = y * m + _log[3]
            y = y * m + _log[4]
            y = y * m + _log[5]
            y = y * m + _log[6]
            y = y * m + _log[7]
            y = y * m + _log[8]
            w = -(m + (y * m * square + _ln2_low * e - _half * square) + _ln2_high * e)
            v = w - F(2.5)
            c = v * _centre[0] + _centre[1]
            c = c * v + _centre[2]
            c = c * v + _centre[3]
            c = c * v + _centre[4]
            c = c * v + _centre[5]
            c = c * v + _centre[6]
            c = c * v + _centre[7]
            c = c * v + _centre[8]
            v = np.sqrt(max(w, F(5))) - F(3)
            t = v * _tail[0] + _tail[1]
            t = t * v + _tail[2]
            t = t * v + _tail[3]
            t = t * v + _tail[4]
            t = t * v + _tail[5]
            t = t * v + _tail[6]
            t = t * v + _tail[7]
            t = t * v + _tail[8]
            out[base + i] = (c if w < F(5) else t) * xs[i] * _sqrt2


_KERNELS = {"bits": (draw_bits, U), "uniform": (draw_uniform, F), "normal": (draw_normal, F)}
_ready: set[str] = set()


def fill(kind: str, key: tuple[int, int], starts: np.ndarray, run: int, low: float, high: float, out: Any) -> None:
    """Fill an array with the draws of its counters.

    Args:
        kind: "bits" (uint32), "uniform" or "normal" (float32).
        key: its two words.
        starts: int64; the first counter of each run.
        run: the number of consecutive counters in a run.
        low, high: of "uniform".
        out: len(starts) * run numbers, flat.
    """
    kernel, item = _KERNELS[kind]
    if kind not in _ready:
        with _one_at_a_time():
            kernel(U(0), U(0), np.zeros(1, np.int64), 1, 0.0, 1.0, np.empty(1, item))
        _ready.add(kind)
    kernel(U(key[0]), U(key[1]), starts, run, low, high, out.view(item))


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Compile in one process (seconds); all other processes then load it from numba's cache (a tenth of that)."""
    try:
        import fcntl

        folder = os.open(os.path.dirname(__file__), os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
