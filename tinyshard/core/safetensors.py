"""The safetensors format: a JSON header, then the bytes of tensors. No pickle, and many programs read it.

8 bytes length of the header | header | the tensors' bytes, row-major and little-endian, one after the other

The header has each tensor's dtype, shape, and position in those bytes. A tensor may be a block of a larger one: then
the header has the block's offset in each dim, as torch.distributed.checkpoint writes it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.core.errors import FileError

SUFFIX = ".safetensors"
_LENGTH = struct.Struct("<Q")
_MOST_HEADER_NBYTES = 100 << 20  # the format's limit
_ALIGNED_TO = 8

# the format's name of each dtype. It lacks some complex ones: complex values are stored as pairs of reals
NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
DTYPES = {**{name: dtype for dtype, name in NAMES.items()}, "C64": torch.complex64}
REALS = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file, which may be a block of a larger one.

    Attributes:
        start: where its bytes begin in the file.
        dtype: its dtype in the file.
        shape: its shape.
        offsets: its first element along each dim of the whole.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Where its bytes end in the file."""
        return self.start + self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True, repr=False)
class Head:
    """The part of a file before the tensors' bytes.

    Attributes:
        data: these bytes.
        stored: by name, where each tensor is.
    """

    data: bytes
    stored: dict[str, Stored]

    def __repr__(self) -> str:
        return f"{len(self.stored)} blocks"


def head_of(blocks: Mapping[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]]) -> Head:
    """The head of a file.

    Args:
        blocks: by name, in the order in which their bytes follow: dtype, shape, and offsets in the whole.

    Example:
        >>> head_of({"x": (torch.float32, (2, 3), (4, 0))}).stored["x"].offsets
        (4, 0)
    """
    entries: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, _) in blocks.items():
        stop = at + dtype.itemsize * torch.Size(shape).numel()
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    offsets = {name: {"saved_offsets": list(block[2])} for name, block in blocks.items()}
    about = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    text = json.dumps({"__metadata__": about, **entries}).encode()
    text += b" " * (-len(text) % _ALIGNED_TO)
    data = _LENGTH.pack(len(text)) + text
    return Head(
        data,
        {
            name: Stored(len(data) + entries[name]["data_offsets"][0], dtype, shape, where)
            for name, (dtype, shape, where) in blocks.items()
        },
    )


def read_head(path: str) -> dict[str, Stored]:
    """Where each tensor of a file is.

    Raises:
        FileError: it is not a file of this format, or it is cut.
    """
    nbytes = os.path.getsize(path)
    try:
        with open(path, "rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > min(_MOST_HEADER_NBYTES, nbytes):
                raise ValueError(f"a header of {length} bytes in a file of {nbytes}")
            entries = json.loads(file.read(length))
        about = entries.pop("__metadata__", None) or {}
        offsets = json.loads(about.get("DCP_SHARDING_INFO") or "{}")
        found = {}
        for name, entry in entries.items():
            shape = tuple(map(int, entry["shape"]))
            where = tuple(offsets[name]["saved_offsets"]) if offsets else (0,) * len(shape)
            start, stop = (_LENGTH.size + length + int(at) for at in entry["data_offsets"])
            found[name] = Stored(start, DTYPES[entry["dtype"]], shape, where)
            if found[name].stop != stop or stop > nbytes:
                raise ValueError(f"{name!r} would end at byte {stop} of {nbytes}")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise FileError(
            "a file cannot be read: it is damaged, or cut, or not in the safetensors format",
            got=f"{path}: {type(error).__name__}: {error}",
            try_="another copy of the folder",
        ) from error
    return found
