"""Combining what several members gave: in their order, and in pieces that stay in the processor's cache.

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

_COMBINED: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
# half precision is added up in single precision, and bool by any and all: `reduced` knows how
_COMBINED_AS_THEY_ARE = {
    torch.float64, torch.float32, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip
# whole blocks of so many bytes of fewer values than this torch.sum adds up value by value, from zero
_BLOCK_NBYTES = 256
_FEW = 16
_ADDED_BY_NUMPY = {torch.float64, torch.float32, torch.int64, torch.int32}


def adds_in_order(shape: Sequence[int], dtype: torch.dtype, op: str, count: int) -> bool:
    """Whether `add_up` gives, to the last bit, what `collectives.reduced` does: torch adds so in whole blocks alone.

    Args:
        shape: of each of `count` values.
        dtype: theirs.
        op: a name of `collectives.REDUCTIONS`.
        count: how many.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    return op == "sum" and dtype in _ADDED_BY_NUMPY and 1 < count < _FEW and nbytes > 0 and nbytes % _BLOCK_NBYTES == 0


def add_up(parts: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Add up equal-shaped arrays, of which there are at least two, one after the other. No sum of floats is -0.0."""
    with np.errstate(all="ignore"):  # as torch, which says nothing of an infinity
        np.add(parts[0], parts[1], out=out)
        for part in parts[2:]:
            np.add(out, part, out=out)
        if out.dtype.kind == "f":
            np.add(out, 0, out=out)


def combine(parts: Sequence[Tensor], op: str, out: Tensor) -> None:
    """Combine equal-shaped tensors elementwise in their order, piece by piece. No sum of floats is -0.0.

    Args:
        parts: the tensors.
        op: a name of `collectives.REDUCTIONS`.
        out: takes the result.
    """
    count = min(len(out), -(-out.nbytes // PIECE_NBYTES))
    if not count:
        return
    pieces: Any = [(out, *parts)]
    if count > 1:
        pieces = zip(out.chunk(count), *(part.chunk(count) for part in parts), strict=True)
    for target, *sources in pieces:
        _combine_piece(sources, op, target)


def _combine_piece(sources: Sequence[Tensor], op: str, out: Tensor) -> None:
    is_sum = op == "sum" or (op == "avg" and out.is_floating_point())
    combined = _COMBINED.get("sum" if is_sum else op)
    if op == "sum" and out.dtype in _ADDED_BY_NUMPY and len(sources) > 1:
        add_up([source.numpy() for source in sources], out.numpy())
    elif combined is None or out.dtype not in _COMBINED_AS_THEY_ARE:
        out.copy_(reduced(torch.stack(list(sources)), op))
    else:
        first, second, *others = sources
        combined(first, second, out=out)
        for source in others:
            combined(out, source, out=out)
        if is_sum and out.is_floating_point():
            out.add_(0)
        if op == "avg":
            out.div_(len(sources))
