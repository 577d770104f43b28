"""Shard: one device's block of an Array; and the properties of an Array about its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinyshard.core.devices import Device
from tinyshard.core.layout import Layout
from tinyshard.core.types import ShapedType


@dataclass(frozen=True, eq=False)
class Shard:
    """One device's block of an Array. Made by `x.addressable_shards`.

    Communication: none; does not copy, and does not wait for the values.

    Example:
        >>> import tinyshard as ts, torch
        >>> ts.init(devices=2, runtime="local")
        >>> x = ts.device_put(torch.arange(4), ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i")))
        >>> shard = x.addressable_shards[1]
        >>> shard.device, shard.index, shard.data
        (CPU 1, (slice(2, 4, None),), Array([2, 3], dtype=int64))
    """

    _array: Any  # an Array; its file imports this one
    _position: int

    @property
    def device(self) -> Device:
        """The device that holds it."""
        layout = self._array.layout_of_shards
        return Device(layout.devices[self._position], layout.platform)

    @property
    def index(self) -> tuple[slice, ...]:
        """The slices of the array that it has."""
        index: tuple[slice, ...] = self._array.layout_of_shards.index(self._position, tuple(self._array.shape))
        return index

    @property
    def replica_id(self) -> int:
        """0 for the first copy of this block in mesh order, 1 for the next."""
        return int(self._array.layout_of_shards.replica_id(self._position))

    @property
    def data(self) -> Any:
        """The block as an Array on its one device, committed if the whole Array is; without a copy."""
        x = self._array
        layout = x.layout_of_shards
        shape = layout.shard_shape(tuple(x.shape))
        alone = Layout((self.device.id,), (), ((),) * len(shape), layout.platform)
        return type(x)(x._buffer, alone, ShapedType(shape, x.dtype), x.committed)

    def __repr__(self) -> str:
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id})"


class HasShards:
    """The properties of an Array about its shards; the base class of `Array`."""

    layout_of_shards: Any

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return bool(self.layout_of_shards.is_replicated)

    @property
    def is_fully_addressable(self) -> bool:
        """True: the controller reaches every device. In JAX: false for an array with shards of another process."""
        return True

    @property
    def addressable_shards(self) -> list[Shard]:
        """One `Shard` for each device, in mesh order.

        Communication: none; the data of a shard stays on its device.
        """
        return [Shard(self, position) for position in range(len(self.layout_of_shards.devices))]

    @property
    def global_shards(self) -> list[Shard]:
        """The same as `addressable_shards`. In JAX: also those of other processes, which have no data."""
        return self.addressable_shards

    def addressable_data(self, index: int) -> Any:
        """The data of one of `addressable_shards`: an Array on its one device."""
        return self.addressable_shards[index].data
