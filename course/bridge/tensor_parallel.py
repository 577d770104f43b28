"""Tensor parallel by DTensor: each process has some heads of attention and some columns of the dense layers.

    torchrun --nproc-per-node 2 -m course.bridge.tensor_parallel

A product with columns needs nothing from other processes; one with rows gives partial sums, which an all_reduce adds
up. All processes compute all examples.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

from course.bridge.loop import train
from course.bridge.setting import new_model


def divide(layer: Any, mesh: DeviceMesh) -> None:
    """Divide a layer along a mesh of one axis."""
    layer.heads //= mesh.size()  # a process computes its own
    columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    rows = {name: RowwiseParallel() for name in ("o", "down")}
    # q, k and v get one DTensor, so their gradients are added up before they are communicated, not after
    shared = PrepareModuleOutput(
        output_layouts=Replicate(),
        desired_output_layouts=Replicate(),
        use_local_output=False,
    )
    parallelize_module(layer, mesh, {**columns, **rows, "before": shared})


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", after cuda.set_device
    processes = dist.get_world_size()
    mesh = init_device_mesh("cpu", (processes,), mesh_dim_names=("model",))  # on GPUs: "cuda"

    model = new_model()
    for layer in model.layers:
        divide(layer, mesh)
    train(model)


if __name__ == "__main__":
    main()
