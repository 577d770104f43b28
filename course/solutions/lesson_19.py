"""Lesson 19: answers."""

from typing import Any

import torch
import torch.distributed as dist

from course.bridge import launch
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def average(gradients: Any, all_reduce: Any, processes: int) -> None:
    """19.1."""
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(bucket)
    bucket /= processes
    parts = bucket.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def average_of_a_copy(gradients: Any, all_reduce: Any, processes: int) -> None:
    """Wrong: the bucket is thrown away."""
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(bucket)
    bucket /= processes


def average_in_the_list(gradients: Any, all_reduce: Any, processes: int) -> None:
    """Wrong: the list has other tensors, and those of the model are as they were."""
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(bucket)
    bucket /= processes
    for i, part in enumerate(bucket.split([gradient.numel() for gradient in gradients])):
        gradients[i] = part.view_as(gradients[i])


def summed(gradients: Any, all_reduce: Any, processes: int) -> None:
    """Wrong: sums, not means."""
    average(gradients, all_reduce, 1)


def padded(gradients: Any, all_reduce: Any, processes: int) -> None:
    """Wrong: every gradient takes as much room as the largest."""
    most = max(gradient.numel() for gradient in gradients)
    bucket = torch.zeros(len(gradients), most)
    for row, gradient in zip(bucket, gradients, strict=True):
        row[: gradient.numel()] = gradient.flatten()
    all_reduce(bucket)
    for row, gradient in zip(bucket, gradients, strict=True):
        gradient.copy_(row[: gradient.numel()].view_as(gradient) / processes)


def averaged_one_by_one(gradients: Any, all_reduce: Any, processes: int) -> None:
    """Wrong: an all_reduce for each."""
    for gradient in list(gradients):
        all_reduce(gradient)
        gradient.div_(processes)


FSDP = launch.code("fsdp")
ALL_LAYERS = """    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
"""
THE_REST = "    fully_shard(model, mesh=mesh)  # what is in no layer\n"


def checkpoint(model: Any, rank: int) -> Any:
    """19.4."""
    saved = {}
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor()
        if rank == 0:
            saved[name] = whole
    return saved


def checkpoint_for_one_other(model: Any, rank: int) -> Any:
    """Wrong: right for two processes, the others do not gather."""
    return checkpoint(model, rank) if rank < 2 else {}


def checkpoint_of_the_own_part(model: Any, rank: int) -> Any:
    """Wrong: nothing hangs, and most of the model is lost."""
    return {name: p.to_local() for name, p in model.named_parameters()} if rank == 0 else {}


def checkpoint_still_sharded(model: Any, rank: int) -> Any:
    """Wrong: the parameters as they are."""
    return dict(model.named_parameters()) if rank == 0 else {}


def checkpoint_everywhere(model: Any, rank: int) -> Any:
    """Wrong: each process returns the model."""
    return checkpoint(model, 0)


def checkpoint_held_everywhere(model: Any, rank: int) -> Any:
    """Wrong: each process holds the whole model, before all but one drop it."""
    saved = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    return saved if rank == 0 else {}


def checkpoint_by_gather_of_process_0(model: Any, rank: int) -> Any:
    """Wrong: `gather` brings the parts to process 0, but the others must call it too."""
    saved = {}
    if rank == 0:
        for name, parameter in model.named_parameters():
            local = parameter.to_local().detach()
            parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
            dist.gather(local, parts, dst=0)
            saved[name] = torch.cat(parts)
    return saved


def checkpoint_with_one_barrier(model: Any, rank: int) -> Any:
    """Wrong: process 0 waits at a barrier that no other process calls."""
    saved = checkpoint(model, rank)
    if rank == 0:
        dist.barrier()
    return saved


def checkpoint_in_two_orders(model: Any, rank: int) -> Any:
    """Wrong: as many gathers in all processes, in another order."""
    saved, parameters = {}, dict(model.named_parameters())
    for name in sorted(parameters) if rank == 0 else parameters:
        whole = parameters[name].full_tensor()
        if rank == 0:
            saved[name] = whole
    return saved


ANSWERS = {
    "19.1": Answers(
        solution=average,
        wrong=(
            Wrong(averaged_one_by_one, "Make one tensor of them"),
            Wrong(average_of_a_copy, "must be copied back"),
            Wrong(average_in_the_list, "must be copied back"),
            Wrong(summed, "The mean is wanted"),
            Wrong(padded, "and nothing else"),
        ),
    ),
    "19.2": Answers(
        solution=FSDP,
        wrong=(
            Wrong(FSDP.replace(ALL_LAYERS, ""), "Make each layer a unit first"),
            Wrong(FSDP.replace(THE_REST, ""), "make the model itself one as well"),
            Wrong(FSDP.replace(", reshard_after_forward=False", ""), "gathered twice"),
            Wrong(FSDP.replace("train(model,", "train(DistributedDataParallel(model),"), "it does not go inside it"),
            Wrong("print('hello')", "Import it from torch.distributed.fsdp"),
        ),
    ),
    "19.3": Answers(
        solution=641_536,
        wrong=(
            Wrong(662_400, "the outermost unit is kept"),
            Wrong(441_600, "which is done twice now"),
            Wrong(420_736, "The gradients are sent, too"),
            Wrong(841_472, "(n - 1) / n"),
        ),
    ),
    "19.4": Answers(
        solution=checkpoint,
        wrong=(
            Wrong(checkpoint_for_one_other, "Which lines depend on the rank"),
            Wrong(checkpoint_by_gather_of_process_0, "Which lines depend on the rank"),
            Wrong(checkpoint_with_one_barrier, "Which lines depend on the rank"),
            Wrong(checkpoint_in_two_orders, "in the same order"),
            Wrong(checkpoint_of_the_own_part, "must be gathered"),
            Wrong(checkpoint_still_sharded, "must be gathered"),
            Wrong(checkpoint_everywhere, "Only process 0 writes"),
            Wrong(checkpoint_held_everywhere, "which one must keep the result"),
        ),
    ),
}
