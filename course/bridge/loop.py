"""The training that every program of the bridge does with its model."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from course.bridge.setting import RATE, STEPS, examples, result_line
from course.bridge.traffic import Traffic
from course.transformer import cross_entropy

__all__ = ["train"]


def train(
    model: torch.nn.Module, place: int = 0, parts: int = 1, finish_gradients: Callable[[], None] = lambda: None
) -> None:
    """Train for the steps of the bridge; process 0 prints a line for each. Ends the process group.

    Args:
        model: this process's.
        place, parts: which of how many parts of the examples this process has.
        finish_gradients: called after the backward pass.

    Communication: what the model does, and an all_reduce of the loss in each step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        tokens, targets = (each.chunk(parts)[place] for each in examples(step))
        with Traffic() as traffic:
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
            finish_gradients()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(result_line(step, mean.item() / dist.get_world_size(), traffic.sent), flush=True)
    dist.barrier()  # no process ends while another still communicates
    dist.destroy_process_group()
