"""Fully sharded data parallel, FSDP2: each process has a part of every parameter, gradient and optimizer state.

    torchrun --nproc-per-node 2 -m course.bridge.fsdp

`fully_shard` of a layer makes one unit of it: its parameters are gathered together before it is computed, in the
forward and in the backward pass, and its gradients are reduced and scattered together.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course.bridge.setting import RATE, STEPS, examples, new_model, result_line
from course.bridge.traffic import Traffic
from course.transformer import cross_entropy


def main() -> None:
    """What each process runs."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and torch.cuda.set_device(local rank)
    rank, processes = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (processes,), mesh_dim_names=("data",))  # on GPUs: "cuda"

    model = new_model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is in no layer
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        tokens, targets = (each.chunk(processes)[rank] for each in examples(step))
        with Traffic() as traffic:
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
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
