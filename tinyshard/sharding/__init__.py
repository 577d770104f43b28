"""Shardings: how a learner says where an array lives.

    base         Sharding: devices, shard_shape, devices_indices_map, is_equivalent_to; SingleDeviceSharding(device)
    named        NamedSharding(mesh, P('a', 'b'))
    positional   PositionalSharding(devices).reshape(4, 2).replicate(0)
    mesh         Mesh, AbstractMesh, make_mesh, set_mesh: devices in a grid whose axes have names
    of_module    `ts.shardings`: of the parameters of a module, by patterns of their names
    contexts     default_device, disable_jit, threefry_partitionable: flags for a block of code
    mesh_utils   `ts.mesh_utils`: create_device_mesh
    prefix       a tree of shardings that is a prefix of a tree of values

The table of contents is as `jax.sharding`'s, which also has the meshes.
"""

from __future__ import annotations

from tinyshard.core.absent import names_of as _names_of
from tinyshard.core.devices import Device
from tinyshard.core.layout import Layout
from tinyshard.sharding.base import Sharding, SingleDeviceSharding
from tinyshard.sharding.mesh import AbstractMesh, Mesh
from tinyshard.sharding.named import NamedSharding, P, PartitionSpec, spec_for
from tinyshard.sharding.positional import PositionalSharding

__all__ = [
    "AbstractMesh",
    "Mesh",
    "NamedSharding",
    "P",
    "PartitionSpec",
    "PositionalSharding",
    "Sharding",
    "SingleDeviceSharding",
]

__getattr__ = _names_of(__name__, __all__)


def express(layout: Layout, mesh: Mesh | None) -> Sharding:
    """The sharding whose plain form is `layout`: in the words of `mesh` where they can say it."""
    if len(layout.devices) == 1:
        return SingleDeviceSharding(Device(layout.devices[0], layout.platform))
    if mesh is not None and mesh.device_ids == layout.devices:
        spec = spec_for(layout, mesh)
        if spec is not None:
            return NamedSharding(mesh, spec)
    return PositionalSharding.from_layout(layout)
