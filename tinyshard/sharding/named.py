"""NamedSharding and PartitionSpec: each dim of an array is cut by named axes of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyshard.core.devices import Device
from tinyshard.core.errors import ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Axes, Layout, coarsest, refine
from tinyshard.sharding.base import Sharding, rank_error
from tinyshard.sharding.mesh import Mesh, layout_on


class PartitionSpec(tuple[Any, ...]):
    """For each dim of an array, the mesh axis (or axes) that cut it; None or nothing keeps the dim whole.

    Args:
        entries: each an axis name, a tuple of names (most significant first), or None. A tuple of one name is that
            name, and an empty one is None.

    Raises:
        ShardingError: anything but names.

    Communication: none.

    Example:
        >>> P("a", None, ("b", "c"))
        P('a', None, ('b', 'c'))
        >>> P(("a",)) + P(None)
        P('a', None)
    """

    __slots__ = ()

    def __new__(cls, *entries: str | tuple[str, ...] | None) -> PartitionSpec:
        """One entry per dim."""
        return super().__new__(cls, tuple(map(_entry, entries)))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __add__(self, other: Any) -> PartitionSpec:
        return PartitionSpec(*self, *other) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> PartitionSpec:
        return PartitionSpec(*other, *self) if isinstance(other, tuple) else NotImplemented

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"


def _entry(entry: Any) -> Any:
    """An entry in its canonical form: not a list, not a tuple of one name or none."""
    names = () if entry is None else tuple(entry) if isinstance(entry, list | tuple) else (entry,)
    if not all(isinstance(name, str) for name in names):
        raise ShardingError(
            "a spec is made of axis names",
            got=f"{entry!r} ({type(entry).__name__})",
            rule="an entry is an axis name, a tuple of names, or None; nothing is nested deeper",
            try_="P(('a', 'b'), None) for a dim that two axes cut, and one that none cuts",
        )
    return names if len(names) > 1 else names[0] if names else None


P = PartitionSpec


class NamedSharding(Sharding):
    """A mesh, and for each dim of the array the mesh axes that cut it.

    Args:
        mesh: the devices and the names of their axes.
        spec: a PartitionSpec; dims past its end are whole, and along axes that it does not name there are copies.
        others: JAX's memory_kind may be None.

    Raises:
        ShardingError: a name that the mesh does not have, or an axis used twice.
        DtypeError: another argument.

    Communication: none.

    Example:
        >>> from tinyshard.sharding.mesh import AbstractMesh
        >>> NamedSharding(AbstractMesh((4, 2), ("a", "b")), P("a")).shard_shape((8, 6))
        (2, 6)
    """

    def __init__(self, mesh: Mesh, spec: PartitionSpec, **others: Any) -> None:
        if others:
            check_others(NamedSharding, others)
        if not isinstance(mesh, Mesh):
            raise ShardingError(
                "a NamedSharding takes a mesh first",
                got=f"{mesh!r} ({type(mesh).__name__})",
                try_="NamedSharding(ts.make_mesh((4, 2), ('a', 'b')), P('a', 'b'))",
            )
        if not isinstance(spec, PartitionSpec):
            raise ShardingError(
                "a NamedSharding takes a PartitionSpec second",
                got=f"{spec!r} ({type(spec).__name__})",
                try_="P('a', 'b')",
            )
        self.mesh = mesh
        self.spec = spec
        self._names: tuple[tuple[str, ...], ...] = tuple(
            () if e is None else (e,) if isinstance(e, str) else e for e in spec
        )
        _check_spec(mesh, spec, self._names)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The mesh's devices, row-major."""
        return tuple(self.mesh.devices.flat)

    def layout(self, ndim: int) -> Layout:
        """The layout of an array of `ndim` dims. Raises ShardingError if the spec has more entries."""
        if len(self.spec) > ndim:
            own = f"arrays of {len(self.spec)} dims or more"
            entries = "entry" if ndim == 1 else "entries"
            raise rank_error(self, ndim, own, f"a spec of at most {ndim} {entries}: {P(*self.spec[:ndim])!r}")
        number = {name: i for i, name in enumerate(self.mesh.axis_names)}
        dims = tuple(tuple(number[n] for n in names) for names in self._names)
        whole: tuple[tuple[int, ...], ...] = ((),) * (ndim - len(dims))
        return layout_on(self.mesh, dims + whole)

    def _own_layout(self) -> Layout:
        return self.layout(max(len(self.spec), 1))

    def _spelled(self) -> str:
        return f"spec {self.spec!r}, mesh {self.mesh.shape}"

    def _cut_words(self, dim: int, layout: Layout) -> str:
        names = self._names[dim]
        if len(names) == 1:
            return f"the size of mesh axis {names[0]!r}"
        return f"the product of the sizes of mesh axes {names}"

    def _kept_whole(self, dim: int, layout: Layout) -> str:
        entries = [None if i == dim else e for i, e in enumerate(self.spec)]
        while entries and entries[-1] is None:
            entries.pop()
        return f": {P(*entries)!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSharding) and (self.mesh, self.spec) == (other.mesh, other.spec)

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec))

    def __repr__(self) -> str:
        return f"NamedSharding({self.mesh!r}, {self.spec!r})"


def _check_spec(mesh: Mesh, spec: PartitionSpec, names: Sequence[tuple[str, ...]]) -> None:
    used = [name for group in names for name in group]
    for name in used:
        if name not in mesh.axis_names:
            raise ShardingError(
                f"the mesh has no axis named {name!r}",
                got=f"spec {spec!r}",
                rule=f"each name is one of the mesh's axes: {mesh.axis_names}",
                try_="name one of these axes, or None to keep the dim whole",
            )
    twice = sorted({name for name in used if used.count(name) > 1})
    if twice:
        raise ShardingError(
            f"the spec uses mesh axis {twice[0]!r} twice",
            got=f"spec {spec!r}, mesh {mesh.shape}",
            rule="an axis cuts at most one dim",
            try_="a mesh with another axis, or None for one of the dims",
        )


def spec_for(layout: Layout, mesh: Mesh) -> PartitionSpec | None:
    """The spec of `layout` on `mesh`; None if it cuts a dim by part of an axis."""
    whole = layout_on(mesh, tuple((i,) for i in range(len(mesh.axis_sizes))))
    common = refine([coarsest(layout), whole])
    if common is None:
        return None
    fine, axes = common
    dims: list[Axes] = []
    for rest in fine.dims:
        dims.append(())
        while rest:
            number = next((i for i, pieces in enumerate(axes.dims) if pieces and rest[: len(pieces)] == pieces), None)
            if number is None:
                return None  # the cut ends inside a mesh axis
            dims[-1] += (number,)
            rest = rest[len(axes.dims[number]) :]
    return spec_of(dims, mesh)


def spec_of(dims: Sequence[Axes], mesh: Mesh) -> PartitionSpec:
    """The spec that cuts each dim by the axes of these numbers."""
    entries = [tuple(mesh.axis_names[a] for a in cut) for cut in dims]
    while entries and not entries[-1]:
        entries.pop()
    return PartitionSpec(*entries)
