"""`create_device_mesh`, under the module name that JAX gives it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyshard.core.devices import Device
from tinyshard.sharding.mesh import device_grid

__all__ = ["create_device_mesh"]


def create_device_mesh(mesh_shape: int | Sequence[int], devices: Sequence[Device] | None = None) -> np.ndarray:
    """Arrange all devices in an array of the given shape.

    Args:
        mesh_shape: sizes whose product is the number of devices.
        devices: the devices to use; by default `ts.devices()`.

    Returns:
        A NumPy object array of `Device`s.

    Raises:
        MeshError: the product of the sizes is not the number of devices.

    Communication: none.

    In JAX: the order follows the hardware's topology (a TPU's torus); worker processes have none, so ids ascend.

    Example:
        >>> from tinyshard.core.devices import Device
        >>> create_device_mesh((2, 2), [Device(i) for i in range(4)]).shape
        (2, 2)
    """
    return device_grid(mesh_shape, devices, whole=True)
