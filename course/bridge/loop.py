"""The training that every program of the bridge does with its model."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from course.bridge.setting import RATE, STEPS, examples, result_line
from course.bridge.traffic import Traffic, kinds_of
from course.transformer import cross_entropy

__all__ = ["train"]


def train(
    model: torch.nn.Module,
    place: int = 0,
    parts: int = 1,
    group: dist.ProcessGroup | None = None,
    finish_gradients: Callable[[], None] = lambda: None,
) -> None:
    """Train for the steps of the bridge; process 0 prints a line for each. Ends the process group, and the process
    unless torchrun has forked it.

    Args:
        model: this process's.
        place, parts: which of how many parts of the examples this process has.
        group: the processes that have the other parts; None: all.
        finish_gradients: called after the backward pass.

    Communication: what the model does; and, if there are several parts, an all_reduce of the loss and of the number
    of its targets in each step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        tokens, targets = (each.chunk(parts)[place] for each in examples(step))
        with _counting() as counted:
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
            finish_gradients()
            total = torch.stack([loss.detach() * targets.numel(), torch.tensor(float(targets.numel()))])
            if parts > 1:
                dist.all_reduce(total, group=group)
        optimizer.step()
        optimizer.zero_grad()
        if counted:
            traffic, comm_mode = counted
            mean = (total[0] / total[1]).item()
            print(result_line(step, mean, traffic.sent, kinds_of(comm_mode.get_comm_counts())), flush=True)
    dist.barrier()  # no process ends while another still communicates
    dist.destroy_process_group()
    if multiprocessing.parent_process() is None:
        _end()


@contextmanager
def _counting() -> Iterator[tuple[Traffic, Any] | None]:
    """Count in process 0, which prints; None in the others, which need not import CommDebugMode: it takes 26 MB."""
    if dist.get_rank():
        yield None
        return
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as comm_mode, Traffic() as traffic:
        yield traffic, comm_mode


def _end() -> None:
    """End the process without the interpreter's own end.

    A dispatch mode that has seen a collective, as CommDebugMode does, leaves a reference to the process group behind:
    destroy_process_group() does not end gloo's threads then. One that lets go of a tensor while the interpreter ends
    aborts the process (SIGABRT). A forked process always ends without the interpreter's end, after it has told torchrun
    that the script is done.
    """
    sys.stdout.flush()
    os._exit(0)
