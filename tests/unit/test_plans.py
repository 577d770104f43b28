"""What a training step sends under the layouts that people train with, against what the theory of each says."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tinyshard as ts
from tests import transformer
from tests.extent import examples, mostly_whole
from tests.transformer import BATCH, LENGTH, WIDTH, Layer

P = ts.P
ITEM = 4  # bytes of a float32
SCALARS = 2  # the loss, and how many targets it is the mean of
SIZES = (784, 8192, 8192, 8192, 16)  # the network of seed 003, the classes rounded up to a multiple of 8
EXAMPLES = 8192
DEPTH = examples(1, transformer.DEPTH)
MESH = ts.AbstractMesh((4, 2), ("d", "m"))


@pytest.fixture(autouse=True)
def depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "DEPTH", DEPTH)


@pytest.fixture(autouse=True)
def each_collective_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the theory counts them; tests/unit/test_combine.py has those that are one exchange."""
    monkeypatch.setitem(ts.config.values, "combine_nbytes", 0)


@functools.cache
def compiled(layout: str, optimizer: Any = transformer.step, forward: Any = Layer.forward) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layer, "forward", forward)
        return transformer.compiled(layout, MESH, optimizer)


def all_reduced(items: float, devices: int) -> float:
    """Bytes that a device sends in a ring to add up so many items."""
    return 2 * items * ITEM * (devices - 1) / devices


def counts(compiled: Any) -> dict[tuple[str, str], int]:
    return {(t.kind, "*".join(t.axes)): t.count for t in compiled.cost_analysis().traffic}


