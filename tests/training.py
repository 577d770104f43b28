"""One training of `course.transformer` under six plans, and the same in plain torch.

AdamW with a schedule and clipping; bfloat16 to compute, float32 master weights; gradients accumulated over
micro-batches; each layer computed again in the backward pass; the old parameters and state donated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tinyshard as ts
from benchmarks.transformer import EXAMPLES, HEADS, LENGTH, MEGATRON, WIDTH
from course.transformer import Transformer, batch, cross_entropy
from tests.extent import examples

DEPTH = MICRO_BATCHES = examples(2, 4)
MAX_NORM, PEAK, WARM_UP, STEPS = 1.0, 3e-3, 5, 50  # STEPS: after which the rate is at its lowest
OPTIONS = {"betas": (0.9, 0.95), "weight_decay": 0.1}

P = ts.P
Params = dict[str, torch.Tensor]


def rate(step: Any) -> Any:
    """Linear to its peak in 5 steps, then half a cosine down to a tenth of it. A number or a 0-d tensor."""
    step = torch.as_tensor(step)
    rising = (step + 1) / WARM_UP
    falling = 0.55 + 0.45 * torch.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))
    return PEAK * torch.where(step < WARM_UP, rising, falling)


def network(around: Any = lambda layer: layer) -> tuple[Transformer, Params]:
    """The model, and its parameters at the beginning."""
    torch.manual_seed(0)
    model = Transformer(WIDTH, HEADS, DEPTH, LENGTH, around)
    return model, {name: p.detach() for name, p in model.named_parameters()}


def tokens(step: int) -> torch.Tensor:
    """What a step learns from: [micro-batches, examples, length + 1]."""
    return batch(step, MICRO_BATCHES * EXAMPLES, LENGTH).unflatten(0, (MICRO_BATCHES, EXAMPLES))


def halved(params: Params) -> Params:
    """bfloat16 to compute with, of float32 to learn with."""
    return {name: p.bfloat16() for name, p in params.items()}


# ---- in plain torch ----------------------------------------------------------------------------------------------


def losses_by_torch(steps: int) -> list[float]:
    """Of one process that knows nothing of devices."""
    model, params = network()
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    optimizer = torch.optim.AdamW(leaves.values(), lr=1.0, **OPTIONS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(rate(step)))
    losses = []
    for step in range(steps):
        total = 0.0
        optimizer.zero_grad()
        for micro in tokens(step):
            logits = torch.func.functional_call(model, halved(leaves), (micro[:, :-1],))
            loss = cross_entropy(logits, micro[:, 1:]) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(leaves.values(), MAX_NORM)
        optimizer.step()
        schedule.step()
        losses.append(total)
    return losses


# ---- with tinyshard ----------------------------------------------------------------------------------------------

OPTIMIZER = ts.optim.functional(torch.optim.AdamW, lr=rate, **OPTIONS)


def accumulated(mesh: ts.Mesh) -> Any:
    """The mean over the micro-batches of the loss and of the gradients."""
    model, _ = network(ts.checkpoint)

    def loss(params: Params, micro: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, halved(params), (micro[:, :-1],))
        return cross_entropy(logits, micro[:, 1:]) / MICRO_BATCHES

    def gradients(params: Params, tokens: torch.Tensor) -> tuple[torch.Tensor, Params]:
        def add(total: Any, micro: torch.Tensor) -> Any:
            return ts.tree.map(torch.add, total, ts.value_and_grad(loss)(params, micro)), None

        nothing = torch.zeros(()), ts.tree.map(torch.zeros_like, params)
        return ts.lax.scan(add, nothing, tokens)[0]

    return gradients


def learned(gradients: Any) -> Any:
    """A step of training, by what computes the loss and the gradients."""

    def step(params: Params, state: Any, tokens: torch.Tensor) -> Any:
        value, grads = gradients(params, tokens)
        grads, _ = ts.optim.clip_by_global_norm(grads, MAX_NORM)
        return value, *OPTIMIZER.update(params, grads, state)

    return step


# ---- a pipeline: one forward, one backward -----------------------------------------------------------------------


def stacked(params: Params) -> Params:
    """The layers' parameters in one tensor for each kind, [depth, ...]; the other parameters as they are."""
    kinds = [name.removeprefix("layers.0.") for name in params if name.startswith("layers.0.")]
    layers = {f"layers.{kind}": torch.stack([params[f"layers.{i}.{kind}"] for i in range(DEPTH)]) for kind in kinds}
    return layers | {name: p for name, p in params.items() if not name.startswith("layers.")}


