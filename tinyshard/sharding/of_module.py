"""The shardings of a module's parameters, from patterns of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from tinyshard.core.errors import ShardingError
from tinyshard.core.leaves import dotted, first_fitting
from tinyshard.sharding.mesh import Mesh, current_mesh
from tinyshard.sharding.named import NamedSharding, PartitionSpec


def shardings(module: Any, rules: Mapping[str, PartitionSpec], mesh: Mesh | None = None) -> Any:
    """The sharding of each parameter, chosen by a pattern of its name.

    Args:
        module: a `torch.nn.Module`, whose parameters are {name: tensor}; or a tree of tensors, in which the name of a
            leaf is its path, joined by dots. None stays None.
        rules: from patterns to specs, as {"*.attn.weight": P("model", None)}: `*` stands for any characters, dots too.
            The first match counts; a parameter without a match is replicated.
        mesh: for the specs; None: that of `ts.set_mesh`.

    Returns:
        The tree of NamedShardings: of a module a dict, as `dict(module.named_parameters())` is, for
        `ts.device_put(dict(module.named_parameters()), shardings)`.

    Raises:
        ShardingError: no mesh; a pattern that matches no parameter; a spec that does not fit a parameter's shape.

    Communication: none.

    In JAX: `nnx.get_named_sharding`, and rules in the libraries of models. In torch: `parallelize_module` with a plan.

    Example:
        >>> import tinyshard as ts
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        >>> mesh = ts.AbstractMesh((2, 4), ("data", "model"))
        >>> found = shardings(net, {"0.*": ts.P("model"), "1.weight": ts.P(None, "model")}, mesh)
        >>> {name: sharding.spec for name, sharding in found.items()}
        {'0.weight': P('model'), '0.bias': P('model'), '1.weight': P(None, 'model'), '1.bias': P()}
    """
    mesh = current_mesh() if mesh is None else mesh
    if mesh is None:
        raise ShardingError(
            "no mesh for the specs", got="ts.shardings(module, rules)", try_="ts.shardings(module, rules, mesh)"
        )
    tree = dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else module
    leaves, form = tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    named = {dotted(path): x for path, x in leaves}
    fitting, unused = first_fitting(named, rules)
    if unused:
        raise ShardingError(
            "a pattern fits no parameter",
            got=f"{unused[0]!r}",
            rule=f"the names are {', '.join(list(named)[:8])}{', ...' if len(named) > 8 else ''}",
        )
    return tree_unflatten([_sharding(name, x, fitting[name], rules, mesh) for name, x in named.items()], form)


def _sharding(
    name: str, x: Any, pattern: str | None, rules: Mapping[str, PartitionSpec], mesh: Mesh
) -> NamedSharding | None:
    if x is None:
        return None
    sharding = NamedSharding(mesh, PartitionSpec() if pattern is None else rules[pattern])
    try:
        sharding.checked_layout(x.shape)
    except ShardingError as error:
        raise ShardingError(
            f"the rule {pattern!r} does not fit parameter {name!r}",
            got=f"{rules[str(pattern)]} for shape {tuple(x.shape)}",
            rule=str(error).splitlines()[0],
            try_="a pattern of its own for it, before this one",
        ) from error
    return sharding
