"""The bytes of a memory as tensors and arrays of any dtype, without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in (
        "float64", "float32", "float16", "complex128", "complex64", "bool",
        "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
    )
}  # fmt: skip


class Views:
    """Views of one memory; the view of the whole in each dtype is cached.

    Args:
        memory: uint8[n].
    """

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self._tensor = torch.from_numpy(memory)
        self._tensors: dict[torch.dtype, torch.Tensor] = {}
        self._arrays: dict[torch.dtype, np.ndarray] = {}

    def tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Values in row-major order at an offset in bytes, valid while a member holds the block."""
        whole = self._tensors.get(dtype)
        if whole is None:
            whole = self._tensors[dtype] = self._tensor.view(dtype)
        return whole.as_strided(shape, _row_major(shape), offset // dtype.itemsize)

    def array(self, offset: int, size: int, dtype: torch.dtype) -> np.ndarray:
        """This many values at an offset in bytes; as unsigned integers if NumPy lacks the dtype, as bfloat16."""
        whole = self._arrays.get(dtype)
        if whole is None:
            same = _NUMPY[dtype] if dtype in _NUMPY else np.dtype(f"u{dtype.itemsize}")
            whole = self._arrays[dtype] = self._memory.view(same)
        start = offset // dtype.itemsize
        return whole[start : start + size]


def _row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [0] * len(shape), 1
    for d in range(len(shape) - 1, -1, -1):
        strides[d] = step
        step *= shape[d]
    return strides
