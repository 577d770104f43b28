"""Rungs 13 and 14: a pipeline of eight stages forward, and two of four stages with the backward pass."""

from __future__ import annotations

import functools

import torch

import tinyshard as ts
from course.ladder.layers import few, own, whole_numbers
from course.ladder.rung import DEVICES, Par, Rung

__all__ = ["RUNGS"]

WIDTH, MICRO_BATCHES = 32, 8
P = ts.P

# ---- 18.13: GPipe, forward ----------------------------------------------------------------------------------------

FEW_EXAMPLES = 4
TICKS = MICRO_BATCHES + DEVICES - 1
SENT_NBYTES = 4 * FEW_EXAMPLES * WIDTH


@functools.cache
def stages_and_batches() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight stages f32[8, 32, 32], and eight micro-batches f32[8, 4, 32].

    Example:
        >>> [tuple(x.shape) for x in stages_and_batches()]
        [(8, 32, 32), (8, 4, 32)]
    """
    return few(40, DEVICES, WIDTH, WIDTH), whole_numbers(42, 2, MICRO_BATCHES, FEW_EXAMPLES, WIDTH)


def _through_all(W: torch.Tensor, batches: torch.Tensor) -> torch.Tensor:
    for stage in W:
        batches = batches.relu() @ stage
    return batches


# ---- 18.14: 1F1B --------------------------------------------------------------------------------------------------

STAGES, PIPELINES, EXAMPLES = 4, 2, 8
PASSED_NBYTES = 4 * EXAMPLES * WIDTH
ONE_WAY = MICRO_BATCHES + STAGES - 1  # ticks in which a stage goes forward, and as many in which it goes backward


@functools.cache
def stages_batches_and_targets() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four stages f32[4, 32, 32]; for each of two pipelines eight micro-batches f32[8, 8, 32], and targets.

    Example:
        >>> [tuple(x.shape) for x in stages_batches_and_targets()]
        [(4, 32, 32), (16, 8, 32), (16, 8, 32)]
    """
    shape = (PIPELINES * MICRO_BATCHES, EXAMPLES, WIDTH)
    return few(43, STAGES, WIDTH, WIDTH), whole_numbers(45, 2, *shape), whole_numbers(46, 2, *shape)


def _gradients(W: torch.Tensor, batches: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    leaf = W.clone().requires_grad_()
    loss = ((_through_all(leaf, batches) - targets) ** 2).sum() / 2
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient.repeat(PIPELINES, 1, 1)


def of_stages(name: str) -> tuple[tuple[str, ...], ...]:
    """Devices 0 to 3 are the stages of one pipeline, 4 to 7 those of the other."""
    return tuple((f"{name}.{device % STAGES}",) for device in range(DEVICES))


def of_pipelines(name: str) -> tuple[tuple[str, ...], ...]:
    """The stages of a pipeline have the same micro-batches."""
    return tuple((f"{name}.{'ab'[device // STAGES]}",) for device in range(DEVICES))


RUNGS = (
    Rung(
        "18.13",
        "GPipe, forward",
        given=(("W", own("W")), ("8 micro-batches", (("0…7",),) * DEVICES)),
        wanted=(("8 results", ((),) * (DEVICES - 1) + (("0…7",),)),),
        # the last tick sends nothing; eight results are held until the end, not fifteen
        par=Par(nbytes=(TICKS - 1) * SENT_NBYTES, peak_nbytes=21 * 1024, flops=TICKS * 2 * FEW_EXAMPLES * WIDTH**2),
        inputs=stages_and_batches,
        want=_through_all,
        in_specs=(P("d"), P()),
        out_specs=P("d"),
        read=lambda results: results[-1],
    ),
    Rung(
        "18.14",
        "1F1B, with the backward pass",
        given=(("W", of_stages("W")), ("8 micro-batches", of_pipelines("x")), ("targets", of_pipelines("t"))),
        wanted=(("gradient of W", of_stages("dW")),),
        # each way a message in all ticks but the last, and at the end the sum of both pipelines' gradients; of three
        # products in a tick the last backward one makes a gradient that no stage needs
        par=Par(
            nbytes=2 * (ONE_WAY - 1) * PASSED_NBYTES + 4 * WIDTH**2,
            peak_nbytes=45 * 1024,
            flops=(3 * ONE_WAY - 1) * 2 * EXAMPLES * WIDTH**2,
        ),
        inputs=stages_batches_and_targets,
        want=_gradients,
        in_specs=(P("stage"), P("data"), P("data")),
        out_specs=P(("data", "stage")),
        mesh=((PIPELINES, STAGES), ("data", "stage")),
    ),
)
