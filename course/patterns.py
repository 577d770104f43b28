"""The training step of lesson 11: a network of four layers that tells patterns apart, and a layout as a dict of rules.

    layout            parameters                              state of AdamW
    data parallel     -                                       as the parameters
    ZeRO-1            -                                       along data
    FSDP              along data                              as the parameters
    layers 1 and 2    along model: by outputs, by inputs      as the parameters

The step is one function for all of them: it names no device. What is gathered, and what is scattered, follows from
where parameters and batch are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tinyshard as ts
from course.by_kind import each_by_itself, given_of, held
from tinyshard.compile.compiled import Compiled

__all__ = [
    "EXAMPLES",
    "LAYOUTS",
    "OPTIMIZERS",
    "PATTERNS",
    "PIXELS",
    "WIDTH",
    "Layout",
    "Network",
    "Plan",
    "compiled",
    "held_by_kind",
    "loss",
    "modelled",
    "network",
    "operands",
    "program_of",
    "training_step",
]

PIXELS, WIDTH, PATTERNS, EXAMPLES = 784, 256, 16, 320

P = ts.P
Rules = Mapping[str, ts.PartitionSpec]
Tree = Any

OPTIMIZERS = {
    "AdamW": ts.optim.functional(torch.optim.AdamW, lr=3e-4),
    "SGD": ts.optim.functional(torch.optim.SGD, lr=3e-2),
}
STATE = {"AdamW": 2, "SGD": 0}  # numbers of state for each parameter


@dataclass(frozen=True)
class Layout:
    """Where parameters and state of a training are, over a mesh of axes "data" and "model".

    Attributes:
        rules: the specs of parameters, by patterns of their names; without one a parameter is whole on each device.
        state: the same for the state; None: as the parameters.
    """

    rules: Rules = field(default_factory=dict)
    state: Rules | None = None


def _pair(first: int, along: str | tuple[str, ...] = "model") -> dict[str, ts.PartitionSpec]:
    """Two layers, by outputs and by inputs."""
    return {f"layers.{first}.*": P(along), f"layers.{first + 1}.weight": P(None, along)}


LAYOUTS = {
    "data parallel": Layout(),
    "ZeRO-1": Layout(state={"*": P("data")}),
    "FSDP": Layout({"*": P("data")}),
    "layers 1 and 2": Layout(_pair(1)),
    "all layers": Layout({**_pair(0), **_pair(2)}),
}


@dataclass(frozen=True)
class Plan:
    """One training step.

    Attributes:
        mesh: sizes of the axes "data" and "model".
        layout: one of LAYOUTS.
        optimizer: one of OPTIMIZERS.
        width: outputs of the three layers before the last one.
        examples: of the whole batch.
    """

    mesh: tuple[int, int] = (8, 1)
    layout: str = "data parallel"
    optimizer: str = "AdamW"
    width: int = WIDTH
    examples: int = EXAMPLES

    @property
    def rows(self) -> int:
        """Examples of one device."""
        return self.examples // self.mesh[0]


class Network(nn.Module):
    """Four layers, and between them relu.

    Example:
        >>> Network()(torch.zeros(2, PIXELS)).shape
        torch.Size([2, 16])
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        sizes = [PIXELS, width, width, width, PATTERNS]
        self.layers = nn.ModuleList(nn.Linear(m, n) for m, n in pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From pictures [examples, 784] to a number for each pattern [examples, 16]."""
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x).relu()
        result: torch.Tensor = last(x)
        return result


@functools.cache
def network(width: int = WIDTH) -> Network:
    """The network without values, for `torch.func.functional_call`: its parameters come from outside.

    Example:
        >>> sum(p.numel() for p in network().parameters())
        336656
    """
    with torch.device("meta"):
        return Network(width)


def loss(params: Tree, batch: Tree, width: int = WIDTH) -> torch.Tensor:
    """The mean over the batch, inputs f32[examples, 784] and labels i64[examples]."""
    inputs, labels = batch
    return F.cross_entropy(torch.func.functional_call(network(width), params, (inputs,)), labels)


def training_step(optimizer: str, width: int = WIDTH) -> Callable[[Tree, Tree, Tree], tuple[torch.Tensor, Tree, Tree]]:
    """One step, as a function to jit: from parameters, state and batch to the loss, new parameters and new state."""

    def step(params: Tree, state: Tree, batch: Tree) -> tuple[torch.Tensor, Tree, Tree]:
        value, grads = ts.value_and_grad(lambda params: loss(params, batch, width))(params)
        return value, *OPTIMIZERS[optimizer].update(params, grads, state)

    return step


def operands(
    plan: Plan, mesh: ts.Mesh, made: Callable[[torch.Tensor, ts.NamedSharding], Any], layout: Layout | None = None
) -> Tree:
    """Parameters, state and batch of a step, each made from a tensor without values, and its sharding.

    Args:
        plan: optimizer, width and examples, and the name of the layout.
        mesh: with axes for all specs of the layout.
        made: from a tensor and its sharding to what the step is given.
        layout: in place of the plan's.

    Communication: that of `made`.
    """
    layout = layout or LAYOUTS[plan.layout]
    params = {name: p.detach() for name, p in network(plan.width).named_parameters()}
    state = OPTIMIZERS[plan.optimizer].init(params)
    of_params = ts.shardings(params, layout.rules, mesh)
    of_state = of_params if layout.state is None else ts.shardings(params, layout.state, mesh)
    whole, rows = ts.NamedSharding(mesh, P()), ts.NamedSharding(mesh, P("data"))
    slots = {
        name: slot and {part: made(x, of_state[name] if x.dim() else whole) for part, x in slot.items()}
        for name, slot in state["slots"].items()
    }
    batch = torch.empty(plan.examples, PIXELS, device="meta"), torch.zeros(plan.examples, dtype=torch.int64)
    return (
        {name: made(p, of_params[name]) for name, p in params.items()},
        {"count": made(state["count"], whole), "slots": slots},
        tuple(made(x, rows) for x in batch),
    )


@functools.lru_cache(maxsize=64)
def compiled(plan: Plan) -> Compiled:
    """The program of one step, made without any device; old parameters and old state are donated.

    Communication: none.

    Example:
        >>> compiled(Plan()).cost_analysis().nbytes
        2356606
    """
    return program_of(training_step(plan.optimizer, plan.width), plan, LAYOUTS[plan.layout])


def program_of(step: Callable[..., Any], plan: Plan, layout: Layout) -> Compiled:
    """The program of a step of your own, likewise."""
    given = operands(plan, ts.AbstractMesh(plan.mesh, ("data", "model")), _described, layout)
    places = ts.tree.map(lambda x: x.sharding, given)
    jitted = ts.jit(step, donate_argnums=(0, 1), out_shardings=(None, *places[:2]))
    with each_by_itself():
        program: Compiled = jitted.lower(*given).compile()
    return program


def _described(x: torch.Tensor, sharding: ts.NamedSharding) -> ts.ShapeDtypeStruct:
    return ts.ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=sharding)


def held_by_kind(plan: Plan) -> dict[str, int]:
    """The bytes that a device holds at the peak of the step, by kind, counted in its program.

    Communication: none.

    Example:
        >>> found = held_by_kind(Plan(layout="FSDP"))
        >>> sum(found.values()) == compiled(Plan(layout="FSDP")).memory_analysis().peak_nbytes
        True
    """
    given = operands(plan, ts.AbstractMesh(plan.mesh, ("data", "model")), _described)
    return held(compiled(plan), given_of(*given))


def modelled(plan: Plan) -> dict[str, int]:
    """The same by a formula, 4 bytes a number.

    In the backward pass of a layer a device holds outputs and gathered weights of the layers before it, and whole
    gradients of those behind it. In the update it has all gradients that are left, and makes one parameter more. The
    peak is the largest of these sums. What is gathered or sent for a moment only is left out.

    Communication: none.

    Example:
        >>> found = modelled(Plan())
        >>> found["optimizer state"] == 2 * found["parameters"]
        True
    """
    mesh, layout = ts.AbstractMesh(plan.mesh, ("data", "model")), LAYOUTS[plan.layout]
    params = dict(network(plan.width).named_parameters())
    of_params = ts.shardings(params, layout.rules, mesh)
    of_state = of_params if layout.state is None else ts.shardings(params, layout.state, mesh)

    def numbers(places: Mapping[str, ts.NamedSharding]) -> list[int]:
        """Of each layer, on one device."""
        sizes = {name: math.prod(places[name].shard_shape(tuple(p.shape))) for name, p in params.items()}
        return [sizes[f"layers.{k}.weight"] + sizes[f"layers.{k}.bias"] for k in range(4)]

    # with fewer examples than outputs the inputs of a layer are smaller than its weights, and are gathered instead
    is_gathered = plan.layout == "FSDP" and plan.mesh[0] > 1 and plan.examples >= plan.width
    used = ts.shardings(params, {}, mesh) if is_gathered else of_params
    kept, in_use = numbers(of_params), numbers(used)
    outputs = [used[f"layers.{k}.bias"].shard_shape(params[f"layers.{k}.bias"].shape)[0] for k in range(4)]

    def moment(gradients: int, gathered: list[int], values: int) -> dict[str, int]:
        """The values are numbers an example, beside the 784 of its picture and the 2 of its label."""
        return {
            "gradients": gradients,
            "gathered weights": sum(gathered) if is_gathered else 0,
            "activations": plan.rows * (PIXELS + 2 + values),
        }

    of_inputs = [  # the gradient of a layer's inputs is made: all outputs before it are there
        moment(sum(in_use[k + 1 :]), in_use[1 : k + 1], sum(outputs[:k]) + outputs[k - 1] + outputs[k])
        for k in range(1, 4)
    ]
    of_relu = [  # and goes through relu
        moment(sum(in_use[k:]), in_use[1:k], sum(outputs[:k]) + 2 * outputs[k - 1]) for k in range(1, 4)
    ]
    updates = [moment(sum(in_use[k:]) + kept[k], [], 0) for k in range(4)]
    peak = max([*of_inputs, *of_relu, *updates], key=lambda held: sum(held.values()))
    fixed = {"parameters": sum(kept), "optimizer state": STATE[plan.optimizer] * sum(numbers(of_state))}
    return {kind: 4 * count for kind, count in {**fixed, **peak}.items()}
