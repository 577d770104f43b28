"""The constraint on where an intermediate value of a jitted function lives."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.errors import ShardingError, message
from tinyshard.lifting import is_tracing
from tinyshard.names import device_names
from tinyshard.placement import as_sharding, device_put
from tinyshard.prefix import spread
from tinyshard.sharding import Sharding

_library = torch.library.Library("tinyshard", "DEF")
_library.define("constrain(Tensor x, int sharding) -> Tensor")
_shardings: list[Sharding] = []  # what the op's number stands for: an op takes no Python objects


@torch.library.impl(_library, "constrain", "CompositeExplicitAutograd")
def _on_plain_tensors(x: torch.Tensor, sharding: int) -> torch.Tensor:
    return x.clone()


@torch.library.impl(_library, "constrain", "Meta")
def _on_meta(x: torch.Tensor, sharding: int) -> torch.Tensor:
    return torch.empty_like(x)


CONSTRAIN = torch.ops.tinyshard.constrain.default


def constraint(number: int) -> Sharding:
    """The sharding that a constraint op's number stands for."""
    return _shardings[number]


class _Constrain(torch.autograd.Function):
    """A constraint, and the same constraint on the gradient."""

    @staticmethod
    def forward(x: torch.Tensor, number: int) -> torch.Tensor:
        return CONSTRAIN(x, number) if is_tracing() else device_put(x, _shardings[number])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.number = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return _Constrain.apply(g, ctx.number), None

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor, _: Any) -> torch.Tensor:
        return _Constrain.apply(dx, ctx.number)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, number: int) -> Any:
        # the constraint is on each example: the mapped dim stays as it is, which a spec cannot say
        return x.clone(), in_dims[0]


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
    if device_names():
        raise ShardingError(
            message(
                "a sharding constraint inside a mapped function",
                got=f"with_sharding_constraint where the names {', '.join(map(repr, device_names()))} are mapped",
                rule="there each device holds a value of its own; where its parts lie is already said",
                try_="the constraint outside of the mapped function, or out_axes or out_specs",
            )
        )
    leaves, form = tree_flatten(tree)
    places = iter(spread(shardings, tree))
    return tree_unflatten([None if x is None else _constrained(x, _wanted(next(places))) for x in leaves], form)


def _wanted(place: Any) -> Sharding:
    if place is None:
        raise ShardingError(
            message(
                "with_sharding_constraint got no sharding",
                got="None",
                rule="every leaf has one",
                try_="P() or NamedSharding(mesh, P()) for a value that is to be whole on every device",
            )
        )
    return as_sharding(place)


def _constrained(x: Any, sharding: Sharding) -> Any:
    x = x if isinstance(x, torch.Tensor) else torch.as_tensor(x)
    sharding.checked_layout(x.shape)
    return _Constrain.apply(x, _number(sharding))


def _number(sharding: Sharding) -> int:
    if sharding not in _shardings:
        _shardings.append(sharding)
    return _shardings.index(sharding)
