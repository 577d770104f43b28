"""The sharding of an intermediate value of a jitted function: constrained, or changed."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.arrays.abstract import typeof
from tinyshard.arrays.constraint import Target, placed_at
from tinyshard.arrays.explicit import type_of
from tinyshard.arrays.placement import as_tensor, constraint_of
from tinyshard.core.errors import ShardingError
from tinyshard.core.layout import is_same_placement
from tinyshard.sharding import NamedSharding, PartitionSpec
from tinyshard.sharding.prefix import map_with


def with_sharding_constraint(tree: Any, shardings: Any) -> Any:
    """Constrain the sharding of an intermediate value of a jitted function; the partitioner reshards it.

    Args:
        tree: a tensor or a tree of tensors.
        shardings: a Sharding, or with `set_mesh` a PartitionSpec, for every leaf; or a tree of them that is a prefix.

    Returns:
        The same values in these shardings. Outside of jit it is `device_put`.

    Raises:
        ShardingError: None for a sharding; wrong rank or uneven split; along Explicit axes another sharding than the
            value has; or inside pmap or shard_map, where each device has its own value, but along axes that a
            shard_map's axis_names leave to the partitioner.

    Along Explicit axes it checks that the value already has the sharding, as in JAX: `ts.reshard` moves it.

    Communication: the collectives that reshard the value.

    In JAX: under vmap the constraint applies to each example; here it is then left out. Inside jit a constraint may cut
    a dim unevenly, and the compiler pads; here all blocks have the same size.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> mesh = ts.make_mesh((4,), "a")
        >>> f = ts.jit(lambda x: with_sharding_constraint(x + 1, ts.NamedSharding(mesh, ts.P())))
        >>> f(ts.device_put(torch.zeros(4), ts.NamedSharding(mesh, ts.P("a")))).sharding
        NamedSharding(Mesh('a': 4), P())
    """
    return map_with("with_sharding_constraint's shardings do not fit its values", _constrained, tree, shardings)


def _constrained(x: Any, place: Any) -> Any:
    if place is None:
        raise ShardingError(
            "with_sharding_constraint got no sharding",
            got="None",
            rule="every leaf has one",
            try_="P() or NamedSharding(mesh, P()) for a value that should be whole on every device",
        )
    x = x if isinstance(x, torch.Tensor) else as_tensor(x)
    sharding = constraint_of("with_sharding_constraint", place)
    layout, have = sharding.checked_layout(x.shape), type_of(x)
    if have is not None and not is_same_placement(have.layout(x.dim()), layout):
        raise ShardingError(
            "with_sharding_constraint on a value that is cut otherwise",
            got=f"{typeof(x)}, and {sharding!r}",
            rule="along Explicit axes it checks how a value is cut, and moves nothing",
            try_="ts.reshard(x, P(...))",
        )
    return placed_at(x, Target(sharding, True))


def reshard(tree: Any, out_shardings: Any) -> Any:
    """Move values to another sharding: an explicit step of the program.

    Args:
        tree: a tensor or a tree of tensors.
        out_shardings: a PartitionSpec or a Sharding for every leaf, or a tree of them that is a prefix. A spec is for
            the mesh that the value is cut over, else for the one that is set.

    Returns:
        The same values in these shardings; traced ones have the new type at once.

    Raises:
        ShardingError: None, a spec without a mesh, wrong rank or uneven split; or inside pmap or shard_map, where each
            device has its own value, but along axes that a shard_map's axis_names leave to the partitioner.

    It is differentiable: the gradient has the sharding of the argument.

    Communication: the collectives that reshard the value.

    In JAX: `jax.sharding.reshard`, only for Explicit axes; here it moves values along Auto axes too.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> mesh = ts.make_mesh((4,), "x", axis_types=(ts.AxisType.Explicit,))
        >>> x = ts.device_put(torch.zeros(4, 8), ts.NamedSharding(mesh, ts.P("x")))
        >>> ts.typeof(reshard(x, ts.P(None, "x")))
        'f32[4, 8@x]'
    """
    return map_with("reshard's shardings do not fit its values", _moved, tree, out_shardings)


def _moved(x: Any, place: Any) -> Any:
    x = x if isinstance(x, torch.Tensor) else as_tensor(x)
    have = type_of(x)
    if isinstance(place, PartitionSpec) and have is not None:
        place = NamedSharding(have.mesh, place)
    if place is None:
        raise ShardingError("reshard got no sharding", got="None", try_="P() for a value that is whole on every device")
    sharding = constraint_of("reshard", place)
    sharding.checked_layout(x.shape)
    return placed_at(x, Target(sharding, True))
