"""The training of lesson 16: a character model, its optimizer, a step, and what the step costs under a layout.

    rows [micro-batches, examples, length + 1]  ->  the loss, new parameters, new state of AdamW

`tests/training.py` has a larger one, with more layouts and in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

import tinyshard as ts
from course.transformer import Transformer, batch, cross_entropy
from tinyshard.compile.compiled import Compiled

__all__ = ["LIMIT", "MODEL", "OPTIMIZER", "begin", "compiled_for", "gradients", "initial", "rate", "rows", "step"]

WIDTH, HEADS, DEPTH, LENGTH = 128, 8, 2, 32
MICRO_BATCHES, EXAMPLES = 2, 8  # a step learns from 16 pieces of the text, in two halves
LIMIT = "5 MiB"  # what a device may hold; one device needs 12.9
MAX_NORM, PEAK, WARM_UP, STEPS = 1.0, 3e-3, 10, 300

MODEL = Transformer(WIDTH, HEADS, DEPTH, LENGTH)


def rate(count: torch.Tensor) -> torch.Tensor:
    """The learning rate: linear to its peak in 10 updates, then half a cosine down to a tenth, where it stays."""
    rising = (count + 1) / WARM_UP
    falling = 0.55 + 0.45 * torch.cos(math.pi * ((count - WARM_UP) / (STEPS - WARM_UP)).clamp(max=1))
    return PEAK * torch.where(count < WARM_UP, rising, falling)


OPTIMIZER = ts.optim.functional(torch.optim.AdamW, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)


def initial() -> dict[str, torch.Tensor]:
    """The parameters before the first step, by name; the same whenever it is called.

    Example:
        >>> sum(p.numel() for p in initial().values())
        417344
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return {name: p.detach() for name, p in Transformer(WIDTH, HEADS, DEPTH, LENGTH).named_parameters()}


def rows(step: int) -> torch.Tensor:
    """What a step learns from: int64[2, 8, 33], pieces of the text in two micro-batches."""
    return batch(step, MICRO_BATCHES * EXAMPLES, LENGTH).unflatten(0, (MICRO_BATCHES, EXAMPLES))


def loss(params: Any, micro: torch.Tensor) -> torch.Tensor:
    """The mean over a micro-batch, divided by the number of micro-batches."""
    logits = torch.func.functional_call(MODEL, params, (micro[:, :-1],))
    return cross_entropy(logits, micro[:, 1:]) / MICRO_BATCHES


def gradients(params: Any, rows: torch.Tensor) -> Any:
    """The loss and its gradients, added up over the micro-batches."""

    def add(total: Any, micro: torch.Tensor) -> Any:
        return ts.tree.map(torch.add, total, ts.value_and_grad(loss)(params, micro)), None

    nothing = torch.zeros(()), ts.tree.map(torch.zeros_like, params)
    return ts.lax.scan(add, nothing, rows)[0]


def step(params: Any, adam: Any, rows: torch.Tensor) -> Any:
    """One step: the loss, the new parameters, the new state of AdamW."""
    value, grads = gradients(params, rows)
    grads, _ = ts.optim.clip_by_global_norm(grads, MAX_NORM)
    return value, *OPTIMIZER.update(params, grads, adam)


def begin(mesh: ts.Mesh, cut: Mapping[str, ts.PartitionSpec]) -> dict[str, Any]:
    """What a training begins with, on the devices of a mesh: parameters, AdamW's state, and the number of the step.

    Args:
        mesh: with any axes.
        cut: the specs of parameters, by patterns of their names; all others are whole on each device.
    """
    places = ts.shardings(initial(), cut, mesh)
    params = ts.device_put(initial(), places)
    return {"params": params, "adam": OPTIMIZER.init(params, places), "step": 0}


def compiled_for(axes: Mapping[str, int], cut: Mapping[str, ts.PartitionSpec]) -> Compiled:
    """The program that computes the loss and the gradients, while AdamW's two moments are held beside it.

    The update itself needs less memory, and sends nothing. No device is used.

    Args:
        axes: of the mesh, names with their sizes; the examples are cut along "data".
        cut: the specs of parameters, by patterns of their names; their gradients and moments are cut likewise.

    Example:
        >>> compiled_for({"data": 1}, {}).cost_analysis().nbytes
        0
    """
    mesh = ts.AbstractMesh(tuple(axes.values()), tuple(axes))
    whole = ts.NamedSharding(mesh, ts.P())
    params = initial()
    places = ts.shardings(params, cut, mesh)

    def described(x: torch.Tensor, sharding: Any) -> ts.ShapeDtypeStruct:
        return ts.ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=sharding)

    operands = ts.tree.map(described, params, places)
    data = described(rows(0), ts.NamedSharding(mesh, ts.P(None, "data")))
    program = ts.jit(lambda params, moments, rows: gradients(params, rows), out_shardings=(whole, places))
    return program.lower(operands, (operands, operands), data).compile()
