"""Shardings: the user's descriptions of where an array is.

    base         Sharding: devices, shard_shape, devices_indices_map, is_equivalent_to; SingleDeviceSharding(device)
    named        NamedSharding(mesh, P('a', 'b'))
    positional   PositionalSharding(devices).reshape(4, 2).replicate(0)
    mesh         Mesh, AbstractMesh, make_mesh, set_mesh: devices in a grid whose axes have names
    current      get_mesh, get_abstract_mesh: the mesh that set_mesh chose
    axis_types   AxisType: whether the partitioner, or the type of each value, decides how it is cut along an axis
    of_module    `ts.shardings`: the shardings of a module's parameters, by patterns of their names
    contexts     default_device, disable_jit, threefry_partitionable: flags for a block of code
    mesh_utils   `ts.mesh_utils`: create_device_mesh
    prefix       a tree of shardings that is a prefix of a tree of values

Its contents are those of `jax.sharding`, which also has the meshes.
"""

from __future__ import annotations

from tinyshard.core.devices import Device
from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.core.layout import Layout
from tinyshard.sharding.axis_types import AxisType
from tinyshard.sharding.base import Sharding, SingleDeviceSharding
from tinyshard.sharding.current import get_abstract_mesh, get_mesh
from tinyshard.sharding.mesh import AbstractMesh, Mesh, set_mesh
from tinyshard.sharding.named import NamedSharding, P, PartitionSpec, spec_for
from tinyshard.sharding.positional import PositionalSharding

__all__ = [
    "AbstractMesh",
    "AxisType",
    "Mesh",
    "NamedSharding",
    "P",
    "PartitionSpec",
    "PositionalSharding",
    "Sharding",
    "SingleDeviceSharding",
    "get_abstract_mesh",
    "get_mesh",
    "set_mesh",
]

__getattr__ = _names_of(__name__, __all__)


def express(layout: Layout, mesh: Mesh | None) -> Sharding:
    """The sharding with this layout: a NamedSharding on `mesh` if its axes can express it."""
    if len(layout.devices) == 1:
        return SingleDeviceSharding(Device(layout.devices[0], layout.platform))
    if mesh is not None and mesh.device_ids == layout.devices:
        spec = spec_for(layout, mesh)
        if spec is not None:
            return NamedSharding(mesh, spec)
    return PositionalSharding.from_layout(layout)
