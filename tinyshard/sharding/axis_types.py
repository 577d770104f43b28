"""The type of a mesh's axes: what decides how values are cut along them.

Auto        the partitioner, by the bytes that are sent
Explicit    the types of the values: each op follows its operands, and is an error if they leave a choice
Manual      the code itself, which is for one device: shard_map makes the axes of its mesh Manual
"""

from __future__ import annotations

import enum
from typing import Any

from tinyshard.core.errors import MeshError


class AxisType(enum.Enum):
    """The type of a mesh's axes: `Auto`, `Explicit` or `Manual`.

    Communication: none.

    In JAX: axes of one mesh may be of several types; here all that are not Manual are of one. Without axis_types
    `jax.make_mesh` makes Explicit ones, and `ts.make_mesh` Auto ones.

    Example:
        >>> import tinyshard as ts
        >>> ts.AbstractMesh((4,), "x", axis_types=(AxisType.Explicit,))
        AbstractMesh('x': 4, axis_types=(Explicit,))
    """

    Auto = "auto"
    Explicit = "explicit"
    Manual = "manual"

    def __repr__(self) -> str:
        return self.name


def checked_types(axis_types: Any, names: tuple[str, ...], *, may_be_manual: bool) -> tuple[AxisType, ...]:
    """The type of each axis.

    Raises:
        MeshError: not a type for each axis, several types, or Manual for a mesh of devices.
    """
    given = (axis_types,) if isinstance(axis_types, AxisType) else tuple(axis_types)
    if len(given) != len(names) or not all(isinstance(each, AxisType) for each in given):
        raise MeshError(
            "axis_types has a type for each axis",
            got=f"axis_types={axis_types!r} for the axes {names}",
            rule="a type is AxisType.Auto, AxisType.Explicit or AxisType.Manual",
            try_=f"axis_types=(ts.AxisType.Explicit,) * {len(names)}",
        )
    if len(set(given) - {AxisType.Manual}) > 1:
        raise MeshError(
            "the axes of a mesh are of several types",
            got=f"axis_types={given!r}",
            rule="here all axes of a mesh are of one type; in JAX they may differ",
            try_=f"axis_types=(ts.AxisType.Explicit,) * {len(names)}",
        )
    if AxisType.Manual in given and not may_be_manual:
        raise MeshError(
            "a mesh of devices has Manual axes",
            got=f"axis_types={given!r}",
            rule="shard_map makes the axes of its mesh Manual for the function that it maps",
            try_="ts.shard_map(f, mesh=mesh, ...), of a mesh whose axes are Auto or Explicit",
        )
    return given
