"""The capstone's three puzzles: what an answer must compute, and in how many bytes, how much memory, how much work.

An answer is a function of one device's blocks, with collectives over a named axis. Whether it is right is found out
under `ts.vmap`, with no device at all; what it costs is read off the program that eight devices would run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from tinyshard.compile.compiled import Compiled

__all__ = ["FSDP", "PIPELINE", "RING", "Goal", "Puzzle", "Score", "network_and_batch", "queries_keys_values"]

DEVICES = 8
TOKENS, FEATURES = 1024, 32
LAYERS, WIDTH, EXAMPLES = 6, 256, 64
STEP_SIZE = 0.1
MICRO_BATCHES, MICRO_EXAMPLES, STAGE_WIDTH = 16, 4, 64

P = ts.P
Answer = Callable[..., Any]


@dataclass(frozen=True)
class Goal:
    """What a device may use: bytes sent, the most bytes held at once, operations of matrix products."""

    nbytes: int
    peak_nbytes: int
    flops: int


@dataclass(frozen=True)
class Score:
    """How an answer does.

    Attributes:
        compiled: the program that a device runs.
        wrong: what differs from the right values; empty where nothing does.
        nbytes, peak_nbytes, flops: what a device uses.
        goal: what it may use.
    """

    compiled: Compiled
    wrong: str
    nbytes: int
    peak_nbytes: int
    flops: int
    goal: Goal

    def __str__(self) -> str:
        """A line for each thing that counts."""
        lines = [f"values      {'right' if not self.wrong else self.wrong}"]
        for what, got, most in (
            ("bytes sent", self.nbytes, self.goal.nbytes),
            ("peak bytes", self.peak_nbytes, self.goal.peak_nbytes),
            ("operations", self.flops, self.goal.flops),
        ):
            lines.append(f"{what}  {got:>11,}  target {most:>11,}  {'reached' if got <= most else 'too many'}")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class Puzzle:
    """One puzzle.

    Attributes:
        goal: what a device may use.
        lower: from an answer to the program of eight devices.
        compare: from an answer to what is wrong with its values; empty where nothing is.
    """

    goal: Goal
    lower: Callable[[Answer], Compiled]
    compare: Callable[[Answer], str]

    def score(self, answer: Answer) -> Score:
        """Say how an answer does.

        Args:
            answer: a function of one device's blocks.

        Raises:
            What the answer raises.

        Communication: none; no device is needed.
        """
        wrong = self.compare(answer)
        compiled = self.lower(answer)
        cost = compiled.cost_analysis()
        return Score(compiled, wrong, cost.nbytes, compiled.memory_analysis().peak_nbytes, cost.flops, self.goal)


def _described(mesh: ts.Mesh, shape: tuple[int, ...], spec: ts.PartitionSpec) -> ts.ShapeDtypeStruct:
    return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))


def _blocks(x: torch.Tensor) -> torch.Tensor:
    """Rows in one block for each device: [8, rows / 8, ...]."""
    return x.unflatten(0, (DEVICES, -1))


def _with_first_line(told: str) -> str:
    return told.splitlines()[0] if told else ""


# ---- 18.1: ring attention ----------------------------------------------------------------------------------------


def queries_keys_values() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three matrices f32[1024, 32]; the scores are so large that exp of them overflows.

    Example:
        >>> q, k, v = queries_keys_values()
        >>> float(torch.exp((q @ k.T).amax()))
        inf
    """
    maker = torch.Generator().manual_seed(11)
    q, k, v = (torch.randn(TOKENS, FEATURES, generator=maker) for _ in range(3))
    return 8 * q, 8 * k, v