def pipelined(mesh: ts.Mesh) -> Any:
    """The loss and the gradients, by devices along "s" that have a layer each; along "d" they share the examples.

    At tick t the stage s computes the micro-batch m forwards if t = s + 2m, backwards if t = 2 * stages - 1 - s + 2m:

        stage 0   F0 .  F1 .  .  B0 .  B1          two micro-batches, three stages
        stage 1   .  F0 .  F1 B0 .  B1 .           between F and B of one a stage begins at most stages - s
        stage 2   .  .  F0 B0 F1 B1 .  .           others: so many inputs it keeps
    """
    model, _ = network()
    stages = mesh.shape["s"]
    onwards = [(s, s + 1) for s in range(stages - 1)]
    back = [(t, s) for s, t in onwards]

    def apply(module: Any, params: Params, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, params, (x,))

    def own(x: torch.Tensor, name: str = "") -> torch.Tensor:
        """Typed as varying along both axes; the layers' parameters vary along "s" already."""
        return ts.lax.pcast(x, "d" if name.startswith("layers.") else ("s", "d"), to="varying")

    def part(params: Params, name: str) -> Params:
        return {key.removeprefix(name): p for key, p in params.items() if key.startswith(name)}

    def stage(params: Params, x: torch.Tensor, micro: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a stage sends on, and the loss, which is that of the last."""
        place = ts.lax.axis_index("s")
        params = halved(params)
        embedded = apply(model.words, part(params, "words."), micro[:, :-1]) + params["places.weight"]
        x = torch.where(place == 0, embedded, x)
        y = apply(model.layers[0], {name: p[0] for name, p in part(params, "layers.").items()}, x)
        logits = apply(model.head, part(params, "head."), apply(model.norm, part(params, "norm."), y))
        loss = cross_entropy(logits, micro[:, 1:]) / MICRO_BATCHES
        return y, torch.where(place == stages - 1, loss, torch.zeros(()))

    def gradients(params: Params, tokens: torch.Tensor) -> Any:
        """Of one device's blocks."""
        place = ts.lax.axis_index("s")
        # each device's own: their gradients are added up at the end, not in each tick
        params = {name: own(p, name) for name, p in params.items()}

        def tick(carry: Any, t: torch.Tensor) -> Any:
            kept, x, slope, total = carry
            ahead, behind = t - place, t - (2 * stages - 1 - place)
            is_forward = (ahead % 2 == 0) & (ahead >= 0) & (ahead < 2 * MICRO_BATCHES)
            is_backward = (behind % 2 == 0) & (behind >= 0) & (behind < 2 * MICRO_BATCHES)

            def number_of(ticks: torch.Tensor) -> torch.Tensor:
                return (ticks // 2).clamp(0, MICRO_BATCHES - 1)

            def idle(kept: Any, total: Any) -> Any:
                return kept, torch.zeros_like(x), torch.zeros_like(x), total

            def forwards(kept: Any, total: Any) -> Any:
                m = number_of(ahead)
                y, _ = stage(params, x, tokens.index_select(0, m.reshape(1))[0])
                is_slot = (torch.arange(stages) == m % stages)[:, None, None, None]
                return torch.where(is_slot, x, kept), y, torch.zeros_like(x), total

            def backwards(kept: Any, total: Any) -> Any:
                m = number_of(behind)
                micro = tokens.index_select(0, m.reshape(1))[0]
                before = kept.index_select(0, (m % stages).reshape(1))[0]
                (_, loss), pull = ts.vjp(lambda p, v: stage(p, v, micro), params, before)
                grads, dx = pull((slope, torch.ones(())))
                return kept, torch.zeros_like(x), dx, ts.tree.map(torch.add, total, (loss, grads))

            kind = is_forward.long() + 2 * is_backward.long()
            kept, y, dx, total = ts.lax.switch(kind, (idle, forwards, backwards), kept, total)
            return (kept, ts.lax.ppermute(y, "s", onwards), ts.lax.ppermute(dx, "s", back), total), None

        x = own(torch.zeros(tokens.shape[1], LENGTH, WIDTH, dtype=torch.bfloat16))
        nothing = own(torch.zeros(())), ts.tree.map(torch.zeros_like, params)
        carry = own(torch.zeros(stages, *x.shape, dtype=x.dtype)), x, x, nothing
        *_, (loss, grads) = ts.lax.scan(tick, carry, torch.arange(2 * (MICRO_BATCHES + stages - 1)))[0]
        grads = {
            name: ts.lax.pmean(g if name.startswith("layers.") else ts.lax.psum(g, "s"), "d")
            for name, g in grads.items()
        }
        return ts.lax.pmean(ts.lax.psum(loss, "s"), "d"), grads

    specs = {name: P("s") if name.startswith("layers.") else P() for name in stacked(network()[1])}
    return ts.shard_map(gradients, mesh=mesh, in_specs=(specs, P(None, "d")), out_specs=(P(), specs))


# ---- the plans ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Who holds what.

    Attributes:
        axes: of the mesh, names with their sizes.
        data: the spec of the tokens.
        params: from patterns of names to specs.
        state: likewise, for what the optimizer keeps of each parameter; None: as the parameters.
        gradients: from a mesh to what computes the loss and the gradients.
        begin: the parameters, from those of the module.
    """

    axes: dict[str, int]
    data: ts.PartitionSpec
    params: dict[str, ts.PartitionSpec] = field(default_factory=dict)
    state: dict[str, ts.PartitionSpec] | None = None
    gradients: Callable[[ts.Mesh], Any] = accumulated
    begin: Callable[[Params], Params] = lambda params: params

    def mesh(self) -> ts.Mesh:
        """Of the first devices."""
        return ts.make_mesh(tuple(self.axes.values()), tuple(self.axes))


ROWS = P("d")
TENSORS = {pattern: P(*spec) for pattern, spec in MEGATRON.items()}
PLANS = {
    "dp": Plan({"d": 8}, P(None, "d")),
    "zero-1": Plan({"d": 8}, P(None, "d"), state={"*": ROWS}),
    "fsdp": Plan({"d": 8}, P(None, "d"), {"*": ROWS}),
    "tp": Plan({"m": 4}, P(), TENSORS),
    "dp x tp": Plan({"d": 2, "m": 4}, P(None, "d"), TENSORS),
    "1f1b": Plan({"d": 8 // DEPTH, "s": DEPTH}, P(None, "d"), {"layers.*": P("s")}, gradients=pipelined, begin=stacked),
}


class Training:
    """A training under a plan.

    Args:
        plan: of PLANS.
        folder: of a training under any plan that has the same parameters, which goes on here; None: a new one.
        params: what a new one begins with; None: the parameters of `network`.
    """

    def __init__(self, plan: str, folder: Path | None = None, params: Params | None = None) -> None:
        self.plan = PLANS[plan]
        self.mesh = self.plan.mesh()
        params = self.plan.begin(params or network()[1])
        self.places = ts.shardings(params, self.plan.params, self.mesh)
        of_state = self.places if self.plan.state is None else ts.shardings(params, self.plan.state, self.mesh)
        self.params = ts.device_put(params, self.places)
        self.state = OPTIMIZER.init(self.params, of_state)
        self.at_rest = ts.tree.map(lambda x: x.sharding, (self.params, self.state))
        if folder is not None:
            self.params, self.state = ts.load(folder, self.at_rest)
        whole = ts.NamedSharding(self.mesh, P())
        self.step = ts.jit(
            learned(self.plan.gradients(self.mesh)), out_shardings=(whole, *self.at_rest), donate_argnums=(0, 1)
        )

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Of a step."""
        return self.params, self.state, ts.device_put(tokens(step), ts.NamedSharding(self.mesh, self.plan.data))

    def save(self, folder: Path) -> None:
        """Write what another training can go on with."""
        ts.save((self.params, self.state), folder)

    def losses(self, steps: range) -> list[float]:
        """Train."""
        found = []
        for step in steps:
            loss, self.params, self.state = self.step(*self.arguments(step))
            found.append(loss)
        return [loss.item() for loss in found]
