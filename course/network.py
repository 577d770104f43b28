"""The network that the planner plans: four wide layers, trained under four layouts.

data        the batch is cut, every device holds all parameters
tensor      the batch is cut, and eight neighbours share each matrix, by columns and by rows in turn
fsdp        the batch is cut, and so are the parameters: each matrix is gathered for its product, let go, and
            gathered again in the backward pass; its gradient is reduced and scattered (ZeRO-3)
fsdp_kept   the same, but the gathered matrices are kept from the forward pass for the backward pass
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from tinyshard.compile.compiled import Compiled

__all__ = ["LAYOUTS", "NEIGHBOURS", "WIDTH", "parameter_specs", "step_on", "training_step"]

WIDTH = 8192
DEPTH = 4
NEIGHBOURS = 8  # how many devices share a matrix under "tensor": those of one host
LAYOUTS = ("data", "tensor", "fsdp", "fsdp_kept")

P = ts.P
Params = list[torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _GatheredProduct(torch.autograd.Function):
    """`inputs @ matrix` for a matrix that is cut by rows: gathered for the product, its gradient cut as it is."""

    @staticmethod
    def forward(inputs: torch.Tensor, matrix: torch.Tensor, mesh: ts.Mesh, is_kept: bool) -> torch.Tensor:
        return inputs @ _laid(matrix, mesh, P())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        outputs_of_before, matrix, ctx.mesh, ctx.is_kept = inputs
        ctx.save_for_backward(outputs_of_before, matrix)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        inputs, matrix = ctx.saved_tensors
        # A program does equal steps once and keeps the result: what is gathered again must be another value.
        whole = _laid(matrix if ctx.is_kept else matrix.clone(), ctx.mesh, P())
        return grad @ whole.T, _laid(inputs.T @ grad, ctx.mesh, P("data")), None, None


def _laid(x: torch.Tensor, mesh: ts.Mesh, spec: ts.PartitionSpec) -> torch.Tensor:
    laid: torch.Tensor = ts.lax.with_sharding_constraint(x, ts.NamedSharding(mesh, spec))
    return laid


def loss(params: Params, batch: Batch, product: Product) -> torch.Tensor:
    """Squared error, summed up for each example, averaged over the batch."""
    outputs, targets = batch
    for number, matrix in enumerate(params):
        outputs = product(outputs.clamp(min=0) if number else outputs, matrix)
    return ((outputs - targets) ** 2).sum(-1).mean()


def training_step(layout: str, mesh: ts.Mesh) -> Callable[[Params, Batch], tuple[torch.Tensor, Params]]:
    """One step of gradient descent, as a function to jit.

    Args:
        layout: one of `LAYOUTS`.
        mesh: with the axes "data" and "model".

    Returns:
        From matrices and a batch, laid out so, to the loss and the new matrices.

    Communication: none; what the step needs, when it runs.
    """
    product: Product = torch.matmul
    if layout.startswith("fsdp"):

        def product(inputs: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
            return _GatheredProduct.apply(inputs, matrix, mesh, layout == "fsdp_kept")

    def step(params: Params, batch: Batch) -> tuple[torch.Tensor, Params]:
        value, grads = ts.value_and_grad(lambda params: loss(params, batch, product))(params)
        return value, [matrix - 1e-3 * grad for matrix, grad in zip(params, grads, strict=True)]

    return step


def parameter_specs(layout: str) -> tuple[ts.PartitionSpec, ts.PartitionSpec]:
    """How the matrices are cut under a layout: the first, third, … and the second, fourth, …."""
    if layout == "tensor":
        return P(None, "model"), P("model")
    return (P("data"), P("data")) if layout.startswith("fsdp") else (P(), P())


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
        >>> cost = step_on("fsdp_kept", 64, 65_536).cost_analysis()
        >>> [cost.count(op) for op in ("all_gather", "reduce_scatter", "all_reduce")]
        [4, 4, 1]
    """
    neighbours = NEIGHBOURS if layout == "tensor" else 1
    sizes = {"data": devices // neighbours, "model": neighbours}
    mesh = ts.AbstractMesh(tuple(sizes[axis] for axis in axes), axes)

    def described(shape: tuple[int, ...], spec: ts.PartitionSpec) -> ts.ShapeDtypeStruct:
        return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))

    specs = parameter_specs(layout)
    params = [described((WIDTH, WIDTH), specs[number % 2]) for number in range(DEPTH)]
    batch = [described((examples, WIDTH), P("data")) for _ in range(2)]
    compiled: Compiled = ts.jit(training_step(layout, mesh)).lower(params, tuple(batch)).compile()
    return compiled
