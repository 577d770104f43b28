"""Blocks of tensors in files: whoever holds blocks writes a file of them, and whoever needs a block reads its parts.

The files are safetensors. Each piece of a block has a checksum.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tinyshard.core.errors import FileError
from tinyshard.core.safetensors import Head, Stored
from tinyshard.core.types import tensor_bytes

# each piece of this size of a block has a checksum, so that a device which reads a part of the block can check that
# part; another size is another format of the manifest
PIECE_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a stored block that a device reads.

    Attributes:
        path: the file.
        stored: where the block is in it, and its shape there.
        checksums: of each piece of it; None if the file does not have them.
        cut: the slices of the stored block.
        place: their position in the device's own block.
    """

    path: str
    stored: Stored
    checksums: tuple[int, ...] | None
    cut: tuple[slice, ...]
    place: tuple[slice, ...]

    def __repr__(self) -> str:
        return f"{self.path}[{self.stored.start}:{self.stored.stop}]"


def count_pieces(stored: Stored) -> int:
    """The number of checksums of a block."""
    return -(-(stored.stop - stored.start) // PIECE_NBYTES)


def write_file(path: str, head: Head, blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Write a file of blocks, and flush it to disk.

    Args:
        path: a new file.
        head: its head.
        blocks: in the order of the head; those on a GPU are copied to the host, one at a time.

    Returns:
        The checksums of all pieces of all blocks: int64[pieces].

    Raises:
        FileError: the operating system refused.
    """
    checksums = []
    try:
        with open(path, "xb") as file:
            file.write(head.data)
            for block in blocks:
                data = tensor_bytes(block.cpu())
                for start in range(0, data.nbytes, PIECE_NBYTES):
                    piece = data[start : start + PIECE_NBYTES]
                    checksums.append(zlib.crc32(piece))
                    file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise FileError(
            "a file could not be written; what was saved before is whole",
            got=f"{path}: {error}",
            try_="more room on the disk, or a folder that every device's machine shares and may write to",
        ) from error
    return torch.tensor(checksums, dtype=torch.int64)


def read_block(name: str, parts: Sequence[Part], shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A block, from the files that hold parts of it. It reads the pieces that contain these parts.

    Args:
        name: the tensor's, for errors.
        parts: they make up the block.
        shape, dtype: the block's.

    Raises:
        FileError: a file is missing, cut or damaged.
    """
    out = torch.empty(tuple(shape), dtype=dtype)
    for part in parts:
        stored = _mapped(name, part)
        if dtype.is_complex and not stored.dtype.is_complex:
            stored = torch.view_as_complex(stored)
        out[part.place].copy_(stored[part.cut])
    return out


def _mapped(name: str, part: Part) -> torch.Tensor:
    """A stored block in mapped memory, with its requested part checked."""
    stored = part.stored
    if stored.stop == stored.start:
        return torch.empty(stored.shape, dtype=stored.dtype)
    try:
        with open(part.path, "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes < stored.stop:  # reading mapped memory beyond the end would kill the process
                raise _damaged(name, part, f"it has {nbytes} bytes, and the block ends at {stored.stop}")
            # copy on write, without writes: torch does not accept read-only memory
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            "a file of a saved tree cannot be read",
            got=f"{part.path}: {error}",
            rule="each device opens the files: the folder must be there on its machine too",
            try_="the whole folder, or another copy of it",
        ) from error
    with memoryview(memory) as data, data[stored.start : stored.stop] as block:
        for number in _pieces(part) if part.checksums is not None else ():
            at = number * PIECE_NBYTES
            assert part.checksums is not None
            if zlib.crc32(block[at : at + PIECE_NBYTES]) != part.checksums[number]:
                raise _damaged(name, part, f"the checksum of bytes {stored.start + at} and on is another")
    count = torch.Size(stored.shape).numel()
    return torch.frombuffer(memory, dtype=stored.dtype, count=count, offset=stored.start).reshape(stored.shape)


def _damaged(name: str, part: Part, how: str) -> FileError:
    return FileError(
        "a file of a saved tree is damaged",
        got=f"{part.path}, in the values of {name!r}: {how}",
        rule="nothing of it is used; the other files may be whole",
        try_="another copy of the file, or a tree that was saved before",
    )


def _pieces(part: Part) -> list[int]:
    """The numbers of the pieces that contain the part."""
    spans = _spans(part.cut, part.stored.shape, part.stored.dtype.itemsize)
    return sorted({n for start, stop in spans for n in range(start // PIECE_NBYTES, -(-stop // PIECE_NBYTES))})


def _spans(cut: Sequence[slice], shape: Sequence[int], itemsize: int) -> Iterator[tuple[int, int]]:
    """The ranges of bytes that contain a part; two near ones are joined.

    Example:
        >>> list(_spans((slice(1, 3), slice(None)), (4, 8), 4))
        [(32, 96)]
    """
    if not shape:
        yield 0, itemsize
        return
    first, last, _ = (cut[0] if cut else slice(None)).indices(shape[0])
    row_nbytes = torch.Size(shape[1:]).numel() * itemsize
    inner = list(_spans(cut[1:], shape[1:], itemsize))
    if row_nbytes < PIECE_NBYTES:
        yield first * row_nbytes + inner[0][0], (last - 1) * row_nbytes + inner[-1][1]
        return
    for row in range(first, last):
        yield from ((row * row_nbytes + start, row * row_nbytes + stop) for start, stop in inner)
