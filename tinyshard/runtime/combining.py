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


def combine(parts: Sequence[Tensor], op: str, out: Tensor) -> None:
    """Combine equal-shaped tensors elementwise in their order, piece by piece.

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
        if op == "avg":
            target.div_(len(parts))
