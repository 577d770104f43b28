"""The number of this process, for programs written for several processes: here one controller drives all devices."""

from __future__ import annotations

from tinyshard.runtime import lifecycle


def process_index() -> int:
    """The number of this process among the controllers.

    Returns:
        0: there is one controller. The process of a device is `device.process_index`.

    Communication: none.

    In JAX: each host runs its own controller.

    Example:
        >>> process_index()
        0
    """
    return 0


def process_count() -> int:
    """The number of controllers.

    Returns:
        1: one controller drives the devices of all hosts.

    Communication: none.

    In JAX: each host runs its own controller.

    Example:
        >>> process_count()
        1
    """
    return 1


def local_device_count() -> int:
    """The number of devices that this process drives: all of them, on any machine.

    Returns:
        An int, that of `device_count`.

    Raises:
        RuntimeStateError: the devices cannot be started; as `devices`.

    Communication: none.

    Example:
        >>> lifecycle.init(devices=2, runtime="local")
        >>> local_device_count()
        2
    """
    return lifecycle.device_count()


def default_backend() -> str:
    """The platform of the devices.

    Returns:
        "cpu" or "gpu".

    Raises:
        RuntimeStateError: as `devices`.

    Communication: none.

    Example:
        >>> lifecycle.init(devices=2, runtime="local")
        >>> default_backend()
        'cpu'
    """
    return str(lifecycle.devices()[0].platform)
