"""SingleDeviceSharding: the whole array on one device."""

from __future__ import annotations

from tinyshard.core.devices import Device
from tinyshard.core.errors import ShardingError, message
from tinyshard.core.layout import Layout
from tinyshard.sharding.base import Sharding


class SingleDeviceSharding(Sharding):
    """The whole array on one device.

    Args:
        device: the device.

    Raises:
        ShardingError: not a Device.

    Communication: none.

    Example:
        >>> SingleDeviceSharding(Device(0)).shard_shape((4, 2))
        (4, 2)
    """

    def __init__(self, device: Device) -> None:
        if not isinstance(device, Device):
            raise ShardingError(
                message(
                    "SingleDeviceSharding takes one device",
                    got=f"{device!r} ({type(device).__name__})",
                    try_="SingleDeviceSharding(ts.devices()[0])",
                )
            )
        self.device = device

    @property
    def devices(self) -> tuple[Device, ...]:
        """The one device."""
        return (self.device,)

    def layout(self, ndim: int) -> Layout:
        """The plain form for an array of `ndim` dims."""
        return Layout((self.device.id,), (), ((),) * ndim, self.device.platform)

    def _own_layout(self) -> Layout:
        return self.layout(2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and self.device == other.device

    def __hash__(self) -> int:
        return hash((SingleDeviceSharding, self.device))

    def __repr__(self) -> str:
        return f"SingleDeviceSharding({self.device!r})"
