"""The training step whose costs `costs` shows: a network of four layers under several layouts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tinyshard.lax import with_sharding_constraint
from tinyshard.sharding import NamedSharding, P, PartitionSpec
from tinyshard.sharding.mesh import Mesh
from tinyshard.transforms.autodiff import value_and_grad

__all__ = ["CUTS", "OPTIMIZERS", "operands", "train_step"]

Layer = tuple[PartitionSpec, PartitionSpec]
WHOLE: Layer = (P(), P())
BY_COLUMNS: Layer = (P(None, "model"), P("model"))
BY_ROWS: Layer = (P("model"), P())
ROWS_ALONG_DATA: Layer = (P("data"), P())

# what is sharded along "model", or under FSDP along "data" → layout of W and b of each layer
CUTS: dict[str, tuple[Layer, ...]] = {
    "nothing": (WHOLE, WHOLE, WHOLE, WHOLE),
    "W2 and W3": (WHOLE, BY_COLUMNS, BY_ROWS, WHOLE),
    "W1 and W2": (BY_COLUMNS, BY_ROWS, WHOLE, WHOLE),
    "FSDP": (ROWS_ALONG_DATA, ROWS_ALONG_DATA, ROWS_ALONG_DATA, ROWS_ALONG_DATA),
}
# numbers of optimizer state for each parameter: Adam keeps a mean of gradients and one of their squares
OPTIMIZERS = {"SGD": 0, "Adam": 2}


def operands(
    made: Callable[[tuple[int, ...], PartitionSpec], Any], cut: str, width: int, examples: int, optimizer: str
) -> Any:
    """Parameters, state of the optimizer and batch of a step, each made from its shape and spec."""
    sizes = [784, width, width, width, 10]
    params = [
        (made((m, n), specs[0]), made((n,), specs[1])) for (m, n), specs in zip(pairwise(sizes), CUTS[cut], strict=True)
    ]
    batch = (made((examples, sizes[0]), P("data")), made((examples, sizes[-1]), P("data")))
    return params, [params] * OPTIMIZERS[optimizer], batch


def train_step(grid: Mesh, cut: str) -> Callable[..., Any]:
    """One step of SGD, or with two trees of state of Adam; under FSDP weights are gathered before they are used."""

    def laid(x: torch.Tensor, spec: PartitionSpec) -> torch.Tensor:
        constrained: torch.Tensor = with_sharding_constraint(x, NamedSharding(grid, spec))
        return constrained

    def loss(params: Any, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        for weights, bias in params:
            outputs = inputs @ weights + bias
            inputs = outputs.clamp(min=0)
        result: torch.Tensor = ((outputs - targets) ** 2).sum(-1).mean()
        return result

    def step(params: Any, state: Any, batch: Any) -> Any:
        used = [(laid(weights, P()), bias) for weights, bias in params] if cut == "FSDP" else params
        value, grads = value_and_grad(loss)(used, batch)
        # each gradient is laid out as soon as it is there: whole until its update, it would take more memory
        grads = [(laid(g[0], specs[0]), laid(g[1], specs[1])) for g, specs in zip(grads, CUTS[cut], strict=True)]
        if not state:
            return value, tree_map(lambda p, g: p - 1e-3 * g, params, grads)
        means = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state[0], grads)
        squares = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], grads)
        new = tree_map(lambda p, m, v: p - 1e-3 * m / (v.sqrt() + 1e-8), params, means, squares)
        return value, new, means, squares

    return step
