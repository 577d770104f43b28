"""The training step whose memory lesson 15 counts: four layers, AdamW, and ZeRO as a choice of three specs.

layout            parameters   gradients   state of Adam
data parallel     P()          -           P()
ZeRO-1            P()          -           P("d")
ZeRO-2            P()          P("d")      P("d")
ZeRO-3            P("d")       P("d")      P("d")

Parameters of spec P("d") are gathered layer by layer, and gathered again in the backward pass. Gradients of spec P("d")
are reduced and scattered as soon as they exist; without a spec each device keeps its partial sum until the update.
In bfloat16 the parameters are master weights in float32, of the state's spec, and the layers compute with copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tinyshard as ts
from course.by_kind import Given, each_by_itself, held
from tinyshard.compile.compiled import Compiled

__all__ = [
    "DEPTH",
    "HIDDEN",
    "LAYOUTS",
    "PARAMETERS",
    "SAVED",
    "WIDTH",
    "Layer",
    "Layout",
    "Plan",
    "compiled",
    "held_by_kind",
    "initial",
    "modelled",
    "training_step",
]

WIDTH, HIDDEN, DEPTH = 128, 1024, 4
PARAMETERS = 2 * WIDTH * HIDDEN * DEPTH  # 2**20
SAVED = ("hidden", "active")  # the values in a layer that its backward pass needs

P = ts.P
ADAM = ts.optim.functional(torch.optim.AdamW, lr=1e-3)

Tree = Any
Spec = ts.PartitionSpec


@dataclass(frozen=True)
class Layout:
    """Three specs over a mesh of one axis "d" or more: where a training step keeps what it holds.

    Attributes:
        params: of the parameters.
        grads: of the gradients; None: they stay partial sums until the update.
        state: of Adam's two means, and in bfloat16 of the master weights.
    """

    params: Spec
    grads: Spec | None
    state: Spec


LAYOUTS = {
    "data parallel": Layout(P(), None, P()),
    "ZeRO-1": Layout(P(), None, P("d")),
    "ZeRO-2": Layout(P(), P("d"), P("d")),
    "ZeRO-3": Layout(P("d"), P("d"), P("d")),
}


@dataclass(frozen=True)
class Plan:
    """What decides how much memory a step takes.

    Attributes:
        layout: where parameters, gradients and state are.
        devices: how many, along "d".
        examples: of the whole batch.
        saved: the names of SAVED that are kept for the backward pass; the others are recomputed.
        dtype: what the layers compute in: float32, or bfloat16 with master weights.
        is_donated: whether the old parameters and the old state are donated.
        policy: of `ts.checkpoint` around each layer, in place of `saved`.
    """

    layout: Layout = LAYOUTS["data parallel"]
    devices: int = 8
    examples: int = 64
    saved: tuple[str, ...] = SAVED
    dtype: torch.dtype = torch.float32
    is_donated: bool = True
    policy: Callable[..., bool] | None = None

    @property
    def kept(self) -> Layout:
        """The layout of what is kept between two steps: in bfloat16 the parameters are part of the state."""
        params = self.layout.params if self.dtype == torch.float32 else self.layout.state
        return Layout(params, self.layout.grads, self.layout.state)


class Layer(nn.Module):
    """x + down(gelu(up(x))), and names for the two values in it.

    Example:
        >>> Layer()(torch.ones(2, WIDTH)).shape
        torch.Size([2, 128])
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From x [examples, WIDTH] to the same shape."""
        hidden = ts.checkpoint_name(self.up(x), "hidden")
        active = ts.checkpoint_name(F.gelu(hidden), "active")
        return x + self.down(active)


@functools.cache
def initial() -> list[dict[str, torch.Tensor]]:
    """The parameters before training, of each layer by name."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [{name: x.detach() for name, x in Layer().named_parameters()} for _ in range(DEPTH)]


def training_step(plan: Plan, mesh: ts.Mesh) -> Callable[[Tree, Tree, Tree], tuple[torch.Tensor, Tree, Tree]]:
    """One step, as a function to jit.

    Args:
        plan: layout, precision and what is recomputed.
        mesh: with the axes that the specs name.

    Returns:
        From parameters, state and batch to the loss, the new parameters and the new state.

    Communication: none; what the step needs, when it runs.
    """
    layer, layout = Layer(), plan.layout

    def constrained(x: torch.Tensor, spec: Spec) -> torch.Tensor:
        result: torch.Tensor = ts.lax.with_sharding_constraint(x, ts.NamedSharding(mesh, spec))
        return result

    def used(weight: torch.Tensor) -> torch.Tensor:
        """The whole weight; its gradient gets the spec of gradients as soon as it exists."""
        return weight if layout.grads is None else gather(weight)

    gather = ts.custom_vjp(lambda weight: constrained(weight, P()))
    gather.defvjp(lambda weight: (constrained(weight, P()), None), lambda _, g: (constrained(g, layout.grads or P()),))

    def computed(weights: Tree, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, ts.tree.map(used, weights), (x,))
        return result

    is_gathered = layout.params != P()
    if is_gathered or plan.saved != SAVED or plan.policy:
        by_name = ts.checkpoint_policies.save_only_these_names(*plan.saved)
        computed = ts.checkpoint(computed, policy=plan.policy or by_name)

    def loss(params: Tree, batch: Tree) -> torch.Tensor:
        x, wanted = batch
        x = x.to(plan.dtype)
        for weights in params:
            x = computed(weights, x)
        return (x.float() - wanted).square().mean()

    def in_use(weight: torch.Tensor) -> torch.Tensor:
        """What the layers compute with: in bfloat16 a copy, which the first stages gather once."""
        low = weight.to(plan.dtype)
        return low if plan.dtype == weight.dtype or is_gathered else constrained(low, P())

    def step(params: Tree, state: Tree, batch: Tree) -> tuple[torch.Tensor, Tree, Tree]:
        value, grads = ts.value_and_grad(loss)(ts.tree.map(in_use, params), batch)
        grads = ts.tree.map(lambda g, weight: constrained(g, layout.state).to(weight.dtype), grads, params)
        return value, *ADAM.update(params, grads, state)

    return step


