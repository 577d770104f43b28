"""Putting values on devices and getting them back: `device_put`, `device_get`, `array`, `block_until_ready`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tinyshard.arrays.array import Array
from tinyshard.arrays.constraint import Target, is_transformed, placed_at
from tinyshard.arrays.function_overrides.ufuncs import refuse_mask
from tinyshard.arrays.gathering import gathered
from tinyshard.arrays.transfer import put_plain, put_tensor
from tinyshard.core import tree as trees
from tinyshard.core.axis_names import device_names, shared_mesh
from tinyshard.core.device_dtypes import check_holdable
from tinyshard.core.devices import Device
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.leaves import is_opaque_leaf
from tinyshard.core.thread_state import is_tracing
from tinyshard.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from tinyshard.sharding.contexts import device_by_default
from tinyshard.sharding.mesh import AbstractMesh, current_mesh, names_in
from tinyshard.sharding.prefix import is_container, map_with


def device_put(tree: Any, device: Any = None, **others: Any) -> Any:
    """Place a tensor, or every tensor of a tree, on devices.

    Args:
        tree: Arrays, torch tensors, NumPy arrays, numbers, or a tree of these: a list of numbers is a tree of 0-d
            values. None stays None. Host values are copied before it returns, so later changes to them do not reach
            the Array.
        device: a Sharding, a Device, a PartitionSpec (with `set_mesh`), a tree of these that is a prefix of `tree`, or
            None for the default device (then the result is uncommitted).
        others: JAX's donate and may_alias are accepted, and have no effect.

    Returns:
        The same tree of Arrays, committed to their devices; returns at once, while the data is being sent.

    Raises:
        ShardingError: wrong rank, uneven split, or not a sharding; or inside pmap or shard_map, where each device has
            its own value.
        DtypeError: a value that is not numeric; a quantized, sparse, nested, mkldnn, meta or fake tensor.

    In jit it is a sharding constraint, and vmap leaves it out, as for `lax.with_sharding_constraint`. It is
    differentiable: the gradient is put back to the placement of the value.

    In JAX: it can be called inside shard_map. Here that is an error: each device has its own value there, and
    in_specs and out_specs say where the parts are.

    Communication: from the host to the devices; for an Array the collectives that reshard it.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> sharding = ts.sharding.PositionalSharding(ts.devices()).reshape(2, 2)
        >>> ts.device_put(torch.ones(4, 6), sharding).addressable_shards[1]
        Shard(device=CPU 1, index=(slice(0, 2, None), slice(3, 6, None)), replica_id=0)
    """
    check_others(device_put, others)
    if is_container(device):
        return map_with("device_put's shardings do not fit its values", _put_leaf, tree, device, is_opaque_leaf)
    try:
        return trees.map(lambda leaf: _put_leaf(leaf, device), tree)
    except ShardingError as error:
        if isinstance(tree, list | tuple) and all(isinstance(x, bool | int | float | complex) for x in tree):
            as_sharding(device)  # raises for anything that is not a placement
            raise ShardingError(
                "device_put places each number of a list for itself",
                got=f"{type(tree).__name__} of {len(tree)} numbers, and {device!r}",
                rule="a list is a tree, and a number in it a 0-d value, which has no dim to cut",
                try_="ts.device_put(torch.tensor(numbers), sharding)",
            ) from error
        raise


def _put_leaf(value: Any, device: Any) -> Any:
    if not is_opaque_leaf(value):
        return _put(value, device)
    return value._placed(_put, device if device is None else as_sharding(device))


def _put(value: Any, device: Any) -> Any:
    if device is None and (isinstance(value, Array) or is_tracing()):
        return value if isinstance(value, torch.Tensor) else as_tensor(value)
    if device is not None:
        refuse_on_a_shard("device_put")
    sharding = as_sharding(device)
    value = value if isinstance(value, torch.Tensor) else as_tensor(value)
    if not is_transformed(value):
        if not isinstance(value, Array):
            check_holdable(value)
        return put_plain(value, sharding, device is not None)
    sharding.checked_layout(tuple(value.shape))
    return placed_at(value, Target(sharding, device is not None, returns=True))


def refuse_on_a_shard(what: str) -> None:
    """Raise ShardingError inside pmap and shard_map, where each device has its own value."""
    if device_names():
        raise ShardingError(
            "a sharding constraint inside a mapped function",
            got=f"{what} where the names {', '.join(map(repr, device_names()))} are mapped",
            rule="there each device has its own value; in_specs and out_specs, or the axes, place it",
            try_="the constraint outside of the mapped function, or out_axes or out_specs",
        )


def constraint_of(what: str, place: Any) -> Sharding:
    """The sharding of a constraint; inside a shard_map over a part of a mesh's axes it is along the others.

    Raises:
        ShardingError: not a sharding; or along axes whose shards the function is given.
    """
    mesh, left = shared_mesh()
    if not left:
        refuse_on_a_shard(what)
        return as_sharding(place)
    given = place
    if isinstance(place, NamedSharding) and place.mesh.shape == mesh.shape:
        given = place.spec if isinstance(place.mesh, AbstractMesh) or place.mesh == mesh else place
    if isinstance(given, PartitionSpec):
        sharding = NamedSharding(mesh, given)
        if names_in(mesh, sharding.layout(len(given))) <= left:
            return sharding
    raise ShardingError(
        "a sharding constraint inside a shard_map is along axes that are not left to the partitioner",
        got=f"{what} to {place!r} where the names {', '.join(map(repr, device_names()))} are mapped",
        rule=f"the function is given shards along these; a constraint may name {', '.join(map(repr, sorted(left)))}",
        try_=f"P(None, {min(left)!r}), or a NamedSharding of it on the mesh of the shard_map",
    )


def as_sharding(device: Any) -> Sharding:
    """A Device, PartitionSpec or Sharding, as a Sharding.

    Raises:
        ShardingError: it is none of these.
    """
    if isinstance(device, Sharding):
        return device
    if isinstance(device, Device):
        return SingleDeviceSharding(device)
    if device is None:
        return SingleDeviceSharding(device_by_default())
    mesh = current_mesh()
    if isinstance(device, PartitionSpec) and mesh is not None:
        return NamedSharding(mesh, device)
    raise ShardingError(
        "not a place to put a value",
        got=f"{device!r} ({type(device).__name__})" + (", and no mesh is set" if mesh is None else ""),
        rule="a Sharding, a Device, or with ts.set_mesh(mesh) a PartitionSpec",
        try_="NamedSharding(mesh, P('a', 'b')), or ts.devices()[0]",
    )


def as_tensor(value: Any) -> torch.Tensor:
    """A host value as a plain torch tensor, sharing memory where it can.

    Raises:
        DtypeError: it is not numeric, or a tensor that no device can hold.
    """
    if isinstance(value, torch.Tensor):
        check_holdable(value)
        return value.detach()
    refuse_mask(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and not _can_be_shared(value):
        value = np.array(value, value.dtype.newbyteorder("="), order="C")
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_numeric(value) from error


def _can_be_shared(values: np.ndarray) -> bool:
    """Whether a tensor can share their memory: torch does not support negative strides, or read-only memory."""
    whole = all(stride >= 0 and stride % values.itemsize == 0 for stride in values.strides)
    return whole and values.flags.behaved and values.dtype.isnative


def _not_numeric(value: Any) -> DtypeError:
    if isinstance(value, int):
        return DtypeError(
            "an integer is out of the range of int64",
            got=str(value),
            rule="without a dtype integers are int64: from -2**63 to 2**63 - 1",
            try_="float(n); under jit static_argnums, for a number that only Python computes with",
        )
    return DtypeError(
        "not a value that can live on a device",
        got=f"{type(value).__name__}: {str(value)[:60]}",
        rule="tensors, NumPy arrays and numbers can",
        try_="torch.tensor(...) of numbers",
    )


def device_get(tree: Any) -> Any:
    """Copy every Array of a tree to the host.

    Args:
        tree: a tree with Arrays as leaves; other leaves are returned unchanged.

    Returns:
        The tree with plain torch tensors (in JAX: NumPy arrays), which have no `.sharding` and no `.devices()`:
        `ts.array(x)` and `ts.device_put(x, sharding)` make Arrays of them again. Their memory is private to this
        process: it does not see what a forked child, such as a DataLoader's worker, writes into its copies.

    Raises:
        RemoteError, DeviceLostError: a value could not be computed.

    Communication: from the devices to the host, of all leaves at once; waits.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> ts.device_get({"x": ts.array([1, 2])})
        {'x': tensor([1, 2])}
    """
    leaves, form = tree_flatten(tree)
    given = iter(gathered([x for x in leaves if isinstance(x, Array)]))
    return tree_unflatten([next(given) if isinstance(x, Array) else x for x in leaves], form)


def array(value: Any, dtype: torch.dtype | None = None) -> Array:
    """An uncommitted Array on the default device: an op with committed operands moves it to their devices.

    Args:
        value: a tensor, NumPy array, number or nested list; copied.
        dtype: of the result; by default the one that torch chooses for this value.

    Returns:
        An Array of the value's shape; an Array is returned unchanged, if it has this dtype. Inside of a trace, a
        tensor.

    Raises:
        DtypeError: not numeric, or `dtype` is not a torch dtype.

    Communication: from the host to `devices()[0]`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> ts.array([1.0, 2.0])
        Array([1., 2.], dtype=float32)
    """
    if isinstance(value, Array):
        return value if dtype is None else value.to(dtype)  # type: ignore[return-value]
    if dtype is not None and not isinstance(dtype, torch.dtype):
        problem = "an array has one of torch's dtypes"
        raise DtypeError(problem, got=f"{dtype!r} ({type(dtype).__name__})", try_="torch.float32")
    if not isinstance(value, torch.Tensor | np.ndarray | list | tuple | int | float | complex | bool | np.generic):
        raise _not_numeric(value)
    tensors = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    if isinstance(value, list | tuple) and any(isinstance(x, Array) or is_transformed(x) for x in tensors):
        return _stacked(value, dtype, any(x.dtype in (torch.float64, torch.complex128) for x in tensors))
    if isinstance(value, torch.Tensor) and is_transformed(value):
        return _put(value if dtype is None else value.to(dtype), None)
    if dtype is None:
        host = as_tensor(value)
    elif isinstance(value, torch.Tensor | np.ndarray | np.generic):
        host = as_tensor(value).to(dtype)
    else:
        host = _of_python(value, dtype)
    if is_tracing():
        return host  # type: ignore[return-value]
    default = SingleDeviceSharding(device_by_default())
    return put_tensor(host, default.layout(host.dim()), committed=False)


def _of_python(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Python numbers as a tensor of a dtype, rounded once: through the default dtype 0.1 would lose precision."""
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        as_tensor(value)  # raises if it is not numeric
        got = f"{type(value).__name__}: {str(value)[:60]}"
        raise DtypeError(f"a value that {dtype} does not have", got=got, rule=str(error)) from error


