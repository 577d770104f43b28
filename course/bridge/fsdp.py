"""Fully sharded data parallel, FSDP2: each process has a part of every parameter, gradient and optimizer state.

    torchrun --nproc-per-node 2 -m course.bridge.fsdp

`fully_shard` of a layer makes one unit of it: its parameters are gathered together before it is computed, and its
gradients are reduced and scattered together. With reshard_after_forward=True, the default, a layer's parameters are
dropped after the forward pass and gathered again in the backward pass: less memory, more bytes.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course.bridge.loop import train
from course.bridge.setting import new_model


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", after cuda.set_device
    rank, processes = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (processes,), mesh_dim_names=("data",))  # on GPUs: "cuda"

    model = new_model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)  # what is in no layer
    train(model, rank, processes)


if __name__ == "__main__":
    main()
