"""The values of Arrays as plain tensors: of several in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.runtime.controller.refs import Wanted


def gathered(xs: Sequence[Any]) -> list[torch.Tensor]:
    """The whole values of Arrays: waits for all of them at once, and copies one of each block here."""
    by_runtime: dict[Any, list[int]] = {}
    for i, x in enumerate(xs):
        by_runtime.setdefault(x._buffer.runtime, []).append(i)
    found: dict[int, torch.Tensor] = {}
    for runtime, numbers in by_runtime.items():
        found.update(zip(numbers, runtime.gather([_wanted(xs[i]) for i in numbers]), strict=True))
    return [found[i] for i in range(len(xs))]


def _wanted(x: Any) -> Wanted:
    layout, meta = x._layout, x._meta
    places = {layout.devices[p]: layout.index(p, meta.shape) for p in layout.positions().values()}
    return Wanted(x._buffer, places, meta.shape, meta.dtype)