def _stacked(value: Any, dtype: torch.dtype | None, has_doubles: bool) -> Any:
    """A nested list of Arrays and numbers as one tensor; numbers among doubles are not rounded."""
    if isinstance(value, list | tuple):
        return torch.stack([_stacked(x, dtype, has_doubles) for x in value])
    if has_doubles and dtype is None and isinstance(value, float | complex):
        dtype = torch.float64 if isinstance(value, float) else torch.complex128
    return array(value, dtype)


def block_until_ready(tree: Any) -> Any:
    """Wait until every Array of a tree is computed.

    Args:
        tree: any tree; it waits only for Arrays.

    Returns:
        The same tree.

    Raises:
        RemoteError, DeviceLostError: a value could not be computed.

    Communication: none between devices.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> ts.block_until_ready({"x": ts.array([1.0, 2.0]) + 1, "n": 3})
        {'x': Array([2., 3.], dtype=float32), 'n': 3}
    """
    ready = set()
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Array):
            call = leaf._buffer.run, leaf._layout.devices  # whose results are ready together
            if call not in ready or leaf._buffer.is_deleted:
                leaf.block_until_ready()
                ready.add(call)
    return tree


def saved_array(values: torch.Tensor, requires_grad: bool = False, is_param: bool = False) -> torch.Tensor:
    """The Array that unpickling makes: the values, on the default device of the process that loads them."""
    result: Any = array(values)
    if is_param:
        result._is_param = True  # torch's mark of a torch.nn.Parameter
    return result.requires_grad_() if requires_grad else result


# In a process that has not imported tinyshard, torch.load's error names `tinyshard.saved_array`.
saved_array.__module__ = "tinyshard"
torch.serialization.add_safe_globals([saved_array])  # torch.load calls only registered functions by default
Array._from_values = staticmethod(saved_array)
