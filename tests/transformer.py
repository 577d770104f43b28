"""A transformer of four layers, of torch.nn modules, and steps of SGD and Adam, under the layouts people train with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tinyshard as ts

VOCABULARY = LENGTH = 64
WIDTH, HEADS, DEPTH, BATCH = 128, 4, 4, 32
P = ts.P

COLUMNS, ROWS = ("q", "k", "v", "up"), ("o", "down")  # how Megatron-LM shards a layer's matrices


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (
            each(y).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(-3, -2) for each in (self.q, self.k, self.v)
        )
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def network() -> tuple[Transformer, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Transformer()
    return model, {name: p.detach() for name, p in model.named_parameters()}


def loss_of(model: Transformer) -> Any:
    """The loss of parameters and tokens [batch, length + 1]."""

    def loss(params: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, params, (tokens[:, :-1],))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return loss


def step(model: Transformer) -> Any:
    """SGD: from parameters and tokens to the loss and the new parameters."""

    def train(params: dict[str, torch.Tensor], tokens: torch.Tensor) -> Any:
        value, gradients = ts.value_and_grad(loss_of(model))(params, tokens)
        return value, {name: p - 0.1 * gradients[name] for name, p in params.items()}

    return train


def adam(model: Transformer) -> Any:
    """Adam, the gradients scaled to a norm of at most 1: it gives the loss, the parameters and both moments."""

    def train(params: Any, first: Any, second: Any, tokens: torch.Tensor) -> Any:
        value, gradients = ts.value_and_grad(loss_of(model))(params, tokens)
        norm = torch.stack([(g * g).sum() for g in gradients.values()]).sum().sqrt()
        made: tuple[dict[str, torch.Tensor], ...] = {}, {}, {}
        for name, g in gradients.items():
            g = g * (1 / norm).clamp(max=1)
            m = 0.9 * first[name] + 0.1 * g
            v = 0.999 * second[name] + 0.001 * g * g
            for each, x in zip(made, (params[name] - 0.001 * m / (v.sqrt() + 1e-8), m, v), strict=True):
                each[name] = x
        return value, *made

    return train


def specs(layout: str, params: dict[str, torch.Tensor]) -> dict[str, ts.PartitionSpec]:
    """How the parameters are sharded over a mesh with the axes d and m: "dp", "dp x tp" or "fsdp"."""

    def spec(name: str, x: torch.Tensor) -> ts.PartitionSpec:
        module, kind = name.split(".")[-2:]
        if layout == "fsdp":
            return P(("d", "m"))
        if layout == "dp x tp" and module in COLUMNS:
            return P("m", None) if kind == "weight" else P("m")
        if layout == "dp x tp" and module in ROWS and kind == "weight":
            return P(None, "m")
        return P()

    return {name: spec(name, x) for name, x in params.items()}


def compiled(layout: str, mesh: ts.Mesh | ts.AbstractMesh, optimizer: Any = step) -> Any:
    """The step, compiled for a layout; nothing runs."""
    model, params = network()
    at = {name: ts.NamedSharding(mesh, spec) for name, spec in specs(layout, params).items()}
    batch = P("d") if layout == "dp x tp" else P(("d", "m"))
    described = {name: ts.ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=at[name]) for name, x in params.items()}
    tokens = ts.ShapeDtypeStruct((BATCH, LENGTH + 1), torch.int64, sharding=ts.NamedSharding(mesh, batch))
    copies = 3 if optimizer is adam else 1
    out = (ts.NamedSharding(mesh, P()), *[at] * copies)
    return ts.jit(optimizer(model), out_shardings=out).lower(*[described] * copies, tokens).compile()
