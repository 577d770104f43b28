"""The names of mapped axes in scope: how `psum(x, "i")` looks up "i".

vmap binds a name to one level of torch.func; pmap and shard_map bind names to axes of the mesh for a region of code
that every device runs. A region starts with no levels of torch.func: names that vmap bound outside of it stay free
inside, and are bound when the whole region is vmapped.

    vmap(f, axis_name="j")          j: level 1
    pmap(vmap(f, "j"), "i")         i: axis of devices, region 1; j: level 1 in region 1
    vmap(pmap(f, "i"), "j")         i: axis of devices, region 1; j: free in region 1

A shard_map over a part of a mesh's axes binds the names of the others, too: they hide outer ones, and are an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinyshard.core.errors import AxisNameError


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A name in scope.

    Attributes:
        name: the user's name of the axis.
        size: of the axis.
        region: the number of nested regions of devices in which it was bound; 0 outside of all.
        level: the level of torch.func that vmap opened for it; 0 for an axis of devices.
        index: for vmap, each example's position along the axis, int32[].
        is_left: whether the axis_names of the present region leave it out: no collective may name it.
    """

    name: str
    size: int
    region: int
    level: int
    index: torch.Tensor | None
    is_left: bool = False


_scope: ContextVar[tuple[Name, ...]] = ContextVar("tinyshard_names", default=())
_cut: ContextVar[tuple[tuple[int, tuple[str, ...]], ...]] = ContextVar("tinyshard_spmd_axes", default=())
_region: ContextVar[int] = ContextVar("tinyshard_region", default=0)
_shared: ContextVar[tuple[Any, frozenset[str]]] = ContextVar("tinyshard_shared_mesh", default=(None, frozenset()))


def level() -> int:
    """The present level of torch.func; 0 for none."""
    return torch._C._functorch.maybe_current_level() or 0


def in_scope() -> tuple[Name, ...]:
    """All names, innermost first."""
    return tuple(reversed(_scope.get()))


def device_names() -> tuple[str, ...]:
    """The names of the axes of devices in scope, outermost first."""
    return tuple(n.name for n in _scope.get() if n.level == 0 and not n.is_left)


def shared_mesh() -> tuple[Any, frozenset[str]]:
    """The mesh of the present region, and those of its axes that are left to the partitioner.

    Returns:
        The mesh and the names; None and no names where the region has all axes of its mesh.
    """
    return _shared.get()


def find(name: str) -> Name:
    """The innermost binding of a name.

    Raises:
        AxisNameError: it is not bound, or is left to the partitioner.
    """
    known = next((n for n in in_scope() if n.name == name), None)
    if known is not None and not known.is_left:
        return known
    bound = {n.name: n for n in reversed(in_scope())}
    names = ", ".join(f"{n.name!r} of size {n.size}" for n in reversed(bound.values()) if not n.is_left) or "none"
    if known is not None:
        raise AxisNameError(
            f"the axis {name!r} is not in the axis_names of this shard_map",
            got=f"names in scope: {names}",
            rule="collectives name the axes in axis_names; along the others values are whole",
            try_=f"{name!r} in axis_names and in the specs; or x.sum(...), which sums over the whole of a dim",
        )
    raise AxisNameError(
        f"unbound axis name: {name!r}",
        got=f"names in scope: {names}",
        rule="a name is bound inside the function that is mapped with axis_name, or by shard_map's mesh",
        try_=f"pmap(f, axis_name={name!r}) or vmap(f, axis_name={name!r})",
    )


def is_free(name: Name) -> bool:
    """Whether vmap bound it outside of the region that is being traced."""
    return name.level != 0 and name.region < _region.get()


def at_level(number: int) -> Name | None:
    """The name that vmap bound to this level of torch.func, in this region."""
    for known in in_scope():
        if known.level == number and not is_free(known):
            return known
    return None


@contextlib.contextmanager
def mapped_by_vmap(name: str, size: int, index: torch.Tensor) -> Iterator[None]:
    """Bind a name to the present level of torch.func."""
    token = _scope.set((*_scope.get(), Name(name, size, _region.get(), level(), index)))
    try:
        yield
    finally:
        _scope.reset(token)


@contextlib.contextmanager
def cut_by(names: tuple[str, ...]) -> Iterator[None]:
    """A block in which the dim mapped by the present level of torch.func is cut by these axes in named shardings."""
    token = _cut.set((*_cut.get(), (level(), names)))
    try:
        yield
    finally:
        _cut.reset(token)


def cutting(number: int) -> tuple[str, ...]:
    """The axes of a mesh that cut the dim that a level of torch.func maps."""
    return dict(_cut.get()).get(number, ())


@contextlib.contextmanager
def in_region() -> Iterator[None]:
    """Start a region of code that every device runs, of the names that are in scope."""
    region = _region.set(_region.get() + 1)
    try:
        yield
    finally:
        _region.reset(region)


@contextlib.contextmanager
def mapped_to_devices(mesh: Any, names: Collection[str]) -> Iterator[None]:
    """Bind the axes of a mesh, and start a region of code that every device runs.

    Args:
        mesh: the mesh; its `shape` has the size of each axis.
        names: those of its axes that collectives may name; the others are left to the partitioner.
    """
    number = _region.get() + 1
    bound = tuple(Name(name, size, number, 0, None, name not in names) for name, size in mesh.shape.items())
    outer = tuple(replace(n, is_left=n.level == 0 or n.is_left) for n in _scope.get())
    around, left = shared_mesh()
    left = (left if around is not None else frozenset(mesh.shape)) - frozenset(names)
    with in_region():
        scope, shared = _scope.set((*outer, *bound)), _shared.set((mesh if left else None, left))
        try:
            yield
        finally:
            _scope.reset(scope)
            _shared.reset(shared)
