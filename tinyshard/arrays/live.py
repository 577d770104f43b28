"""Which Arrays are alive, and the memory that they take on each device."""

from __future__ import annotations

import gc
import math
from typing import Any

from tinyshard.arrays.array import Array
from tinyshard.core.devices import Device
from tinyshard.draw.tables import live_html
from tinyshard.runtime import lifecycle


class LiveArrays(list[Array]):
    """A list of Arrays that prints as a table, without moving values."""

    @property
    def nbytes(self) -> dict[Device, int]:
        """Bytes that their blocks take on each device; a block that two of them share counts once."""
        sizes = dict.fromkeys(lifecycle.devices(), 0)
        seen: set[int] = set()
        for x in self:
            if x._buffer.number not in seen:
                seen.add(x._buffer.number)
                for device in x.devices():
                    sizes[device] = sizes.get(device, 0) + _block_nbytes(x)
        return sizes

    def __repr__(self) -> str:
        lines = [f"{len(self)} live Arrays"]
        for nbytes, type, where, origin in self._rows():
            lines.append(f"  {nbytes:>13,} B a device  {type}  {where}  made by {origin}")
        lines += [f"  {nbytes:>13,} B on {device!r}" for device, nbytes in self.nbytes.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return live_html(self._rows(), [(repr(device), nbytes) for device, nbytes in self.nbytes.items()])

    def _rows(self) -> list[tuple[int, str, str, str]]:
        """Bytes on a device, type, sharding and origin of each, the largest first."""
        return [
            (
                _block_nbytes(x),
                f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}",
                " ".join(repr(x.sharding).split()),
                str(x._buffer.run.where),
            )
            for x in sorted(self, key=_block_nbytes, reverse=True)
        ]


def _block_nbytes(x: Array) -> int:
    return math.prod(x.layout_of_shards.shard_shape(tuple(x.shape))) * x.dtype.itemsize


def live_arrays() -> LiveArrays:
    """The live Arrays on the present devices, the oldest first.

    Returns:
        A list of Arrays; it prints as a table, and its `nbytes` is the number of bytes that they take on each device.

    Raises:
        RuntimeStateError: as `devices`.

    Communication: none.

    In JAX: a plain list, and the platform may be chosen.

    Example:
        >>> import tinyshard as ts, torch
        >>> ts.init(devices=2, runtime="local")
        >>> x = ts.device_put(torch.zeros(4, 2), ts.sharding.PositionalSharding(ts.devices()).reshape(2, 1))
        >>> ts.live_arrays().nbytes
        {CPU 0: 16, CPU 1: 16}
    """
    here = lifecycle.current()
    # a search of all objects is slow, but costs nothing until it is called
    found: list[Any] = [x for x in gc.get_objects() if type(x) is Array and "_buffer" in x.__dict__]
    return LiveArrays(sorted((x for x in found if x._buffer.runtime is here), key=lambda x: x._buffer.number))
