"""The reduction of the members' operands: in their order, in pieces that fit the processor's cache.

Small operands are stacked and reduced by one call of torch, which chooses the order by their sizes.

NumPy's results equal torch's to the last bit (except for the choice among several NaNs), and a call has less overhead:
`python -m benchmarks.kernels` measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.core.collectives import reduce_stack, reduced
from tinyshard.core.types import HALVES

PIECE_NBYTES = 1 << 18
# for results up to this size, one call of `reduce_stack` takes less time than `combine`
SMALL_NBYTES = 1 << 15

_IN_ORDER: dict[str, Callable[..., object]] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
# of the other dtypes bool is combined by any and all: `reduced` does that
_COMBINED_AS_THEY_ARE = {
    torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip
_COMPLEX = {torch.complex64, torch.complex128}


def reduce_into(out: Tensor, parts: Sequence[Tensor], op: str) -> None:
    """As `combine`, but small operands by one call."""
    if out.nbytes > SMALL_NBYTES:
        combine(parts, op, out)
    else:
        out.copy_(reduce_stack(parts, op))


def combine(parts: Sequence[Tensor], op: str, out: Tensor) -> None:
    """Reduce equal-shaped tensors elementwise in their order, piece by piece. No sum of floats is -0.0.

    Args:
        parts: the tensors, at least two.
        op: a name of `collectives.REDUCTIONS`.
        out: takes the result.
    """
    is_sum = op in ("sum", "avg")
    if is_sum and out.dtype in HALVES:  # added in single precision, and rounded once
        for target, first, *others in _pieces([out, *parts]):
            total = first.float()
            for other in others:
                total.add_(other.float())  # faster than to add what is narrower
            total.add_(0)
            target.copy_(total.div_(len(parts)) if op == "avg" else total)
        return
    if not (out.dtype in _COMBINED_AS_THEY_ARE or (is_sum and out.dtype in _COMPLEX)):
        for target, *sources in _pieces([out, *parts]):
            target.copy_(reduced(torch.stack(sources), op))
        return
    is_float = out.is_floating_point() or out.is_complex()
    combined = _IN_ORDER[op]
    with np.errstate(all="ignore"):  # torch does not warn about an infinity either
        for target, first, second, *others in _pieces([tensor.numpy() for tensor in (out, *parts)]):
            combined(first, second, out=target)
            for other in others:
                combined(target, other, out=target)
            if is_sum and is_float:
                np.add(target, 0, out=target)
            if op == "avg":
                np.divide(target, len(parts), out=target)


def _pieces(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Split equal-shaped tensors, or arrays, into pieces along their first dim."""
    size = len(tensors[0])
    step = max(1, size * PIECE_NBYTES // max(1, tensors[0].nbytes))
    for start in range(0, size, step):
        yield [tensor[start : start + step] for tensor in tensors]
