"""The network that the planner plans: four wide layers, trained under three layouts.

data        the batch is cut, every device holds all parameters
tensor      the batch is cut, and eight neighbours share each matrix, by columns and by rows in turn
cut         the batch is cut, and so are the parameters; each matrix is gathered where it is used
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from tinyshard.lowered import Compiled

__all__ = ["LAYOUTS", "NEIGHBOURS", "WIDTH", "step_on"]

WIDTH = 8192
DEPTH = 4
NEIGHBOURS = 8  # how many devices share a matrix under "tensor": those of one host
LAYOUTS = ("data", "tensor", "cut")

P = ts.P
Keep = Callable[[torch.Tensor], torch.Tensor]


def loss(params: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor], keep: Keep) -> torch.Tensor:
    """Squared error, summed up for each example, averaged over the batch; `keep` brings a matrix where it is used."""
    outputs, targets = batch
    for number, matrix in enumerate(params):
        outputs = (outputs.clamp(min=0) if number else outputs) @ keep(matrix)
    return ((outputs - targets) ** 2).sum(-1).mean()


@functools.lru_cache(maxsize=256)
def step_on(layout: str, devices: int, examples: int, axes: tuple[str, str] = ("data", "model")) -> Compiled:
    """The program of one training step, made without any device.

    Args:
        layout: one of `LAYOUTS`.
        devices: how many; a multiple of 8 under "tensor".
        examples: of the whole batch; a multiple of the parts that it is cut in.
        axes: the order of the mesh axes; devices that differ only along the last one have neighbouring numbers.

    Returns:
        What each device runs: read `as_text()`, `cost_analysis()`.

    Raises:
        ShardingError: sizes that cannot be cut evenly.

    Communication: none.

    Example:
        >>> step_on("data", 64, 65_536).cost_analysis().count("all_reduce")
        5
    """
    neighbours = NEIGHBOURS if layout == "tensor" else 1
    sizes = {"data": devices // neighbours, "model": neighbours}
    mesh = ts.AbstractMesh(tuple(sizes[axis] for axis in axes), axes)

    def described(shape: tuple[int, ...], spec: ts.PartitionSpec) -> ts.ShapeDtypeStruct:
        return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))

    def whole(matrix: torch.Tensor) -> torch.Tensor:
        return ts.lax.with_sharding_constraint(matrix, ts.NamedSharding(mesh, P()))

    keep: Keep = whole if layout == "cut" else lambda matrix: matrix

    def step(params: Any, batch: Any) -> Any:
        value, grads = ts.value_and_grad(lambda params: loss(params, batch, keep))(params)
        return value, [matrix - 1e-3 * grad for matrix, grad in zip(params, grads, strict=True)]

    pairs = {"data": (P(), P()), "tensor": (P(None, "model"), P("model")), "cut": (P("data"), P("data"))}[layout]
    params = [described((WIDTH, WIDTH), pairs[number % 2]) for number in range(DEPTH)]
    batch = [described((examples, WIDTH), P("data")) for _ in range(2)]
    compiled: Compiled = ts.jit(step).lower(params, tuple(batch)).compile()
    return compiled
