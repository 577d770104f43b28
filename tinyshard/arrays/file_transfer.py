"""Blocks between devices and files: each device writes those that it holds, and reads those that it should hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.arrays.from_parts import joined
from tinyshard.arrays.manifest import SavedTensor
from tinyshard.core.devices import Device
from tinyshard.core.errors import FileError, RemoteError
from tinyshard.core.program import Builder, Value
from tinyshard.core.safetensors import REALS, SUFFIX, head_of
from tinyshard.core.stored_blocks import count_pieces, write_file
from tinyshard.core.types import ShapedType
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller.lineage import Buffer

HOST = "host"  # this process, as a writer


@dataclass(frozen=True, slots=True)
class _Block:
    """A block that should be written.

    Attributes:
        name: of its tensor.
        value: the values: a tensor of this process, or a Buffer.
        dtype, shape, offsets: as in `safetensors.Stored`.
    """

    name: str
    value: Any
    dtype: torch.dtype
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def shared_out(tensors: dict[str, torch.Tensor]) -> dict[Any, list[_Block]]:
    """The blocks that each device writes, and this process.

    Of the devices that hold a block, the one with the fewest bytes to write so far writes it.
    """
    given: dict[Any, list[_Block]] = {}
    nbytes: dict[Any, int] = {}
    for name, x in tensors.items():
        shape, dtype = tuple(x.shape), REALS.get(x.dtype, x.dtype)
        pair = (2,) if x.dtype in REALS else ()
        zeros = (0,) * len(shape + pair)
        if not isinstance(x, Array):
            given.setdefault(HOST, []).append(_Block(name, x.detach(), dtype, shape + pair, zeros))
            continue
        layout = x.layout_of_shards
        block_shape = layout.shard_shape(shape)
        at = layout.positions()
        seen = set()
        for block, owners in layout.owners().items():
            starts = (s.indices(n)[0] for s, n in zip(layout.index(at[block], shape), shape, strict=True))
            offsets = (*starts, *zeros[len(shape) :])
            if offsets not in seen:  # all blocks of an empty array have the same offsets
                seen.add(offsets)
                device = min(owners, key=lambda d: (nbytes.get(d, 0), d))
                nbytes[device] = nbytes.get(device, 0) + ShapedType(block_shape, x.dtype).nbytes
                given.setdefault(device, []).append(_Block(name, x._buffer, dtype, block_shape + pair, offsets))
    # larger items come first, so each is at a multiple of its size
    return {where: sorted(blocks, key=lambda b: -b.dtype.itemsize) for where, blocks in given.items()}


def write(given: dict[Any, list[_Block]], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Let all devices write at the same time; returns the manifest's entries of the blocks, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    started = []
    for where, blocks in given.items():
        file = f"{HOST if where == HOST else f'device-{where}'}{SUFFIX}"
        head = head_of({b.name: (b.dtype, b.shape, b.offsets) for b in blocks})
        count = sum(count_pieces(s) for s in head.stored.values())
        if where != HOST:
            builder = Builder((where,), (1,))
            values = [Value(builder.input(ShapedType(b.shape, b.dtype))) for b in blocks]
            types = [ShapedType((count,), torch.int64)]
            program = builder.finish(builder.emit("write_file", (str(folder / file), head, values), {}, types))
            runtime = blocks[0].value.runtime
            started.append((file, head, where, runtime.run(program, [b.value for b in blocks])[0]))
        else:
            started.append((file, head, where, [b.value for b in blocks]))
    for file, head, where, value in started:
        if where == HOST:
            checksums = write_file(str(folder / file), head, value).tolist()
        else:
            _wait([(where, value)])
            checksums = value.runtime.fetch(value, [where])[where].tolist()
        for name, stored in head.stored.items():
            count = count_pieces(stored)
            own, checksums = checksums[:count], checksums[count:]
            block = {"file": file, "start": stored.start, "shape": stored.shape, "offsets": stored.offsets}
            found.setdefault(name, []).append({**block, "checksums": own})
    return found


def _wait(values: Iterable[tuple[int, Buffer]]) -> None:
    """Wait for values of single devices; raises a device's FileError here."""
    for device, value in values:
        try:
            value.runtime.wait(value, [device])
        except RemoteError as error:
            failure = value.run.failures.get(device)
            kind, _, text = (failure[0].error if failure else "").partition(": ")
            if kind == FileError.__name__:
                raise FileError(f"{text}\n  on:   {Device(device, value.runtime.devices[0].platform)}") from error
            raise


def read(tensors: Sequence[SavedTensor]) -> None:
    """Let all devices read at the same time, and wait."""
    runtime = lifecycle.current()
    own: dict[int, list[tuple[SavedTensor, int]]] = {}  # by device: tensors, and its position in their layouts
    for t in tensors:
        assert t.layout is not None
        for position, device in enumerate(t.layout.devices):
            own.setdefault(device, []).append((t, position))
    blocks: dict[tuple[str, int], Buffer] = {}
    for device, reads in own.items():
        builder = Builder((device,), (1,))
        numbers: list[int] = []
        for t, position in reads:
            assert t.layout is not None
            shape = t.layout.shard_shape(t.shape)
            parts = t.parts(t.layout.index(position, t.shape))
            numbers += builder.emit("read_block", (t.name, parts, shape, t.dtype), {}, [ShapedType(shape, t.dtype)])
        buffers = runtime.run(builder.finish(numbers), [])
        blocks.update({(t.name, device): buffer for (t, _), buffer in zip(reads, buffers, strict=True)})
    _wait((device, buffer) for (_, device), buffer in blocks.items())
    wanted = [(t.layout, [blocks[t.name, d] for d in t.layout.devices]) for t in tensors if t.layout is not None]
    shapes = [(t.shape, t.dtype) for t in tensors]
    for t, buffer in zip(tensors, joined(runtime, wanted, shapes), strict=True):
        assert t.layout is not None
        t.value = Array(buffer, t.layout, ShapedType(t.shape, t.dtype), t.committed, t.mesh, t.sharding)
