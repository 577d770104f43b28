"""What every program of the bridge trains on, and how it says what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from course.transformer import Transformer, batch

__all__ = ["DEPTH", "EXAMPLES", "LENGTH", "RATE", "STEPS", "examples", "new_model", "result_line"]

WIDTH, HEADS, DEPTH, LENGTH = 64, 4, 2, 32
EXAMPLES = 8  # of a step, over all processes
STEPS, RATE = 4, 1e-3


def new_model() -> Transformer:
    """The same numbers in every process, and in tinyshard."""
    torch.manual_seed(0)
    return Transformer(WIDTH, HEADS, DEPTH, LENGTH)


def examples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a step and the token after each: two of int64[EXAMPLES, LENGTH]."""
    tokens = batch(step, EXAMPLES, LENGTH)
    return tokens[:, :-1], tokens[:, 1:]


def result_line(step: int, loss: float, sent: Mapping[str, tuple[int, int]], counted: Mapping[str, int]) -> str:
    """What process 0 prints after a step; `launch` reads it.

    Args:
        step: from 0.
        loss: of all examples of the step.
        sent: for each kind of collective how many there were, and the bytes that one process sent in them.
        counted: for each kind how many CommDebugMode saw.
    """
    return json.dumps({"step": step, "loss": loss, "sent": sent, "counted": counted})
