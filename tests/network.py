"""Seed 003's network at a small size: the seed's cells with jnp → torch, and the same by hand in NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

import tinyshard as ts
from tests.counting import announced
from tinyshard.sharding import PositionalSharding

SIZES = [12, 32, 32, 32, 8]
BATCH = 64
STEP_SIZE = 1e-3
STEPS = 30

COLUMNS = """\
┌───────────┬───────────┐
│           │           │
│           │           │
│           │           │
│           │           │
│CPU 0,2,4,6│CPU 1,3,5,7│
│           │           │
│           │           │
│           │           │
│           │           │
└───────────┴───────────┘
"""
ROWS = """\
┌───────────────────────┐
│                       │
│      CPU 0,2,4,6      │
│                       │
│                       │
├───────────────────────┤
│                       │
│      CPU 1,3,5,7      │
│                       │
│                       │
└───────────────────────┘
"""
BATCH_ROWS = """\
┌───────┐
│CPU 0,1│
├───────┤
│CPU 2,3│
├───────┤
│CPU 4,5│
├───────┤
│CPU 6,7│
└───────┘
"""


def predict(params: Any, inputs: torch.Tensor) -> torch.Tensor:
    """The seed's."""
    for W, b in params:
        outputs = inputs @ W + b
        inputs = torch.maximum(outputs, torch.zeros(()))
    return outputs


def loss(params: Any, batch: Any) -> torch.Tensor:
    """The seed's."""
    inputs, targets = batch
    predictions = predict(params, inputs)
    return torch.mean(torch.sum((predictions - targets) ** 2, -1))


def init_model() -> tuple[Any, Any]:
    """Parameters and a batch, as the seed draws them."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    params = [(normal(n_in, n_out) / n_in**0.5, normal(n_out)) for n_in, n_out in pairwise(SIZES)]
    return params, (normal(BATCH, SIZES[0]), normal(BATCH, SIZES[-1]))


def by_hand(params: Any, batch: Any) -> list[float]:
    """The loss before, after 30 and after 60 steps, forward and backward written out in float64."""
    layers = [[W.double().numpy().copy(), b.double().numpy().copy()] for W, b in params]
    inputs, targets = (x.double().numpy() for x in batch)
    losses = []
    for step in range(2 * STEPS + 1):
        entering, leaving = [inputs], []
        for W, b in layers:
            leaving.append(entering[-1] @ W + b)
            entering.append(np.maximum(leaving[-1], 0))
        if step % STEPS == 0:
            losses.append(float(((leaving[-1] - targets) ** 2).sum(1).mean()))
        gradient = 2 * (leaving[-1] - targets) / len(inputs)
        for k in reversed(range(len(layers))):
            W, b = layers[k]
            dW, db = entering[k].T @ gradient, gradient.sum(0)
            if k:
                gradient = (gradient @ W.T) * (leaving[k - 1] > 0)
            layers[k] = [W - STEP_SIZE * dW, b - STEP_SIZE * db]
    return losses


def trained(gradfun: Any, params: Any, batch: Any) -> Any:
    """Thirty steps of the seed's loop."""
    for _ in range(STEPS):
        grads = gradfun(params, batch)
        params = [(W - STEP_SIZE * dW, b - STEP_SIZE * db) for (W, b), (dW, db) in zip(params, grads, strict=True)]
    return params


def on_one_device() -> list[float]:
    """The losses on device 0 alone."""
    params, batch = ts.device_put(init_model(), ts.devices()[0])
    loss_jit, gradfun = ts.jit(loss), ts.jit(ts.grad(loss))
    losses = [float(loss_jit(params, batch))]
    for _ in range(2):
        params = trained(gradfun, params, batch)
        losses.append(float(loss_jit(params, batch)))
    return losses


def under_model_parallelism(params: Any, sharding: PositionalSharding) -> Any:
    """The seed's placement of the parameters on a (4, 2) sharding."""
    (W1, b1), (W2, b2), (W3, b3), (W4, b4) = params
    return (
        (ts.device_put(W1, sharding.replicate()), ts.device_put(b1, sharding.replicate())),
        (ts.device_put(W2, sharding.replicate(0)), ts.device_put(b2, sharding.replicate(0))),
        (ts.device_put(W3, sharding.replicate(0).T), ts.device_put(b3, sharding.replicate())),
        (ts.device_put(W4, sharding.replicate()), ts.device_put(b4, sharding.replicate())),
    )


def run(capsys: Any) -> list[float]:
    """The seed's cells, from the model to the end; checks pictures and what is sent, returns the losses."""

    def picture(x: Any) -> str:
        capsys.readouterr()
        ts.debug.visualize_array_sharding(x)
        return capsys.readouterr().out

    loss_jit, gradfun = ts.jit(loss), ts.jit(ts.grad(loss))
    params, batch = init_model()

    sharding = PositionalSharding(ts.devices()).reshape(8, 1)
    batch = ts.device_put(batch, sharding)
    params = ts.device_put(params, sharding.replicate())
    losses = [float(loss_jit(params, batch))]
    check_data_parallel_step(gradfun.lower(params, batch).compile().program)
    params = trained(gradfun, params, batch)
    losses.append(float(loss_jit(params, batch)))

    sharding = sharding.reshape(4, 2)
    batch = ts.device_put(batch, sharding.replicate(1))
    assert [picture(x) for x in batch] == [BATCH_ROWS, BATCH_ROWS]
    params = under_model_parallelism(params, sharding)
    assert [picture(params[1][0]), picture(params[2][0])] == [COLUMNS, ROWS]
    assert abs(float(loss_jit(params, batch)) - losses[-1]) < 1e-4
    params = trained(gradfun, params, batch)
    losses.append(float(loss_jit(params, batch)))
    (_, _), (W2, _), (W3, _), (_, _) = params
    assert [picture(W2), picture(W3)] == [COLUMNS, ROWS]
    return losses


def check_data_parallel_step(program: Any) -> None:
    """At most one all_reduce for each parameter, as many bytes as the parameters or fewer, and nothing else."""
    told = announced(program)
    sizes = [4 * n for n_in, n_out in pairwise(SIZES) for n in (n_in * n_out, n_out)]
    assert {name for name, _, _ in told} == {"all_reduce"}
    assert len(told) <= len(sizes)
    assert sum(nbytes for _, _, nbytes in told) <= sum(sizes)
