"""Data parallel by torch.distributed alone: each gradient is averaged by an all_reduce of its own.

    torchrun --nproc-per-node 2 -m course.bridge.by_hand

Each process has all parameters and its part of the examples. The mean of the gradients of equal parts is the gradient
of the mean; so all processes make the same step, and their parameters stay equal.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.bridge.setting import RATE, STEPS, examples, new_model, result_line
from course.bridge.traffic import Traffic
from course.transformer import cross_entropy


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and torch.cuda.set_device(local rank)
    rank, processes = dist.get_rank(), dist.get_world_size()

    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        tokens, targets = (each.chunk(processes)[rank] for each in examples(step))
        with Traffic() as traffic:
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
            for gradient in [p.grad for p in model.parameters() if p.grad is not None]:
                dist.all_reduce(gradient)
                gradient /= processes
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(result_line(step, mean.item() / processes, traffic.sent), flush=True)
    dist.barrier()  # no process ends while another still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
