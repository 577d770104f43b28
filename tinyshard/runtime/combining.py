"""Adding up what several members gave: in their order, and in pieces that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    if op != "sum" or out.dtype not in _SUMMED or count >= _FEW:
        summed = 0
    if summed:
        torch.sum(rows[:, :summed], 0, dtype=out.dtype, out=out[:summed])
    if summed < size:
        combine(rows[:, summed:].unbind(0), op, out[summed:])


def combine(parts: Sequence[Tensor], op: str, out: Tensor) -> None:
    """Combine equal-shaped tensors elementwise in their order, piece by piece. No sum of floats is -0.0.

    Args:
        parts: the tensors.
        op: a name of `collectives.REDUCTIONS`.
        out: takes the result.
    """
    add = _ADDED.get("sum" if op == "avg" and out.is_floating_point() else op)
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
    for target, first, second, *others in pieces:
        add(first, second, out=target)
        for source in others:
            add(target, source, out=target)
        if add is torch.add and out.is_floating_point():
            target.add_(0.0)
        if op == "avg":
            target.div_(len(parts))
