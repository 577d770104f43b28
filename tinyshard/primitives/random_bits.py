"""The op that draws: it takes a key and a shape, and makes each element from its own counter.

Element number i of the whole tensor, in row-major order, is the hash of counter i. So a device makes only its own
block: `parts` is the number of blocks along each dim, `coordinates` the position of this device's block, and the
numbers are those that one device would have drawn.

    draw(key, [24], [1], [], "uniform", float32)     24 numbers
    draw(key, [24], [8], [2], "uniform", float32)    numbers 6, 7 and 8 of them

`coordinates` has a tensor of one number for each dim that is cut: in a program a device reads its position there.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.primitive import define
from tinyshard.primitives import floats
from tinyshard.primitives.threefry import counter_words, words

BLOCK = 1 << 15  # elements that torch's ops make at once, so that they stay in the cache
LOAD_FROM = 1 << 20  # elements; for fewer, loading numba, 0.4 s per process, costs more than it saves
COMPILED_FROM = 1 << 14  # once it is loaded


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a block: runs of consecutive counters, of equal length.

    Attributes:
        starts: int64; the first counter of each run.
        run: the length of a run.
    """

    starts: Tensor
    run: int

    @property
    def size(self) -> int:
        """The number of counters."""
        return self.starts.numel() * self.run

    def between(self, first: int, last: int) -> Tensor:
        """Counters number `first` to `last` - 1."""
        device = self.starts.device
        if self.starts.numel() == 1:
            return torch.arange(first, last, device=device) + self.starts
        place = torch.arange(first, last, device=device)
        return self.starts[place // self.run] + place % self.run


def counters_of(shape: Sequence[int], parts: Sequence[int], coordinates: Sequence[int]) -> Counters:
    """The counters of one block of a tensor, in row-major order of the block.

    Args:
        shape: of the whole tensor.
        parts: the number of blocks along each dim.
        coordinates: the number of the block along each dim.

    Example:
        >>> counters_of((4, 6), (2, 3), (1, 0)).between(0, 4)
        tensor([12, 13, 18, 19])
    """
    block = [n // p for n, p in zip(shape, parts, strict=True)]
    cut = [d for d, p in enumerate(parts) if p > 1]
    last = cut[-1] if cut else 0  # after the last cut dim, counters are consecutive
    starts = torch.zeros(1, dtype=torch.int64)
    for dim in range(last):
        index = torch.arange(block[dim]) + coordinates[dim] * block[dim]
        starts = (starts[:, None] + index * math.prod(shape[dim + 1 :])).reshape(-1)
    if not shape:
        return Counters(starts, 1)
    below = math.prod(shape[last + 1 :])
    return Counters(starts + coordinates[last] * block[last] * below, block[last] * below)


def _draw(
    key: Tensor,
    shape: Sequence[int],
    parts: Sequence[int],
    coordinates: Sequence[Tensor],
    kind: str,
    dtype: torch.dtype,
    low: float = 0.0,
    high: float = 1.0,
) -> Tensor:
    numbers = iter(coordinates)
    block = counters_of(shape, parts, [int(next(numbers)) if p > 1 else 0 for p in parts])
    local = [n // p for n, p in zip(shape, parts, strict=True)]
    out = torch.empty([*key.shape[:-1], *local, *inner(kind)], dtype=dtype, device=key.device)
    fill(out, key, block, kind, low, high)
    return out


def _draw_on_meta(
    key: Tensor, shape: Sequence[int], parts: Sequence[int], coordinates: Any, kind: str, dtype: torch.dtype, *_: float
) -> Tensor:
    local = [n // p for n, p in zip(shape, parts, strict=True)]
    return key.new_empty([*key.shape[:-1], *local, *inner(kind)], dtype=dtype)


DRAW = define(
    "draw(Tensor key, int[] shape, int[] parts, Tensor[] at, str kind, ScalarType dtype, float low=0., float high=1.) "
    "-> Tensor",
    _draw,
    _draw_on_meta,
)


def register_batched(op: Any) -> None:
    """Under vmap the op is called with a first dim of the batch on each operand: each key is drawn from alone."""

    def fronted(x: Any, dim: Any, size: int) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)

    def under_vmap(info: Any, in_dims: Any, *args: Any, **named: Any) -> tuple[Tensor, int]:
        return op(*(fronted(x, d, info.batch_size) for x, d in zip(args, in_dims, strict=True)), **named), 0

    torch.library.register_vmap(op, under_vmap)


register_batched(DRAW)


def inner(kind: str) -> tuple[int, ...]:
    """The trailing dims of an element: none for one number, [2] for the words of a new key."""
    return (2,) if kind == "words" else ()


def width(kind: str, dtype: torch.dtype) -> int:
    """The number of random bits in an element."""
    return dtype.itemsize * 8 if kind == "bits" else 64 if kind == "words" else floats.FLOATS[dtype].drawn


def fill(out: Tensor, key: Tensor, block: Counters, kind: str, low: float, high: float) -> None:
    """Write the draws of a block, for each key of a batch."""
    keys = key.reshape(-1, 2)
    rows = out.view(len(keys), block.size, *inner(kind))
    enough = COMPILED_FROM if "tinyshard.primitives.compiled_draws" in sys.modules else LOAD_FROM
    if out.device.type == "cpu" and block.size >= enough and is_compiled(kind, out.dtype):
        from tinyshard.primitives import compiled_draws

        for row, (first, second) in zip(rows, keys.tolist(), strict=True):
            pair = first & 0xFFFFFFFF, second & 0xFFFFFFFF
            compiled_draws.fill(kind, pair, block.starts.numpy(), block.run, low, high, row.view(torch.int32).numpy())
        return
    block = Counters(block.starts.to(out.device), block.run)
    width_at_once = max(1, block.size if out.device.type != "cpu" else min(block.size, BLOCK))
    keys_at_once = max(1, BLOCK // width_at_once)
    for first in range(0, block.size, width_at_once):
        last = min(first + width_at_once, block.size)
        high_words, low_words = counter_words(block.between(first, last))
        for k in range(0, len(keys), keys_at_once):
            some = keys[k : k + keys_at_once]
            counters = (w.expand(len(some), -1).clone() for w in (high_words, low_words))
            pair = words(some[:, :1], some[:, 1:], *counters)
            rows[k : k + keys_at_once, first:last] = made_of(joined(*pair, kind, out.dtype), kind, out.dtype, low, high)


def joined(first: Tensor, second: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """The two words of each counter as the bits of an element: int64 for 64 bits, else int32."""
    if kind == "words":
        return torch.stack((first, second), -1)
    if width(kind, dtype) == 64:
        return (first.long() << 32) | (second.long() & 0xFFFFFFFF)
    return first ^ second


def made_of(raw: Tensor, kind: str, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """Elements made from random bits."""
    if kind == "uniform":
        return floats.uniform(raw, dtype, low, high)
    if kind == "normal":
        return floats.normal(raw, dtype)
    if kind == "words" or dtype == torch.int32:
        return raw
    return raw.to(_AS_SIGNED.get(dtype, dtype)).view(dtype)


_AS_SIGNED = {torch.uint8: torch.int8, torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_COMPILED = {
    ("bits", torch.int32),
    ("bits", torch.uint32),
    ("uniform", torch.float32),
    ("normal", torch.float32),
}


@cache
def _has_numba() -> bool:
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        from tinyshard.primitives import compiled_draws  # noqa: F401
    except ImportError:  # this version of numba does not support this version of numpy
        return False
    return True


def is_compiled(kind: str, dtype: torch.dtype) -> bool:
    """Whether numba is loaded and has a kernel for this kind and dtype."""
    return (kind, dtype) in _COMPILED and _has_numba()
