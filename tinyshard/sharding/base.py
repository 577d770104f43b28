"""The base class of shardings, which reduce to a `Layout`; and the simplest one, for a single device."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from tinyshard.core.devices import Device
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Layout, is_same_placement
from tinyshard.draw.html import sharding_html


class Sharding(ABC):
    """The devices, in order, and how an array is cut over them. An abstract class.

    Communication: none.

    Example:
        >>> import tinyshard as ts
        >>> sharding = ts.NamedSharding(ts.AbstractMesh(2, "i"), ts.P("i"))
        >>> isinstance(sharding, ts.Sharding), sharding.devices_indices_map((4,))
        (True, {CPU 0: (slice(0, 2, None),), CPU 1: (slice(2, 4, None),)})
    """

    @property
    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices in mesh order."""

    @abstractmethod
    def layout(self, ndim: int) -> Layout:
        """The layout of an array of `ndim` dims.

        Raises:
            ShardingError: the sharding does not fit arrays of this rank.
        """

    @property
    def device_set(self) -> set[Device]:
        """The devices, without their order."""
        return set(self.devices)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self._own_layout().is_replicated

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one shard of an array of `global_shape`.

        Raises:
            ShardingError: wrong rank or uneven split.
        """
        return self.checked_layout(global_shape).shard_shape(global_shape)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        """Device -> the slices of the array that it holds, in mesh order; an uncut dim is slice(None).

        Raises:
            ShardingError: wrong rank or uneven split.
        """
        layout = self.checked_layout(global_shape)
        return {device: layout.index(i, global_shape) for i, device in enumerate(self.devices)}

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether both put the same block of an `ndim`-d array on the same devices, in the same order."""
        return is_same_placement(self.layout(ndim), other.layout(ndim))

    def checked_layout(self, global_shape: Sequence[int]) -> Layout:
        """The layout of an array of this shape, after checking that it cuts every dim evenly.

        Raises:
            ShardingError: wrong rank, or a dim whose size is not a multiple of its number of parts.
        """
        shape = tuple(global_shape)
        layout = self.layout(len(shape))
        for dim, (size, parts) in enumerate(zip(shape, layout.parts, strict=True)):
            if size % parts:
                padded = -(-size // parts) * parts
                raise ShardingError(
                    f"dim {dim} of the array cannot be split evenly",
                    got=f"shape {shape}, {self._spelled()}",
                    rule=f"{size} must be a multiple of {parts}, {self._cut_words(dim, layout)}",
                    try_=f"pad dim {dim} to {padded}, or keep it whole{self._kept_whole(dim, layout)}",
                )
        return layout

    def _spelled(self) -> str:
        return repr(self)

    def _cut_words(self, dim: int, layout: Layout) -> str:
        return "the number of parts that the sharding cuts it into"

    def _kept_whole(self, dim: int, layout: Layout) -> str:
        return ""

    @abstractmethod
    def _own_layout(self) -> Layout: ...

    def _repr_html_(self) -> str:
        return sharding_html(self._own_layout(), repr(self))


class SingleDeviceSharding(Sharding):
    """The whole array on one device.

    Args:
        device: the device.
        others: JAX's memory_kind may be None.

    Raises:
        ShardingError: not a Device.
        DtypeError: another argument.

    Communication: none.

    Example:
        >>> SingleDeviceSharding(Device(0)).shard_shape((4, 2))
        (4, 2)
    """

    def __init__(self, device: Device, **others: Any) -> None:
        if others:
            check_others(SingleDeviceSharding, others)
        if not isinstance(device, Device):
            raise ShardingError(
                "SingleDeviceSharding takes one device",
                got=f"{device!r} ({type(device).__name__})",
                try_="SingleDeviceSharding(ts.devices()[0])",
            )
        self.device = device

    @property
    def devices(self) -> tuple[Device, ...]:
        """The one device."""
        return (self.device,)

    def layout(self, ndim: int) -> Layout:
        """The layout of an array of `ndim` dims."""
        return Layout((self.device.id,), (), ((),) * ndim, self.device.platform)

    def _own_layout(self) -> Layout:
        return self.layout(2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and self.device == other.device

    def __hash__(self) -> int:
        return hash((SingleDeviceSharding, self.device))

    def __repr__(self) -> str:
        return f"SingleDeviceSharding({self.device!r})"


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of ints. Raises DtypeError for anything else."""
    sizes = tuple(shape) if isinstance(shape, Iterable) else (-1,)
    if any(not isinstance(n, Integral) or n < 0 for n in sizes):
        got = f"{reprlib.repr(shape)} ({type(shape).__name__})"
        raise DtypeError("not a shape", got=got, rule="a shape is a tuple of ints that are 0 or more", try_="(8, 4)")
    return tuple(map(int, sizes))


def rank_error(sharding: Sharding, ndim: int, own: str, instead: str) -> ShardingError:
    """The error for `sharding`, which is for `own`, with an array of `ndim` dims; `instead` would fit."""
    return ShardingError(
        "the sharding does not fit the array's rank",
        got=f"a {ndim}-d array with {sharding!r}, which is for {own}",
        rule="a sharding says for each dim of the array how it is cut",
        try_=instead,
    )
