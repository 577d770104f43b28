"""Moves tensors to devices, and Arrays from one layout to another: by a copy, or a program that moves blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.core.cache import Recent
from tinyshard.core.device_dtypes import check_holdable
from tinyshard.core.devices import Device
from tinyshard.core.errors import ShardingError
from tinyshard.core.layout import Layout, coarsest, is_same_placement, refine
from tinyshard.core.program import Builder, Program, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import ShardedVar, reshard
from tinyshard.runtime import lifecycle
from tinyshard.sharding import NamedSharding, Sharding
from tinyshard.sharding.mesh import AbstractMesh


def put_tensor(host: torch.Tensor, layout: Layout, *, committed: bool, sharding: Sharding | None = None) -> Array:
    """Copy a host tensor and send each device its block; `sharding` is the user's name of the layout.

    Raises:
        DtypeError: no device can hold such a tensor.
    """
    check_holdable(host)
    shape = tuple(host.shape)
    runtime = lifecycle.current()
    copies: dict[tuple[int, ...], torch.Tensor] = {}
    blocks = {}
    for position, device in enumerate(layout.devices):
        block = layout.block(position)
        if block not in copies:  # copies of a block share one snapshot in this process
            copies[block] = runtime.snapshot(host[layout.index(position, shape)])
        blocks[device] = copies[block]
    buffer = runtime.put(blocks)
    return Array(buffer, layout, ShapedType(shape, host.dtype), committed, sharding=sharding)


def move(x: Array, layout: Layout, *, committed: bool, sharding: Sharding | None = None) -> Array:
    """The same values in another layout; `sharding` is the user's name of it."""
    have = x.layout_of_shards
    buffer = x._buffer
    if x.numel() == 0:
        empty = torch.empty(tuple(x.shape), dtype=x.dtype)
        return put_tensor(empty, layout, committed=committed, sharding=sharding)
    if not is_same_placement(have, layout):
        shape = tuple(x.shape)
        program = move_program(coarsest(have), coarsest(layout), shape, x.dtype)
        buffer = buffer.runtime.run(program, [buffer])[0]
    return Array(buffer, layout, x._meta, committed, sharding=sharding)


def put_plain(value: torch.Tensor, sharding: Sharding | None, committed: bool) -> torch.Tensor:
    """Put a tensor that nothing transforms into a sharding; None means the host."""
    if sharding is None:
        return value._gather() if isinstance(value, Array) else value.clone()
    # as results have it: a call that fits this Array fits the result of another call in its place, too
    layout = coarsest(sharding.checked_layout(tuple(value.shape)))
    if isinstance(value, Array):
        check_devices_exist(sharding, value._buffer.runtime)
        return move(value, layout, committed=committed, sharding=sharding)
    check_devices_exist(sharding, lifecycle.current())
    return put_tensor(value.detach(), layout, committed=committed, sharding=sharding)


def check_devices_exist(sharding: Sharding, runtime: Any) -> None:
    """Raise ShardingError for a sharding of devices that do not exist, or of an abstract mesh."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        raise ShardingError(
            "a value cannot be put on an abstract mesh",
            got=f"{sharding!r}",
            rule="an AbstractMesh has no devices: it is for planning, drawing and jit(f).lower",
            try_="ts.make_mesh(sizes, names) for a mesh of devices",
        )
    check_devices(sharding.devices, runtime)


def check_devices(devices: Iterable[Device], runtime: Any) -> None:
    """Raise ShardingError for devices that do not exist, as those of a mesh that was made before another `ts.init`."""
    there = set(runtime.devices)
    missing = [d for d in devices if d not in there]
    if missing:
        raise ShardingError(
            "the sharding names devices that are not there",
            got=f"{missing[:8]}" + (" and more" if len(missing) > 8 else ""),
            rule=f"the devices are {list(runtime.devices)}",
            try_="ts.init(devices=n) starts n of them; an AbstractMesh has none",
        )


_moves: Recent[Any, Program] = Recent(1024)


def move_program(have: Layout, want: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> Program:
    """The program that reshards an array from one layout to another.

    Communication: over one device order, of the collectives on the program's axes those that send the fewest bytes
    (`partition.reshard`); otherwise blocks from device to device.
    """
    key = (have, want, shape, dtype)
    program = _moves.get(key)
    if program is None:
        program = _moves.put(key, _move_program(have, want, shape, dtype))
    return program


def _move_program(have: Layout, want: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> Program:
    common = refine([have, want]) if have.devices == want.devices else None
    if common is None:
        devices = tuple(dict.fromkeys((*have.devices, *want.devices)))
        builder = Builder(devices, (len(devices),))
        builder.input(ShapedType(have.shard_shape(shape), dtype))
        return builder.finish([transfer(builder, 0, have, want, shape)])
    builder = Builder(have.devices, common[0].axes)
    x = ShardedVar(0, shape, dtype, common[0].dims)
    builder.input(x.local(builder.axes))
    return builder.finish([reshard(builder, x, common[1].dims).number])


def transfer(builder: Builder, number: int, have: Layout, want: Layout, shape: tuple[int, ...]) -> int:
    """Emit the step that sends each device the pieces of its new block, from itself where it has them.

    Args:
        builder: a program on the devices of both layouts.
        number: the value.
        have: its layout.
        want: the layout of the result; the axes need not be those of `have`, nor the program's.
        shape: the global shape.

    Returns:
        The number of the result.
    """
    meta = builder.metas[number]
    assert meta is not None, "only values of known shape are transferred"
    holders: dict[tuple[int, ...], list[int]] = {}
    for position in range(len(have.devices)):
        holders.setdefault(have.block(position), []).append(position)
    moves = []
    for target, device in enumerate(want.devices):
        for candidates in holders.values():
            source = next((p for p in candidates if have.devices[p] == device), candidates[target % len(candidates)])
            cut, place = overlap(have.index(source, shape), want.index(target, shape), shape)
            if cut is not None:
                moves.append((source, builder.devices.index(device), cut, place))
    metas = [ShapedType(want.shard_shape(shape), meta.dtype)]
    return builder.emit("transfer", (Value(number),), {"moves": tuple(moves)}, metas)[0]


def overlap(
    source: tuple[slice, ...], target: tuple[slice, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...] | None, tuple[slice, ...]]:
    """The overlap of two blocks of one array, in the coordinates of each; (None, ()) if there is none."""
    cut, place = [], []
    for s, t, size in zip(source, target, shape, strict=True):
        s_start, s_stop, _ = s.indices(size)
        t_start, t_stop, _ = t.indices(size)
        low, high = max(s_start, t_start), min(s_stop, t_stop)
        if low >= high:
            return None, ()
        cut.append(slice(low - s_start, high - s_start))
        place.append(slice(low - t_start, high - t_start))
    return tuple(cut), tuple(place)
