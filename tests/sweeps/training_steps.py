"""Steps of training on a mesh (4, 2), each with the layouts that it is run in, and what plain torch makes of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tinyshard as ts
from tests.sweeps.layouts import every_spec, mesh_of
from tests.sweeps.nn_cases import below, normal, positive

SIZES = (4, 2)
RATE = 0.1

Params = dict[str, Tensor]
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Training:
    """A model with its loss.

    Attributes:
        loss: of parameters and the tensors of a batch: a mean over the examples.
        params: by name.
        batch: tensors whose first dims count examples.
        free: how many dims of the first tensor of the batch count examples.
    """

    loss: Callable[..., Tensor]
    params: Params
    batch: Batch
    free: int = 1


def linear(params: Params, x: Tensor) -> Tensor:
    return F.linear(x, params["w"], params["b"])


def normalized(params: Params, x: Tensor, y: Tensor) -> Tensor:
    hidden = F.layer_norm(linear(params, x), (16,), params["scale"], params["shift"])
    return (hidden.tanh() * y).mean()


def embedded(params: Params, tokens: Tensor, y: Tensor) -> Tensor:
    return (F.embedding(tokens, params["table"]).sin() * y).mean()


def attended(params: Params, x: Tensor) -> Tensor:
    """Two heads of eight features each."""
    q, k, v = (part.unflatten(2, (2, 8)).transpose(1, 2) for part in linear(params, x).chunk(3, 2))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return (mixed @ params["out"]).square().mean()


LINEAR = {"w": normal(16, 8, seed=1) / 2, "b": normal(16, seed=2)}
NORM = {"scale": positive(16, seed=3), "shift": normal(16, seed=4)}
ATTENTION = {"w": normal(48, 16, seed=1) / 4, "b": normal(48, seed=2) / 4, "out": normal(16, 8, seed=3) / 4}
X, Y, HALVES = normal(8, 8), normal(8, 16, seed=5), below(2, 8, 16, seed=6).float()

TRAININGS: dict[str, Training] = {
    "mse_loss": Training(lambda p, x, y: F.mse_loss(linear(p, x), y), LINEAR, (X, Y)),
    "cross_entropy": Training(lambda p, x, y: F.cross_entropy(linear(p, x), y), LINEAR, (X, below(16, 8))),
    "binary_cross_entropy": Training(
        lambda p, x, y: F.binary_cross_entropy(linear(p, x).sigmoid(), y), LINEAR, (X, HALVES)
    ),
    "huber_loss": Training(lambda p, x, y: F.huber_loss(linear(p, x), y), LINEAR, (X, Y)),
    "layer_norm": Training(normalized, LINEAR | NORM, (normal(8, 4, 8), normal(8, 4, 16, seed=5)), free=2),
    "embedding": Training(embedded, {"table": normal(16, 8)}, (below(16, 8, 8), normal(8, 8, 8, seed=5)), free=2),
    "attention": Training(attended, ATTENTION, (normal(8, 8, 16),)),
}


def step(training: Training) -> Callable[..., Any]:
    """A function of parameters and a batch: the loss, the gradients, and the parameters after a step down them."""

    def run(params: Params, batch: Batch) -> Any:
        value, slopes = ts.value_and_grad(training.loss)(params, *batch)
        return value, slopes, _updated(params, slopes)

    return run


def step_of_blocks(training: Training, cut: ts.P) -> Callable[..., Any]:
    """The step by shard_map: each device has the parameters and a block of the batch; the loss is the mean of all.

    Args:
        training: what to train.
        cut: how the first dims of every tensor of the batch are cut.
    """

    def loss(params: Params, *batch: Tensor) -> Tensor:
        return ts.lax.pmean(training.loss(params, *batch), ("a", "b"))

    def run(params: Params, batch: Batch) -> Any:
        value, slopes = ts.value_and_grad(loss)(params, *batch)
        return value, slopes, _updated(params, slopes)

    return ts.shard_map(run, mesh=mesh_of(SIZES), in_specs=(ts.P(), cut), out_specs=ts.P())


def plain_step(training: Training) -> Any:
    """The same on plain tensors, by torch's own tape."""
    fresh = {name: x.clone().requires_grad_() for name, x in training.params.items()}
    value = training.loss(fresh, *training.batch)
    slopes = dict(zip(fresh, torch.autograd.grad(value, list(fresh.values())), strict=True))
    return value.detach(), slopes, _updated(training.params, slopes)


def _updated(params: Params, slopes: Params) -> Params:
    return {name: x - RATE * slopes[name] for name, x in params.items()}


def placed(tensors: Iterable[Tensor], specs: Iterable[ts.P]) -> tuple[Tensor, ...]:
    """Tensors on the mesh, each by its spec."""
    mesh = mesh_of(SIZES)
    return tuple(ts.device_put(x, ts.NamedSharding(mesh, spec)) for x, spec in zip(tensors, specs, strict=True))


def every_layout(tensors: Iterable[Tensor]) -> list[tuple[ts.P, ...]]:
    """A spec for each of some tensors, as often as every tensor needs to have every spec that fits it at least once.

    Tensors of equal shapes are never cut in the same way.
    """
    each = [every_spec(SIZES, x.shape) for x in tensors]
    return [tuple(specs[(k + 3 * i) % len(specs)] for i, specs in enumerate(each)) for k in range(max(map(len, each)))]


def every_combination(tensors: Iterable[Tensor], most: int) -> list[tuple[ts.P, ...]]:
    """All ways to cut some tensors, or so many of them, drawn at random but always the same."""
    each = [every_spec(SIZES, x.shape) for x in tensors]
    found = list(itertools.product(*each))
    return found if len(found) <= most else random.Random(0).sample(found, most)


def blocks_of_examples(training: Training) -> list[ts.P]:
    """How the dims that count examples may be cut."""
    return every_spec(SIZES, training.batch[0].shape[: training.free])
