"""Data parallel by torch.distributed alone: each gradient is averaged by an all_reduce of its own.

    torchrun --nproc-per-node 2 -m course.bridge.by_hand

Each process has all parameters and its part of the examples. The mean of the gradients of equal parts is the gradient
of the mean; so all processes make the same step, and their parameters stay equal.
"""

from __future__ import annotations

import torch.distributed as dist

from course.bridge.loop import train
from course.bridge.setting import new_model


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", after cuda.set_device
    rank, processes = dist.get_rank(), dist.get_world_size()

    model = new_model()

    def average() -> None:
        for gradient in [p.grad for p in model.parameters() if p.grad is not None]:
            dist.all_reduce(gradient)
            gradient /= processes

    train(model, rank, processes, finish_gradients=average)


if __name__ == "__main__":
    main()
