"""Shape and dtype of a value, and its bytes; torch's default dtype."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "u64",
    torch.uint32: "u32",
    torch.uint16: "u16",
    torch.uint8: "u8",
    torch.bool: "bool",
}
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class ShapedType:
    """Shape and dtype of one value."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{SHORT.get(self.dtype, str(self.dtype))}[{', '.join(map(str, self.shape))}]"


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in row-major order, as a flat uint8 tensor; shares memory with a contiguous one."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() < 2:  # contiguous with any stride, but a view of another dtype needs stride 1
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, to be written to a socket or a file."""
    return as_bytes(tensor).numpy().data


def tensor_of(payload: bytearray | None, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor that has these bytes, without a copy."""
    if not payload:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(payload, dtype=dtype).reshape(shape)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A block with this default dtype of torch."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
