"""Flags for a block of code: `with ts.default_device(device):`; and the default device of a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinyshard.core import config
from tinyshard.core.devices import Device
from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime import lifecycle


@contextmanager
def _flag(name: str, value: Any) -> Iterator[None]:
    before = config.read(name)
    config.update(name, value)
    try:
        yield
    finally:
        config.update(name, before)


def threefry_partitionable(value: bool = True) -> Any:
    """Within a block, whether a random number depends only on its own counter.

    Args:
        value: of the flag of this name, as `ts.config.update` takes it.

    Returns:
        A context manager.

    Raises:
        UnknownFlagError: when it is entered, if the value is not a bool.

    Communication: none.

    Example:
        >>> with threefry_partitionable(False):
        ...     config.read("threefry_partitionable")
        False
    """
    return _flag("threefry_partitionable", value)


def default_device(device: Device | None) -> Any:
    """Within a block, the device of values without a placement: those of `ts.array`, draws, and plain `device_put`.

    Args:
        device: one of `ts.devices()`; None for the first one.

    Returns:
        A context manager. For the rest of the program: `ts.config.update("default_device", device)`.

    Raises:
        UnknownFlagError: when it is entered, if it is not a device.

    Communication: none.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> with default_device(ts.devices()[1]):
        ...     ts.array([1.0]).devices()
        {CPU 1}
    """
    return _flag("default_device", device)


def disable_jit(disable: bool = True) -> Any:
    """Within a block, jitted functions run op by op, so that `print` and a debugger see values.

    Args:
        disable: False for a block in which they are jitted again.

    Returns:
        A context manager. For the rest of the program: `ts.config.update("disable_jit", True)`.

    Raises:
        UnknownFlagError: when it is entered, if the value is not a bool.

    Communication: none.

    In JAX: pmap, too. Here pmap and shard_map are still traced: their functions run on the devices.

    Example:
        >>> import torch, tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> with disable_jit():
        ...     ts.jit(lambda x: 1 if x > 0 else -1)(torch.tensor(3.0))
        1
    """
    return _flag("disable_jit", disable)


def device_by_default() -> Device:
    """The device of a value without a placement.

    Raises:
        RuntimeStateError: it was set to a device that does not exist any more.
    """
    devices, chosen = lifecycle.devices(), config.read("default_device")
    if chosen is None:
        return devices[0]
    if chosen not in devices:
        raise RuntimeStateError(
            "the default device is not among the devices",
            got=f"{chosen!r}; {len(devices)} devices are there",
            try_="ts.config.update('default_device', ts.devices()[0]), or None",
        )
    return devices[devices.index(chosen)]
