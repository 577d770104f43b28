"""Tensor parallel within a node and fully sharded between nodes: what a large model is trained by.

    torchrun --nproc-per-node 4 -m course.bridge.two_dims

The mesh has two axes. DTensor divides a layer along "model", whose processes are joined by fast links; FSDP2 divides
what is left of each parameter along "data", which also divides the examples.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course.bridge.loop import train
from course.bridge.setting import new_model


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and torch.cuda.set_device(local rank)
    processes = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, processes // 2), mesh_dim_names=("data", "model"))  # on GPUs: "cuda"

    model = new_model()
    layers: list[Any] = list(model.layers)
    for layer in layers:
        layer.heads //= mesh["model"].size()
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        parallelize_module(layer, mesh["model"], columns | {name: RowwiseParallel() for name in ("o", "down")})
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    train(model, mesh["data"].get_local_rank(), mesh["data"].size())


if __name__ == "__main__":
    main()
