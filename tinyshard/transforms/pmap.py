"""pmap: one row of the arguments for each device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils._pytree import tree_leaves

from tinyshard.arrays.placement import device_put
from tinyshard.compile.donation import checked_donation
from tinyshard.compile.executable import check_devices_live
from tinyshard.compile.signature import Bound, checked_numbers
from tinyshard.core.devices import Device
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Layout
from tinyshard.core.thread_state import innermost
from tinyshard.runtime import lifecycle
from tinyshard.sharding.mesh import Mesh, layout_on
from tinyshard.sharding.named import NamedSharding, spec_of
from tinyshard.transforms.axes import checked_axis_size, mapped_dims, placed_dims
from tinyshard.transforms.mapped_function import OverDevices, Split

UNNAMED = "_pmap"  # the mesh axis of a pmap without axis_name
_MOST_ADVISED = 64  # processes on one machine; `init` takes more


class Pmapped(OverDevices):
    """A function under pmap. Made by `pmap`."""

    what = "pmap"

    def __init__(
        self,
        function: Callable[..., Any],
        axis_name: str | None,
        in_axes: Any,
        out_axes: Any,
        static_numbers: Sequence[int],
        devices: Sequence[Device] | None,
        axis_size: int | None,
        donate_argnums: Any = (),
    ) -> None:
        super().__init__(function, static_numbers)
        donated = checked_donation(function, donate_argnums, (), self._static_argnums, "pmap")
        self._donate_argnums, self._donate_argnames = donated
        self._axis_name = axis_name or UNNAMED
        self._in_axes = in_axes
        self._out_axes = out_axes
        self._devices = devices
        self._axis_size = axis_size

    def _split(self, bound: Bound) -> Split:
        args, kwargs = bound.arguments
        axes = self._axes(bound, args)
        every, size = mapped_dims("pmap", self._function, axes, args, kwargs, self._axis_size)
        all_leaves = tree_leaves((tuple(args), kwargs))
        dims = [d for x, d in zip(all_leaves, every, strict=True) if x is not None]
        check_devices_live(bound.operands)
        mesh = self._mesh(size)
        ins = tuple(_rows(mesh, len(x.shape), d) for x, d in zip(bound.operands, dims, strict=True))
        return Split(mesh, frozenset(mesh.axis_names), ins, tuple(dims))

    def _axes(self, bound: Bound, args: Sequence[Any]) -> Any:
        """in_axes of the traced arguments, without those of static ones."""
        static = {k for k, _, _ in bound.signature.static if isinstance(k, int)}
        whole = isinstance(self._in_axes, list | tuple) and len(self._in_axes) == len(args) + len(static)
        return tuple(a for i, a in enumerate(self._in_axes) if i not in static) if whole else self._in_axes

    def _mesh(self, size: int) -> Mesh:
        if not size:
            raise MappingError("pmap over an axis of size 0", got="no row", rule="each device takes one row")
        devices = list(self._devices) if self._devices is not None else list(lifecycle.devices())
        if size > len(devices):
            as_many = f"; or ts.init(devices={size})" if size <= _MOST_ADVISED else ""
            raise MappingError(
                "pmap has more rows than devices",
                got=f"a mapped axis of size {size}, {len(devices)} devices",
                rule="each device takes one row",
                try_=f"pmap(vmap(f)) on rows of shape ({len(devices)}, n, ...){as_many}",
            )
        if self._devices is not None and size != len(devices):
            raise MappingError(
                "pmap's devices do not fit the mapped axis", got=f"{len(devices)} devices for size {size}"
            )
        return Mesh(np.array(devices[:size], dtype=object), (self._axis_name,))

    def _outs(self, split: Split, out: Any) -> list[tuple[Layout, int | None]]:
        dims = placed_dims("pmap", self._out_axes, out)
        found: list[tuple[Layout, int | None]] = []
        for x, dim in zip(tree_leaves(out), dims, strict=True):
            found.append((_rows(split.mesh, 0 if x is None else x.dim() + (dim is not None), dim), dim))
        return found

    def _apply_in_shardings(self, bound: Bound, *, described: bool = False) -> list[Any]:
        """The operands; those committed to other devices are put on the mesh's."""
        mesh = bound.split.mesh

        def moved(x: Any, target: Layout) -> Any:
            there = innermost(x)  # without a transformation's wrappers
            layout = getattr(there, "_layout", None)
            is_elsewhere = layout is not None and there.committed and layout.devices != target.devices
            return device_put(x, NamedSharding(mesh, spec_of(target.dims, mesh))) if is_elsewhere else x

        return [moved(x, target) for x, target in zip(bound.operands, bound.split.ins, strict=True)]


def _rows(mesh: Mesh, ndim: int, dim: int | None) -> Layout:
    """One row of `dim` for each device; the whole if `dim` is None."""
    return layout_on(mesh, tuple((0,) if i == dim else () for i in range(ndim)))


def pmap(
    fun: Callable[..., Any] | None = None,
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Sequence[int] = (),
    devices: Sequence[Device] | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Sequence[int] = (),
    **others: Any,
) -> Any:
    """Map a function over devices: each runs it on one row of the arguments.

    Traced once for each signature, as by jit: one program, one message per call. Also a decorator.

    Args:
        fun: a function of trees of tensors and numbers that returns a tree of tensors. Tensors that it closes over are
            replicated, and are looked up at each call.
        axis_name: the name of the axis of devices, for collectives inside `fun`.
        in_axes: the dim of each argument whose rows are distributed; None for an argument that is replicated.
            An int, or a tuple with an entry for each positional argument, each a tree that is a prefix of it.
        out_axes: likewise the dim of the results that counts the devices; None takes the value of one device.
        static_broadcasted_argnums: positions of arguments that are Python values.
        devices: the devices, as many as rows; by default the first ones of `ts.devices()`.
        axis_size: the number of rows, where no argument is mapped.
        donate_argnums: positions of arguments whose memory the call may reuse, as for jit.

    Returns:
        A function of the stacked arguments, whose results are Arrays cut over the mapped dim. It has `lower`.

    Raises:
        MappingError: sizes that differ, more rows than devices, in_axes that do not fit, a pmap inside another.
        StaticArgumentError: a static argument that cannot be hashed.
        TracedValueError: the function branches in Python on a traced value.

    Communication: arguments that are not in place are moved; then the function's collectives.

    In JAX: today a wrapper of shard_map. axis_size alone does not suffice in JAX. A pmap inside a pmap is an error in
    JAX too. A name that an outer vmap also binds means vmap's axis in JAX; here the inner binding counts.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> pmap(lambda v: v / ts.lax.psum(v, "i"), axis_name="i")(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        Array([0.1, 0.2, 0.3, 0.4], dtype=float32)
    """
    check_others(pmap, others)
    if fun is None:
        return functools.partial(
            pmap,
            axis_name=axis_name,
            in_axes=in_axes,
            out_axes=out_axes,
            static_broadcasted_argnums=static_broadcasted_argnums,
            devices=devices,
            axis_size=axis_size,
            donate_argnums=donate_argnums,
            **others,
        )
    if not callable(fun):
        raise DtypeError("pmap takes a function", got=f"{fun!r} ({type(fun).__name__})", try_="ts.pmap(f)")
    numbers = checked_numbers(static_broadcasted_argnums, "static_broadcasted_argnums")
    axis_size = checked_axis_size(axis_size)
    return Pmapped(fun, axis_name, in_axes, out_axes, numbers, devices, axis_size, donate_argnums)
