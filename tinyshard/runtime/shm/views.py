"""The bytes of a memory as tensors of any dtype, without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class Views:
    """Views of one memory; the view of the whole in each dtype is cached.

    Args:
        memory: uint8[n].
    """

    def __init__(self, memory: np.ndarray) -> None:
        self._tensor = torch.from_numpy(memory)
        self._tensors: dict[torch.dtype, torch.Tensor] = {}

    def tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Values in row-major order at an offset in bytes, valid while a member holds the block."""
        whole = self._tensors.get(dtype)
        if whole is None:
            whole = self._tensors[dtype] = self._tensor.view(dtype)
        return whole.as_strided(shape, _row_major(shape), offset // dtype.itemsize)


def _row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [0] * len(shape), 1
    for d in range(len(shape) - 1, -1, -1):
        strides[d] = step
        step *= shape[d]
    return strides
