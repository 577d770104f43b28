"""Combining what the members of a group gave: in their order, and in pieces that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tinyshard.collectives import reduced

PIECE_NBYTES = 1 << 18

_IN_ORDER: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
# half precision is added up in single precision, and bool by any and all: `reduced` knows how
_COMBINED_AS_THEY_ARE = {
    torch.float64, torch.float32, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip


def combine(parts: Sequence[Tensor], op: str, out: Tensor) -> None:
    """Combine equal-shaped tensors elementwise in their order, piece by piece. No sum of floats is -0.0.

    Args:
        parts: the tensors, at least two.
        op: a name of `collectives.REDUCTIONS`.
        out: takes the result.
    """
    count = min(len(out), -(-out.nbytes // PIECE_NBYTES))
    if not count:
        return
    for target, first, second, *others in zip(out.chunk(count), *(part.chunk(count) for part in parts), strict=True):
        if out.dtype not in _COMBINED_AS_THEY_ARE:
            target.copy_(reduced(torch.stack([first, second, *others]), op))
            continue
        _IN_ORDER[op](first, second, out=target)
        for other in others:
            _IN_ORDER[op](target, other, out=target)
        if _IN_ORDER[op] is torch.add and (out.is_floating_point() or out.is_complex()):
            target.add_(0)
        if op == "avg":
            target.div_(len(parts))
