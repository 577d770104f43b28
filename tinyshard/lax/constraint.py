"""The constraint on where an intermediate value of a jitted function lives."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.arrays.constraint import Target, placed_at
from tinyshard.arrays.placement import as_sharding, as_tensor, refuse_on_a_shard
from tinyshard.core.errors import ShardingError
from tinyshard.sharding.prefix import map_with


def with_sharding_constraint(tree: Any, shardings: Any) -> Any:
    """Say where an intermediate value of a jitted function is to live; the partitioner brings it there.

    Args:
        tree: a tensor or a tree of tensors.
        shardings: a Sharding, or with `set_mesh` a PartitionSpec, for every leaf; or a tree of them that is a prefix.

    Returns:
        The same values, laid out so. Outside of jit it is `device_put`.

    Raises:
        ShardingError: None for a sharding; wrong rank or uneven split; or inside pmap or shard_map, where each device
            has its own value.

    Communication: what the new layout needs.

    In JAX: under vmap the constraint holds for each example; here it is then left out. Inside jit a constraint may cut
    a dim unevenly, and the compiler pads; here every block has the size that a learner can work out.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> mesh = ts.make_mesh((4,), "a")
        >>> f = ts.jit(lambda x: with_sharding_constraint(x + 1, ts.NamedSharding(mesh, ts.P())))
        >>> f(ts.device_put(torch.zeros(4), ts.NamedSharding(mesh, ts.P("a")))).sharding
        NamedSharding(Mesh('a': 4), P())
    """
    refuse_on_a_shard("with_sharding_constraint")
    return map_with("with_sharding_constraint's shardings do not fit its values", _constrained, tree, shardings)


def _constrained(x: Any, place: Any) -> Any:
    if place is None:
        raise ShardingError(
            "with_sharding_constraint got no sharding",
            got="None",
            rule="every leaf has one",
            try_="P() or NamedSharding(mesh, P()) for a value that is to be whole on every device",
        )
    x, sharding = x if isinstance(x, torch.Tensor) else as_tensor(x), as_sharding(place)
    sharding.checked_layout(x.shape)
    return placed_at(x, Target(sharding, True))
