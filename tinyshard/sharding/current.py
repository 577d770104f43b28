"""The current mesh: that of `set_mesh` or `with mesh:`, or of a mapped function."""

from __future__ import annotations

from tinyshard.core import axis_names
from tinyshard.sharding.axis_types import AxisType
from tinyshard.sharding.mesh import AbstractMesh, Mesh, current_mesh


def get_mesh() -> Mesh | None:
    """The mesh that `set_mesh` or `with mesh:` made current.

    Returns:
        The mesh; None if there is none.

    Communication: none.

    In JAX: an empty mesh if there is none; and an error within jit.

    Example:
        >>> with AbstractMesh((2,), "x"):
        ...     get_mesh()
        AbstractMesh('x': 2)
    """
    return current_mesh()


def get_abstract_mesh() -> AbstractMesh | None:
    """The current mesh without its devices; within shard_map and pmap the mapped axes are Manual.

    Returns:
        An AbstractMesh; None if there is no current mesh.

    Communication: none.

    In JAX: an empty mesh if there is none.

    Example:
        >>> with AbstractMesh((2,), "x", axis_types=(AxisType.Explicit,)):
        ...     get_abstract_mesh().axis_types
        (Explicit,)
    """
    shared, left = axis_names.shared_mesh()
    mapped = {name: axis_names.find(name).size for name in axis_names.device_names()}
    sizes = mapped if shared is None else shared.shape
    if sizes:
        types = tuple(AxisType.Auto if name in left else AxisType.Manual for name in sizes)
        return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
    mesh = current_mesh()
    return None if mesh is None else mesh.abstract_mesh
