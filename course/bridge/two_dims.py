"""Tensor parallel within a node and fully sharded between nodes: what a large model is trained by.

    torchrun --nproc-per-node 4 -m course.bridge.two_dims

The mesh has two axes. DTensor divides a layer along "model", whose processes are joined by fast links; FSDP2 divides
what is left of each parameter along "data", which also divides the examples.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course.bridge.loop import train
from course.bridge.setting import new_model
from course.bridge.tensor_parallel import divide


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", after cuda.set_device
    processes = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, processes // 2), mesh_dim_names=("data", "model"))  # on GPUs: "cuda"

    model, data = new_model(), mesh["data"]
    for layer in model.layers:
        divide(layer, mesh["model"])
        fully_shard(layer, mesh=data, reshard_after_forward=False)
    fully_shard(model, mesh=data)
    train(model, data.get_local_rank(), data.size(), data.get_group())


if __name__ == "__main__":
    main()