def compiled(plan: Plan, mesh: ts.Mesh | None = None) -> Compiled:
    """The program of one step; on an abstract mesh, without any device, unless a mesh is given.

    Communication: none.

    Example:
        >>> compiled(Plan(LAYOUTS["ZeRO-1"])).memory_analysis().argument_nbytes // 2**20
        5
    """
    return _on_abstract_mesh(plan) if mesh is None else _compiled(plan, mesh)


@functools.lru_cache(maxsize=64)
def _on_abstract_mesh(plan: Plan) -> Compiled:
    return _compiled(plan, ts.AbstractMesh((plan.devices,), ("d",)))


def _compiled(plan: Plan, grid: ts.Mesh) -> Compiled:
    params, kept = initial(), plan.kept

    def described(x: torch.Tensor, spec: Spec) -> ts.ShapeDtypeStruct:
        return ts.ShapeDtypeStruct(x.shape, x.dtype, sharding=ts.NamedSharding(grid, spec if x.dim() else P()))

    def all_described(tree: Tree, spec: Spec) -> Tree:
        return ts.tree.map(lambda x: described(x, spec), tree)

    examples = torch.empty(plan.examples, WIDTH, device="meta")
    given = (
        all_described(params, kept.params),
        all_described(_state(), kept.state),
        all_described((examples, examples), P(grid.axis_names)),
    )
    shardings = ts.tree.map(lambda x: x.sharding, given)
    step = ts.jit(
        training_step(plan, grid),
        donate_argnums=(0, 1) if plan.is_donated else (),
        out_shardings=(None, *shardings[:2]),
    )
    with each_by_itself():
        program: Compiled = step.lower(*given).compile()
    return program


@functools.cache
def _state() -> Tree:
    return ADAM.init(initial())


# ---- what it holds ----------------------------------------------------------------------------------------------


def held_by_kind(plan: Plan, program: Compiled, step: int | None = None) -> dict[str, int]:
    """The bytes that a device holds during one step of the program of a plan, by kind.

    Args:
        plan: the plan.
        program: what `compiled` made of it.
        step: its number; None: the first one at the peak.

    Communication: none.

    Example:
        >>> plan = Plan(LAYOUTS["ZeRO-1"])
        >>> held = held_by_kind(plan, compiled(plan))
        >>> held["parameters"] // 2**20, held["optimizer state"] // 2**20
        (4, 1)
    """
    params, state = len(ts.tree.leaves(initial())), len(ts.tree.leaves(_state()))
    return held(program, Given(params, state, 2, plan.examples // plan.devices, plan.is_donated), step)


def modelled(plan: Plan) -> dict[str, int]:
    """The same at the peak, by a formula.

    The backward pass frees the activations of a layer as it makes its gradients. So the peak is in the backward pass of
    one of the layers, and this one holds, beside its own values, activations of those before it and gradients of those
    behind it. Without donation it may also be after the last update, when old and new values are all there and no
    gradient is left. Smaller values that exist only for a moment are left out.

    Args:
        plan: the plan.

    Communication: none.

    Example:
        >>> {kind: nbytes // 2**20 for kind, nbytes in modelled(Plan()).items() if nbytes >= 2**20}
        {'parameters': 4, 'optimizer state': 8, 'gradients': 4}
    """
    moments = [_during_backward(plan, layer) for layer in range(DEPTH)]
    if plan.dtype != torch.float32 and not plan.layout.state:  # whole gradients are converted before the update
        converted = {"gradients": 4 * PARAMETERS, "gathered weights": 0, "activations": 0}
        moments.append(moments[0] | converted)
    if not plan.is_donated:
        kept = ("parameters", "optimizer state")
        moments.append({kind: 2 * nbytes if kind in kept else 0 for kind, nbytes in moments[0].items()})
    return max(moments, key=lambda held: sum(held.values()))


def _during_backward(plan: Plan, layer: int) -> dict[str, int]:
    """What is held in the backward pass of one layer, counted from 0; the passes of those behind it are over."""
    size, kept, rows = plan.dtype.itemsize, plan.kept, plan.examples // plan.devices

    def on_one(nbytes: int, spec: Spec | None) -> int:
        return nbytes // (plan.devices if spec else 1)

    weights = 0
    if plan.layout.params:
        weights = size * PARAMETERS // DEPTH
    elif plan.dtype != torch.float32:
        weights = size * PARAMETERS * (layer + 1) // DEPTH
    whole = size * WIDTH * HIDDEN if plan.layout.grads else 0  # one that is not yet scattered
    # in the layer itself all values are there, and the gradient of one of them
    values = (layer + 1) * (WIDTH + HIDDEN * len(plan.saved)) + HIDDEN * (1 + len(SAVED) - len(plan.saved))
    return {
        "parameters": on_one(4 * PARAMETERS, kept.params),
        "optimizer state": on_one(8 * PARAMETERS, kept.state),
        "gradients": on_one(size * PARAMETERS, plan.layout.grads) * (DEPTH - layer) // DEPTH + whole,
        "gathered weights": weights,
        "activations": rows * (2 * 4 * WIDTH + size * values),
    }