def _lower_ring(answer: Answer) -> Compiled:
    mesh = ts.AbstractMesh((DEVICES,), ("ring",))
    x = _described(mesh, (TOKENS, FEATURES), P("ring"))
    mapped = ts.shard_map(answer, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"))
    compiled: Compiled = mapped.lower(x, x, x).compile()
    return compiled


def _compare_ring(answer: Answer) -> str:
    q, k, v = queries_keys_values()
    want = torch.softmax(q.double() @ k.double().T / FEATURES**0.5, -1) @ v.double()
    got = ts.vmap(answer, axis_name="ring")(*map(_blocks, (q, k, v)))
    if got is None:
        return "it returns None"
    return _with_first_line(difference(got.flatten(0, 1), want.float(), "the result", 1e-3))


RING = Puzzle(
    Goal(
        nbytes=7 * 2 * TOKENS // DEVICES * FEATURES * 4,  # a block of keys and one of values, moved seven times
        peak_nbytes=256 * 1024,
        flops=2 * 2 * TOKENS // DEVICES * TOKENS * FEATURES,
    ),
    _lower_ring,
    _compare_ring,
)


# ---- 18.2: parameters that are cut -------------------------------------------------------------------------------

Batch = tuple[torch.Tensor, torch.Tensor]


def network_and_batch() -> tuple[list[torch.Tensor], Batch]:
    """Six matrices f32[256, 256], and 64 examples with their targets, f32[64, 256] each.

    Example:
        >>> matrices, (inputs, targets) = network_and_batch()
        >>> len(matrices), tuple(inputs.shape)
        (6, (64, 256))
    """
    maker = torch.Generator().manual_seed(12)
    matrices = [torch.randn(WIDTH, WIDTH, generator=maker) * (2 / WIDTH) ** 0.5 for _ in range(LAYERS)]
    inputs, targets = (torch.randn(EXAMPLES, WIDTH, generator=maker) for _ in range(2))
    return matrices, (inputs, targets)


def _whole_step(matrices: list[torch.Tensor], batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One step on one device."""

    def loss(matrices: list[torch.Tensor]) -> torch.Tensor:
        outputs = batch[0]
        for number, matrix in enumerate(matrices):
            outputs = (outputs.clamp(min=0) if number else outputs) @ matrix
        return ((outputs - batch[1]) ** 2).mean()

    value, grads = ts.value_and_grad(loss)(matrices)
    return value, [matrix - STEP_SIZE * grad for matrix, grad in zip(matrices, grads, strict=True)]


def _lower_fsdp(answer: Answer) -> Compiled:
    mesh = ts.AbstractMesh((DEVICES,), ("data",))
    matrices = [_described(mesh, (WIDTH, WIDTH), P("data"))] * LAYERS
    batch = (_described(mesh, (EXAMPLES, WIDTH), P("data")),) * 2
    mapped = ts.shard_map(answer, mesh=mesh, in_specs=P("data"), out_specs=(P(), P("data")))
    compiled: Compiled = mapped.lower(matrices, batch).compile()
    return compiled


def _compare_fsdp(answer: Answer) -> str:
    matrices, batch = network_and_batch()
    value, wanted = _whole_step(matrices, batch)
    got = ts.vmap(answer, axis_name="data")([_blocks(m) for m in matrices], tuple(_blocks(b) for b in batch))
    if got is None:
        return "it returns None"
    losses, made = got
    told = difference(losses, value.expand(DEVICES), "the loss", 1e-4)
    for number, (matrix, want) in enumerate(zip(made, wanted, strict=True), start=1):
        told = told or difference(matrix.flatten(0, 1), want, f"new matrix {number}", 1e-4)
    return _with_first_line(told)


MATRIX_NBYTES = WIDTH * WIDTH * 4

FSDP = Puzzle(
    Goal(
        # each matrix gathered twice (the first layer's backward needs none), each gradient scattered once; the loss
        nbytes=(3 * LAYERS - 1) * MATRIX_NBYTES * (DEVICES - 1) // DEVICES + 7,
        peak_nbytes=1_000_000,
        flops=(3 * LAYERS - 1) * 2 * EXAMPLES // DEVICES * WIDTH * WIDTH,
    ),
    _lower_fsdp,
    _compare_fsdp,
)


# ---- 18.3: a pipeline --------------------------------------------------------------------------------------------


def stages_and_batches() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight layers f32[8, 64, 64], and sixteen micro-batches f32[16, 4, 64].

    Example:
        >>> [tuple(x.shape) for x in stages_and_batches()]
        [(8, 64, 64), (16, 4, 64)]
    """
    maker = torch.Generator().manual_seed(13)
    matrices = torch.randn(DEVICES, STAGE_WIDTH, STAGE_WIDTH, generator=maker) * (2 / STAGE_WIDTH) ** 0.5
    return matrices, torch.randn(MICRO_BATCHES, MICRO_EXAMPLES, STAGE_WIDTH, generator=maker)


def _lower_pipeline(answer: Answer) -> Compiled:
    mesh = ts.AbstractMesh((DEVICES,), ("stage",))
    matrices = _described(mesh, (DEVICES, STAGE_WIDTH, STAGE_WIDTH), P("stage"))
    batches = _described(mesh, (MICRO_BATCHES, MICRO_EXAMPLES, STAGE_WIDTH), P())
    mapped = ts.shard_map(answer, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P("stage"))
    compiled: Compiled = mapped.lower(matrices, batches).compile()
    return compiled


def _compare_pipeline(answer: Answer) -> str:
    matrices, batches = stages_and_batches()
    want = batches
    for matrix in matrices:
        want = (want @ matrix).clamp(min=0)
    got = ts.vmap(answer, in_axes=(0, None), axis_name="stage")(matrices[:, None], batches)
    if got is None:
        return "it returns None"
    return _with_first_line(difference(got[-1].squeeze(0), want, "what the last stage returns", 1e-4))


TICKS = MICRO_BATCHES + DEVICES - 1

PIPELINE = Puzzle(
    Goal(
        nbytes=(TICKS - 1) * MICRO_EXAMPLES * STAGE_WIDTH * 4,
        peak_nbytes=96 * 1024,
        flops=TICKS * 2 * MICRO_EXAMPLES * STAGE_WIDTH**2,
    ),
    _lower_pipeline,
    _compare_pipeline,
)
