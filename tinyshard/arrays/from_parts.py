"""Arrays from separate parts: made by a function, on single devices, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.arrays.placement import as_sharding, as_tensor, refuse_on_a_shard
from tinyshard.arrays.transfer import check_devices_exist, put_tensor
from tinyshard.core.device_dtypes import check_holdable
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.layout import Layout
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller.lineage import Buffer
from tinyshard.sharding import Sharding
from tinyshard.sharding.base import checked_shape


def joined(
    runtime: Any,
    wanted: Sequence[tuple[Layout, Sequence[Buffer]]],
    types: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> list[Buffer]:
    """Combine values on single devices into one value, without a copy.

    Args:
        runtime: the runtime that has them.
        wanted: for each result its layout, and for each device of the layout the value that is its block.
        types: the global shape and dtype of each result.

    Returns:
        For each result its value.
    """
    joined_buffers: dict[int, Buffer] = {}
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, (layout, _) in enumerate(wanted):
        groups.setdefault(layout.devices, []).append(i)
    for devices, members in groups.items():
        builder = Builder(devices, (len(devices),))
        metas = [ShapedType(wanted[i][0].shard_shape(types[i][0]), types[i][1]) for i in members]
        inputs = [[Value(builder.input(meta)) for _ in devices] for meta in metas]
        outputs = [builder.emit("held", (values,), {}, [meta])[0] for values, meta in zip(inputs, metas, strict=True)]
        buffers = [buffer for i in members for buffer in wanted[i][1]]
        joined_buffers.update(zip(members, runtime.run(builder.finish(outputs), buffers), strict=True))
    return [joined_buffers[i] for i in range(len(wanted))]


def make_array_from_callback(
    shape: Sequence[int],
    sharding: Sharding,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: torch.dtype | None = None,
) -> Array:
    """An Array of blocks that a function makes: for data too large for one process.

    Args:
        shape: of the whole.
        sharding: how it is cut; with `set_mesh` also a PartitionSpec.
        data_callback: takes the slices of a block, and returns its values: a tensor, NumPy array or nested list. It is
            called once for each distinct block, in this process, one at a time.
        dtype: of the Array; by default that of the first block.

    Returns:
        An Array of this shape, committed.

    Raises:
        ShardingError: the sharding does not fit the shape, or a block has another shape than its slices.
        DtypeError: blocks of several dtypes, and no dtype is passed; or a value that no device can hold.

    Communication: each block to the devices that hold it.

    In JAX: the callback is called for each device, even if several have the same block; it may return an Array.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> rows = ts.NamedSharding(ts.make_mesh(4, "i"), ts.P("i"))
        >>> ts.make_array_from_callback((8,), rows, lambda index: torch.arange(8)[index] ** 2)
        Array([ 0,  1,  4,  9, 16, 25, 36, 49], dtype=int64)
    """
    sizes = checked_shape(shape)
    place, layout, runtime = _placed(sharding, sizes)
    wanted = layout.shard_shape(sizes)
    copies: dict[tuple[int, ...], torch.Tensor] = {}
    for block, position in layout.positions().items():
        index = layout.index(position, sizes)
        values = as_tensor(data_callback(index))
        check_holdable(values)
        dtype = values.dtype if dtype is None else dtype
        if tuple(values.shape) != wanted:
            raise ShardingError(
                "make_array_from_callback's function gives a block of another shape",
                got=f"shape {tuple(values.shape)} for the slices {index}",
                rule=f"each block of an array of shape {sizes} under {place!r} has shape {wanted}",
                try_="lambda index: whole[index]",
            )
        copies[block] = runtime.snapshot(values.to(dtype))
    blocks = {device: copies[layout.block(position)] for position, device in enumerate(layout.devices)}
    assert dtype is not None
    return Array(runtime.put(blocks), layout, ShapedType(sizes, dtype), True, sharding=place)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: torch.dtype | None = None
) -> Array:
    """An Array of blocks that are on their devices already, without a copy.

    Args:
        shape: of the whole.
        sharding: how it is cut; with `set_mesh` also a PartitionSpec.
        arrays: one Array on each device of the sharding, in any order: that device's block. Copies of the same block
            are not compared.
        dtype: that of the arrays, if it is passed.

    Returns:
        An Array of this shape, committed.

    Raises:
        ShardingError: the arrays are not one on each device of the sharding, or have other shapes than its blocks.
        DtypeError: an entry is not an Array, or they have several dtypes.

    Communication: none.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> blocks = [ts.device_put(torch.full((2,), float(d.id)), d) for d in ts.devices()]
        >>> rows = ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i"))
        >>> ts.make_array_from_single_device_arrays((4,), rows, blocks)
        Array([0., 0., 1., 1.], dtype=float32)
    """
    name = "make_array_from_single_device_arrays"
    sizes = checked_shape(shape)
    place, layout, runtime = _placed(sharding, sizes)
    by_device: dict[int, Array] = {}
    for x in arrays:
        if not isinstance(x, Array):
            raise DtypeError(f"{name} takes Arrays", got=f"a {type(x).__name__}", try_="ts.device_put(x, device)")
        by_device.update(dict.fromkeys(x.layout_of_shards.devices, x))
    if sorted(by_device) != sorted(layout.devices) or len(arrays) != len(by_device):
        raise ShardingError(
            f"{name} takes one array on each device of the sharding",
            got=f"{len(arrays)} arrays on devices {[list(x.layout_of_shards.devices) for x in arrays]}",
            rule=f"the sharding has the devices {sorted(layout.devices)}",
            try_="[ts.device_put(block, device) for device, index in sharding.devices_indices_map(shape).items()]",
        )
    wanted = layout.shard_shape(sizes)
    wrong = [(d, tuple(x.shape)) for d, x in by_device.items() if tuple(x.shape) != wanted]
    if wrong:
        raise ShardingError(
            f"an array of {name} has another shape than its block",
            got=f"shape {wrong[0][1]} on device {wrong[0][0]}",
            rule=f"each block of an array of shape {sizes} under {place!r} has shape {wanted}",
        )
    dtypes = {x.dtype for x in arrays} | ({dtype} if dtype is not None else set())
    if len(dtypes) > 1:
        raise DtypeError(f"the arrays of {name} have one dtype", got=", ".join(sorted(map(str, dtypes))))
    buffers = [by_device[d]._buffer for d in layout.devices]
    (dtype,) = dtypes
    (buffer,) = joined(runtime, [(layout, buffers)], [(sizes, dtype)])
    return Array(buffer, layout, ShapedType(sizes, dtype), True, sharding=place)


def make_array_from_process_local_data(
    sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> Array:
    """An Array of this process's data. The controller reaches every device, so this is the whole array.

    Args:
        sharding: how it is cut; with `set_mesh` also a PartitionSpec.
        local_data: a tensor, NumPy array or nested list; copied.
        global_shape: the shape of `local_data`, or None.

    Returns:
        An Array, committed: that of `ts.device_put(local_data, sharding)`.

    Raises:
        ShardingError: the sharding does not fit, or `global_shape` differs.
        DtypeError: a value that no device can hold.

    Communication: each block to the devices that hold it.

    In JAX: a program of several processes calls it in each, with a part of the data; in one process it is the same as
    here.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> rows = ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i"))
        >>> ts.make_array_from_process_local_data(rows, [1.0, 2.0])
        Array([1., 2.], dtype=float32)
    """
    host = as_tensor(local_data)
    sizes = tuple(host.shape) if global_shape is None else checked_shape(global_shape)
    if sizes != tuple(host.shape):
        raise ShardingError(
            "the data of the one process are the whole array",
            got=f"global_shape={sizes}, and data of shape {tuple(host.shape)}",
            rule="the controller, which makes arrays, is one process, whatever number of devices there is",
            try_="global_shape=None with all data; or ts.make_array_from_callback, which is asked block by block",
        )
    place, layout, _ = _placed(sharding, sizes)
    return put_tensor(host, layout, committed=True, sharding=place)


def _placed(sharding: Any, shape: tuple[int, ...]) -> tuple[Sharding, Layout, Any]:
    """A sharding of existing devices, its layout for a shape, and the runtime."""
    refuse_on_a_shard("an array made from parts")
    place, runtime = as_sharding(sharding), lifecycle.current()
    check_devices_exist(place, runtime)
    return place, place.checked_layout(shape), runtime
