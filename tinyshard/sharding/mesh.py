"""Meshes: devices arranged in a grid whose axes have names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from types import TracebackType
from typing import Any

import numpy as np

from tinyshard.core import config
from tinyshard.core.devices import Device
from tinyshard.core.errors import MeshError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Axes, Layout
from tinyshard.draw.html import mesh_html
from tinyshard.runtime import lifecycle
from tinyshard.sharding.axis_types import AxisType, checked_types

_entered: list[Any] = []  # the meshes that were current before each open `with mesh:`


class Mesh:
    """A grid of devices with a name for each axis.

    Args:
        devices: an array (or nested list) of distinct `Device`s, one dim for each name.
        axis_names: a name for each axis, or one name for a 1-d mesh.
        axis_types: an `AxisType` for each axis, all the same; by default Auto.
        others: none; an argument that a mesh does not have is refused.

    Raises:
        MeshError: duplicate names, duplicate devices, a name count that is not the array's rank, or axis_types that are
            not a type for each axis, or several.
        DtypeError: an argument that a mesh does not have.

    Communication: none.

    `with mesh:` makes it the current one, as `with ts.set_mesh(mesh):` does.

    Example:
        >>> import tinyshard as ts
        >>> mesh = ts.AbstractMesh((4, 2), ("a", "b"))
        >>> mesh.shape, mesh.size
        ({'a': 4, 'b': 2}, 8)
    """

    _may_be_manual = False

    def __init__(self, devices: Any, axis_names: str | Sequence[str], axis_types: Any = None, **others: Any) -> None:
        if others:
            check_others(Mesh, others)
        grid = np.array(devices, dtype=object)
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        _check_names(names, grid.shape)
        for device in grid.flat:
            if not isinstance(device, Device):
                raise MeshError(
                    "a mesh is made of devices",
                    got=f"{device!r} ({type(device).__name__})",
                    rule="every element of `devices` is a Device",
                    try_="ts.make_mesh((4, 2), ('a', 'b'))",
                )
        if grid.size == 0:
            raise MeshError("a mesh needs at least one device", got=f"shape {grid.shape}")
        check_distinct(list(grid.flat), "the mesh")
        grid.setflags(write=False)
        self.devices = grid
        self.axis_names = names
        self.axis_types = (AxisType.Auto,) * len(names)
        if axis_types is not None:
            self.axis_types = checked_types(axis_types, names, may_be_manual=self._may_be_manual)
        self.is_explicit = AxisType.Explicit in self.axis_types
        self._device_ids = tuple(d.id for d in grid.flat)
        self._key = (type(self), self.axis_sizes, names, self._device_ids, self.platform, self.axis_types)

    @property
    def shape(self) -> dict[str, int]:
        """Axis name -> size, in axis order."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The size of each axis."""
        return tuple(self.devices.shape)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.axis_sizes)

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Ids in mesh order (row-major)."""
        return self._device_ids

    @property
    def platform(self) -> str:
        """The platform of the devices: "cpu" or "gpu"."""
        return str(self.devices.flat[0].platform)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The same mesh without its devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, axis_types=self.axis_types)

    def __enter__(self) -> Mesh:
        _entered.append(config.mesh[0])
        config.mesh[0] = self
        return self

    def __exit__(self, *error: object) -> None:
        config.mesh[0] = _entered.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n!r}: {s}" for n, s in self.shape.items())
        types = "" if set(self.axis_types) == {AxisType.Auto} else f", axis_types={self.axis_types!r}"
        return f"{type(self).__name__}({sizes}{types})"

    def _repr_html_(self) -> str:
        return mesh_html(self.axis_sizes, self.device_ids, self.axis_names, self.platform)


class AbstractMesh(Mesh):
    """A mesh without workers: planning, drawing and byte counts work on it, for thousands of devices.

    Args:
        axis_sizes: size of each axis.
        axis_names: a name for each axis.
        axis_types: an `AxisType` for each axis, all the same; by default Auto.
        others: none; an argument that a mesh does not have is refused.

    Raises:
        MeshError: a size that is not a positive int, duplicate names, not a name for each size, or axis_types as for
            Mesh.
        DtypeError: an argument that a mesh does not have.

    Communication: none; no process is started.

    Example:
        >>> AbstractMesh((64, 64), ("x", "y")).size
        4096
    """

    _may_be_manual = True  # as `get_abstract_mesh` returns it within shard_map

    def __init__(
        self, axis_sizes: int | Sequence[int], axis_names: str | Sequence[str], axis_types: Any = None, **others: Any
    ) -> None:
        check_others(AbstractMesh, others)
        sizes = checked_sizes(axis_sizes, "axis sizes")
        grid = np.empty(math.prod(sizes), dtype=object)
        grid[:] = [Device(i) for i in range(grid.size)]
        super().__init__(grid.reshape(sizes), axis_names, axis_types)


def _check_names(names: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    if any(not isinstance(n, str) for n in names):
        raise MeshError("an axis name is a string", got=f"axis names {names}")
    if len(set(names)) < len(names):
        raise MeshError(
            "a mesh has a duplicate axis name",
            got=f"axis names {names}",
            rule="each axis has a name of its own",
            try_="rename one of them",
        )
    if len(names) != len(shape):
        raise MeshError(
            "the mesh needs a name for each axis",
            got=f"{len(names)} names {names} for a device grid of shape {tuple(shape)}",
            rule="as many names as the grid has dims",
            try_=f"{len(shape)} names, or a grid of {len(names)} dims",
        )


def make_mesh(
    axis_shapes: int | Sequence[int],
    axis_names: str | Sequence[str],
    devices: Sequence[Device] | None = None,
    *,
    axis_types: Any = None,
    **others: Any,
) -> Mesh:
    """Arrange devices in a grid with named axes.

    Args:
        axis_shapes: size of each axis.
        axis_names: a name for each axis.
        devices: the devices to use, in order; by default the first of `ts.devices()` (this starts the pool).
        axis_types: an `AxisType` for each axis, all the same; by default Auto.
        others: none; an argument that make_mesh does not have is refused.

    Returns:
        A Mesh, its devices in row-major order.

    Raises:
        MeshError: more devices than there are, names that do not fit, or axis_types as for Mesh.
        DtypeError: an argument that make_mesh does not have.

    Communication: none.

    In JAX: without axis_types axes are Explicit; here they are Auto. The order follows the hardware's topology; here
    it is that of `devices`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=8, runtime="local")
        >>> make_mesh((4, 2), ("a", "b"))
        Mesh('a': 4, 'b': 2)
    """
    check_others(make_mesh, others)
    sizes = checked_sizes(axis_shapes, "mesh shape")
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    _check_names(names, sizes)
    return Mesh(device_grid(sizes, devices), names, axis_types)


def checked_sizes(sizes: Any, what: str) -> tuple[int, ...]:
    """One size or several, Python's or NumPy's ints, as a tuple of ints.

    Raises:
        MeshError: anything but positive ints.

    Example:
        >>> checked_sizes(np.array([4, 2]), "mesh shape")
        (4, 2)
    """
    given = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    if any(not isinstance(n, Integral) or n < 1 for n in given):
        raise MeshError("an axis size is a positive int", got=f"{what} {given}")
    return tuple(map(int, given))


def device_grid(
    shape: int | Sequence[int], devices: Sequence[Device] | None = None, *, whole: bool = False
) -> np.ndarray:
    """An array of devices of the given shape: the first ones of `devices`, row-major.

    Args:
        whole: require that every device is used.
    """
    if devices is None:
        devices = lifecycle.devices()
    shape = checked_sizes(shape, "mesh shape")
    count = math.prod(shape)
    if count > len(devices) or (whole and count != len(devices)):
        raise MeshError(
            "the mesh shape does not fit the number of devices",
            got=f"mesh shape {shape} ({count} devices), {len(devices)} devices are there",
            rule="the product of the axis sizes is the number of devices used",
            try_=f"ts.init(devices={count}), or a smaller mesh; AbstractMesh needs no devices",
        )
    grid = np.empty(count, dtype=object)
    grid[:] = list(devices)[:count]
    return grid.reshape(shape)


class set_mesh:
    """Make `mesh` the current one, so that a PartitionSpec can be used as a sharding.

    Call it for the rest of the program, or use it as a context manager.

    Args:
        mesh: the mesh, or None to unset it.

    Raises:
        MeshError: not a mesh.

    Communication: none.

    Example:
        >>> with set_mesh(AbstractMesh((2,), "x")):
        ...     current_mesh()
        AbstractMesh('x': 2)
    """

    def __init__(self, mesh: Mesh | None) -> None:
        if mesh is not None and not isinstance(mesh, Mesh):
            raise MeshError("set_mesh takes a mesh", got=f"{mesh!r} ({type(mesh).__name__})")
        self._mesh = mesh
        self._before = config.mesh[0]
        config.mesh[0] = mesh

    def __enter__(self) -> Mesh | None:
        return self._mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        config.mesh[0] = self._before


def layout_on(mesh: Mesh, dims: tuple[Axes, ...]) -> Layout:
    """The layout of a tensor on a mesh: for each dim the numbers of the mesh's axes that cut it."""
    return Layout(mesh.device_ids, mesh.axis_sizes, dims, mesh.platform)


def names_in(mesh: Mesh, layout: Layout) -> frozenset[str]:
    """The axes of a mesh that cut a dim of a tensor, from its layout on the mesh."""
    return frozenset(mesh.axis_names[a] for cut in layout.dims for a in cut)


def current_mesh() -> Mesh | None:
    """The mesh that `set_mesh` made current, or None."""
    mesh: Mesh | None = config.mesh[0]
    return mesh


def check_distinct(devices: Sequence[Device], what: str) -> None:
    """Raise MeshError if a device is twice in `devices`."""
    ids = [d.id for d in devices]
    twice = sorted({i for i in ids if ids.count(i) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise MeshError(
            f"{what} names a device twice",
            got=f"device ids {ids}",
            rule=f"each device appears once; {twice} appear more often",
            try_="ts.devices() lists the distinct devices",
        )
