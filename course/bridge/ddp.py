"""Data parallel by DistributedDataParallel: gradients averaged in buckets.

torchrun --nproc-per-node 2 -m course.bridge.ddp
"""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course.bridge.loop import train
from course.bridge.setting import new_model


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", after cuda.set_device
    rank, processes = dist.get_rank(), dist.get_world_size()

    train(DistributedDataParallel(new_model()), rank, processes)


if __name__ == "__main__":
    main()
