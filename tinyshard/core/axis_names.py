"""The names of mapped axes in scope: how `psum(x, "i")` looks up "i".

vmap binds a name to one level of torch.func; pmap and shard_map bind names to axes of the mesh for a region of code
that every device runs. A region starts with no levels of torch.func: names that vmap bound outside of it stay free
inside, and are bound when the whole region is vmapped.

    vmap(f, axis_name="j")          j: level 1
    pmap(vmap(f, "j"), "i")         i: axis of devices, region 1; j: level 1 in region 1
    vmap(pmap(f, "i"), "j")         i: axis of devices, region 1; j: free in region 1
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

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
    """

    name: str
    size: int
    region: int
    level: int
    index: torch.Tensor | None


_scope: ContextVar[tuple[Name, ...]] = ContextVar("tinyshard_names", default=())
_cut: ContextVar[tuple[tuple[int, tuple[str, ...]], ...]] = ContextVar("tinyshard_spmd_axes", default=())
_region: ContextVar[int] = ContextVar("tinyshard_region", default=0)


def level() -> int:
    """The present level of torch.func; 0 for none."""
    return torch._C._functorch.maybe_current_level() or 0


def in_scope() -> tuple[Name, ...]:
    """All names, innermost first."""
    return tuple(reversed(_scope.get()))


def device_names() -> tuple[str, ...]:
    """The names of the axes of devices in scope, outermost first."""
    return tuple(n.name for n in _scope.get() if n.level == 0)


def find(name: str) -> Name:
    """The innermost binding of a name.

    Raises:
        AxisNameError: it is not bound.
    """
    for known in in_scope():
        if known.name == name:
            return known
    names = ", ".join(f"{n.name!r} of size {n.size}" for n in in_scope()) or "none"
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
def mapped_to_devices(axes: Mapping[str, int]) -> Iterator[None]:
    """Bind the axes of a mesh, and start a region of code that every device runs."""
    number = _region.get() + 1
    bound = tuple(Name(name, size, number, 0, None) for name, size in axes.items())
    scope, region = _scope.set((*_scope.get(), *bound)), _region.set(number)
    try:
        yield
    finally:
        _scope.reset(scope)
        _region.reset(region)
