"""All programs of the bridge with tinyshard: one step of training, and a layout for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import tinyshard as ts
from course.bridge.setting import RATE, STEPS, examples, new_model
from course.transformer import cross_entropy

__all__ = ["LAYOUTS", "Layouts", "Trained", "train"]

P = ts.P
COLUMNS, ROWS = ("q", "k", "v", "up"), ("o", "down")


@dataclass(frozen=True)
class Layouts:
    """Where the parameters are: `axes` of the mesh, and from patterns of names to specs."""

    axes: dict[str, int]
    params: dict[str, ts.PartitionSpec]


def _megatron(*data: str) -> dict[str, ts.PartitionSpec]:
    """Columns and rows along "model"; the other dim along "data", if it is named."""
    other = data[0] if data else None
    return {
        **{f"layers.*.{name}.weight": P("model", other) for name in COLUMNS},
        **{f"layers.*.{name}.bias": P(("model", *data)) for name in COLUMNS},
        **{f"layers.*.{name}.weight": P(other, "model") for name in ROWS},
        **({"*": P(other)} if data else {}),
    }


# By the name of the program of torch.distributed that does the same.
LAYOUTS = {
    "ddp": Layouts({"data": 2}, {}),
    "fsdp": Layouts({"data": 2}, {"*": P("data")}),
    "tensor_parallel": Layouts({"model": 2}, _megatron()),
    "two_dims": Layouts({"data": 2, "model": 2}, _megatron("data")),
}


@dataclass(frozen=True)
class Trained:
    """The losses of the steps, and the collectives of one."""

    losses: list[float]
    sent: Any


def train(name: str) -> Trained:
    """Train for the steps of the bridge on the first devices.

    Args:
        name: of LAYOUTS.

    Communication: what the layout needs; `sent` says it.
    """
    layouts = LAYOUTS[name]
    mesh = ts.make_mesh(tuple(layouts.axes.values()), tuple(layouts.axes))
    model = new_model()
    params = {key: p.detach() for key, p in model.named_parameters()}
    optimizer = ts.optim.functional(torch.optim.AdamW, lr=RATE)

    def loss(params: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(torch.func.functional_call(model, params, (tokens,)), targets)

    def step(params: Any, state: Any, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        value, grads = ts.value_and_grad(loss)(params, tokens, targets)
        return value, *optimizer.update(params, grads, state)

    params = ts.device_put(params, ts.shardings(params, layouts.params, mesh))
    state = optimizer.init(params)
    whole, parts = ts.NamedSharding(mesh, P()), ts.NamedSharding(mesh, P("data" if "data" in layouts.axes else None))
    at_rest = ts.tree.map(lambda x: x.sharding, (params, state))
    jitted = ts.jit(step, out_shardings=(whole, *at_rest), donate_argnums=(0, 1))
    sent = ts.collectives_in(jitted.lower(params, state, *ts.device_put(examples(0), parts)).compile())
    losses = []
    for i in range(STEPS):
        value, params, state = jitted(params, state, *ts.device_put(examples(i), parts))
        losses.append(value.item())
    return Trained(losses, sent)