def sharded_share(params: dict[str, torch.Tensor], specs: dict[str, ts.PartitionSpec]) -> int:
    """How many numbers of the parameters one of two neighbours holds."""
    return sum(x.numel() // (2 if "m" in specs[name] else 1) for name, x in params.items())


def in_explicit_steps(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """The layer with attention written out."""
    y = self.before(x)
    q, k, v = (each(y).view(*y.shape[:2], transformer.HEADS, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    future = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
    mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    x = x + self.o(mixed.transpose(1, 2).reshape(y.shape))
    return x + self.down(F.relu(self.up(self.after(x))))


# ---- a transformer --------------------------------------------------------------------------------------------------


def test_data_parallel_sends_each_gradient_once() -> None:
    made = compiled("dp")
    params = transformer.network()[1]
    assert made.cost_analysis().nbytes == all_reduced(sum(x.numel() for x in params.values()) + SCALARS, 8)
    assert counts(made) == {("all_reduce", "d*m"): len(params) + SCALARS}


def megatron(params: dict[str, torch.Tensor]) -> float:
    """Four sums of activations a layer over m, and the gradients over d."""
    activations = 4 * DEPTH * all_reduced(BATCH // 4 * LENGTH * WIDTH, 2)
    return activations + all_reduced(sharded_share(params, transformer.specs("dp x tp", params)), 4)


def test_tensor_parallel_sends_what_megatrons_plan_does() -> None:
    made, params = compiled("dp x tp"), transformer.network()[1]
    assert counts(made) == {("all_reduce", "m"): 4 * DEPTH, ("all_reduce", "d"): len(params) + SCALARS}
    assert megatron(params) <= made.cost_analysis().nbytes <= 1.001 * megatron(params)


def zero(params: dict[str, torch.Tensor]) -> float:
    """Each parameter is gathered forwards and backwards, and its gradient is reduced and scattered."""
    return 3 / 2 * all_reduced(sum(x.numel() for x in params.values()), 8)


@pytest.mark.parametrize("forward", [Layer.forward, in_explicit_steps])
def test_fsdp_gathers_parameters_and_scatters_gradients(forward: Any) -> None:
    made, params = compiled("fsdp", forward=forward), transformer.network()[1]
    assert made.cost_analysis().nbytes <= zero(params)
    found = counts(made)
    assert set(found) == {("all_gather", "d*m"), ("reduce_scatter", "d*m"), ("all_reduce", "d*m")}
    assert found["all_reduce", "d*m"] == SCALARS
    assert found["reduce_scatter", "d*m"] == len(params)


@pytest.mark.whole
def test_attention_in_explicit_steps_sends_at_most_a_tenth_more() -> None:
    made, params = compiled("dp x tp", forward=in_explicit_steps), transformer.network()[1]
    assert made.cost_analysis().nbytes <= 1.1 * megatron(params)


@pytest.mark.parametrize("layout", mostly_whole(("dp", "dp x tp", "fsdp"), lambda layout: layout == "dp x tp"))
def test_adam_sends_what_sgd_sends(layout: str) -> None:
    """A gradient is combined once, for its norm and both moments, and the norm of all costs a number for each."""
    numbers = all_reduced(len(transformer.network()[1]), 8)
    sgd, adam = (
        compiled(layout, optimizer).cost_analysis().nbytes for optimizer in (transformer.step, transformer.adam)
    )
    assert adam <= sgd + numbers


# ---- the seed's network ---------------------------------------------------------------------------------------------


def predict(params: list[tuple[torch.Tensor, torch.Tensor]], inputs: torch.Tensor) -> torch.Tensor:
    for weight, bias in params:
        outputs = inputs @ weight + bias
        inputs = outputs.clamp(min=0)
    return outputs


def seeds_step(specs: Any, batch: ts.PartitionSpec) -> Any:
    """The seed's step of gradient descent, its parameters and their gradients sharded as `specs` say."""

    def loss(params: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((predict(params, inputs) - targets) ** 2).sum(-1).mean()

    def step(params: Any, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        gradients = ts.grad(loss)(params, inputs, targets)
        return [(w - 0.001 * dw, b - 0.001 * db) for (w, b), (dw, db) in zip(params, gradients, strict=True)]

    def described(shape: tuple[int, ...], spec: ts.PartitionSpec) -> ts.ShapeDtypeStruct:
        return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(MESH, spec))

    shapes = [((m, n), (n,)) for m, n in itertools.pairwise(SIZES)]
    params = [(described(w, of_w), described(b, of_b)) for (w, b), (of_w, of_b) in zip(shapes, specs, strict=True)]
    out = [tuple(ts.NamedSharding(MESH, spec) for spec in pair) for pair in specs]
    given = described((EXAMPLES, SIZES[0]), batch), described((EXAMPLES, SIZES[-1]), batch)
    return ts.jit(step, out_shardings=out).lower(params, *given).compile()


WEIGHTS = sum(m * n + n for m, n in itertools.pairwise(SIZES))


def test_the_seeds_network_data_parallel() -> None:
    made = seeds_step([(P(), P())] * 4, P(("d", "m")))
    assert made.cost_analysis().nbytes == all_reduced(WEIGHTS, 8)
    assert counts(made) == {("all_reduce", "d*m"): 8}


def test_the_seeds_network_tensor_parallel() -> None:
    columns, rows = (P(None, "m"), P("m")), (P("m", None), P())
    made = seeds_step([columns, rows, columns, rows], P("d"))
    held = sum(m * n // 2 + (n // 2 if i % 2 == 0 else n) for i, (m, n) in enumerate(itertools.pairwise(SIZES)))
    # forwards the results of the two products by rows, backwards the gradient of what goes into the third layer
    activations = sum(all_reduced(EXAMPLES // 4 * width, 2) for width in (SIZES[2], SIZES[4], SIZES[2]))
    assert made.cost_analysis().nbytes <= 1.1 * (activations + all_reduced(held, 4))


def test_the_seeds_network_fsdp() -> None:
    both = P(("d", "m"))
    made = seeds_step([(both, both)] * 4, both)
    assert made.cost_analysis().nbytes <= 1.1 * 3 / 2 * all_reduced(WEIGHTS, 8)
