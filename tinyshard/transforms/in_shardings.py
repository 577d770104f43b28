"""Where in_shardings and out_shardings say that arguments and results are."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.placement import as_sharding, device_put
from tinyshard.core.errors import ShardingError, message
from tinyshard.core.layout import is_same_placement
from tinyshard.sharding import PartitionSpec, Sharding


def at(x: Any, place: Any) -> Any:
    """A tensor under a sharding; anything else, and a tensor without one, as it is."""
    return device_put(x, as_sharding(place)) if place is not None and isinstance(x, torch.Tensor) else x


def shardings_in(shardings: Any) -> list[Any]:
    """The shardings of a tree of them."""
    return [] if shardings is None else tree_leaves(shardings, is_leaf=lambda x: isinstance(x, PartitionSpec))


def put_where(x: Any, sharding: Sharding, described: bool) -> Any:
    """An argument where in_shardings says; raises ShardingError if it is committed elsewhere."""
    layout = sharding.checked_layout(tuple(x.shape))
    if getattr(x, "committed", False) and not is_same_placement(x._layout, layout):
        raise ShardingError(
            message(
                "an argument is committed to another sharding than in_shardings says",
                got=f"an Array of shape {tuple(x.shape)} with {x.sharding!r}",
                rule=f"in_shardings says {sharding!r}",
                try_="ts.device_put(x, sharding) before the call, or no in_shardings",
            )
        )
    return ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=sharding) if described else device_put(x, sharding)
