"""Adding up what several members gave: in their order, and in pieces that stay in the processor's cache.

NumPy adds as torch does, to the last bit (but which of several NaNs a sum is may differ), and comes to it by a shorter
way: on a core on which others have run, one op of torch's takes 15 to 30 µs before it begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.collectives import reduced

PIECE_NBYTES = 1 << 18

_ADDED: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
# half precision is added up in single precision, and bool by any and all: `reduced` knows how
_ADDED_AS_THEY_ARE = {
    torch.float64, torch.float32, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip
# whole blocks of so many bytes of fewer rows than this torch.sum adds up row by row, from zero
_BLOCK_NBYTES = 256
_FEW = 16
_SUMMED = {torch.float64, torch.float32, torch.int64, torch.int32}


def combine_rows(rows: Tensor, op: str, out: Tensor) -> None:
    """The same as `combine`, to the last bit, of the rows of one tensor: in one op of torch's, if it is a sum.

    Args:
        rows: [count, size], one behind the other in memory.
        op: a name of `collectives.REDUCTIONS`.
        out: [size], takes the result.
    """
    size, count = out.numel(), rows.shape[0]
    summed = size - size % (_BLOCK_NBYTES // out.dtype.itemsize)
    if not _is_row_by_row(out.dtype, op, count):
        summed = 0
    if summed:
        torch.sum(rows[:, :summed], 0, dtype=out.dtype, out=out[:summed])
    if summed < size:
        combine(rows[:, summed:].unbind(0), op, out[summed:])


def adds_by_rows(shape: Sequence[int], dtype: torch.dtype, op: str, count: int) -> bool:
    """Whether `add_rows` gives, to the last bit, what `collectives.reduced` does.

    Args:
        shape: of each of `count` values.
        dtype: theirs.
        op: a name of `collectives.REDUCTIONS`.
        count: how many.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    return _is_row_by_row(dtype, op, count) and nbytes > 0 and nbytes % _BLOCK_NBYTES == 0


def _is_row_by_row(dtype: torch.dtype, op: str, count: int) -> bool:
    """Whether torch adds up whole blocks of so many rows in their order."""
    return op == "sum" and dtype in _SUMMED and count < _FEW


def add_rows(rows: np.ndarray, out: np.ndarray) -> None:
    """Add up rows, [count, size], one after the other, from zero, into `out`, [size]."""
    with np.errstate(all="ignore"):  # as torch, which says nothing of an infinity
        np.add.reduce(rows, axis=0, out=out, initial=0)


def combine(parts: Sequence[Tensor], op: str, out: Tensor) -> None:
    """Combine equal-shaped tensors elementwise in their order, piece by piece. No sum of floats is -0.0.

    Args:
        parts: the tensors.
        op: a name of `collectives.REDUCTIONS`.
        out: takes the result.
    """
    is_sum = op == "sum" or (op == "avg" and out.is_floating_point())
    is_by_numpy = op == "sum" and out.dtype in _SUMMED
    add: Callable[..., object] | None = np.add if is_by_numpy else _ADDED.get("sum" if is_sum else op)
    count = min(len(out), -(-out.nbytes // PIECE_NBYTES))
    if not count:
        return
    pieces = (
        zip(out.chunk(count), *(part.chunk(count) for part in parts), strict=True) if count > 1 else [(out, *parts)]
    )
    if add is None or out.dtype not in _ADDED_AS_THEY_ARE:
        for target, *sources in pieces:
            target.copy_(reduced(torch.stack(sources), op))
        return
    with np.errstate(all="ignore"):
        for piece in pieces:
            arrays: list[Any] = [part.numpy() for part in piece] if is_by_numpy else list(piece)
            target, first, second, *others = arrays
            add(first, second, out=target)
            for source in others:
                add(target, source, out=target)
            if is_sum and out.is_floating_point():
                add(target, 0, out=target)  # no sum is -0.0
            if op == "avg":
                target.div_(len(parts))
