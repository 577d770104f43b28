"""Lesson 19: one bucket for all gradients, DDP into FSDP2, the price of gathering twice, and a checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from course.bridge import alone, launch
from course.bridge.setting import DEPTH, new_model
from course.exercises.compare import difference, number_in
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

Answer = Callable[..., Any]


# 19.1's answer cell before it is touched: right, with an all_reduce for each gradient
def _one_by_one(gradients, all_reduce, processes):  # type: ignore[no-untyped-def]
    for gradient in gradients:
        all_reduce(gradient)
        gradient /= processes


def judge_bucket(average: Answer) -> Verdict:
    """19.1: the mean over the processes, in place, by one all_reduce of no more than the gradients."""
    for shapes, processes in ((((4, 3), (3,), (2, 2, 2)), 4), (((5,), (1, 7)), 2)):
        mine = [torch.arange(float(torch.Size(shape).numel())).reshape(shape) for shape in shapes]
        flat = torch.cat([each.flatten() for each in mine])
        total = len(flat)
        sent: list[int] = []

        def all_reduce(
            x: torch.Tensor, others: int = processes - 1, flat: torch.Tensor = flat, sent: list[int] = sent
        ) -> None:
            # each of the others has 1 more in its first gradient's first number, and so on: 1, 2, 3, …
            sent.append(x.numel())
            added = torch.arange(1.0, len(flat) + 1)
            divided = x.sum() / flat.sum()  # by the number of processes, where the mean is taken before it is sent
            x *= others + 1
            if x.numel() == len(flat):
                x += others * divided * added.reshape(x.shape)

        given = [each.clone() for each in mine]
        average(list(given), all_reduce, processes)  # a list of its own: what counts is what the tensors hold
        if len(sent) != 1:
            return differs(
                f"{len(sent)} all_reduces for {len(mine)} gradients, not 1",
                "What could be all-reduced once in place of all gradients? Make one tensor of them.",
            )
        if sent[0] != total:
            return differs(
                f"the all_reduce has {sent[0]} numbers, the gradients {total}",
                "The bucket holds each gradient once, flattened, and nothing else.",
            )
        offset = torch.arange(1.0, total + 1) * (processes - 1) / processes
        want = flat + offset
        got = torch.cat([each.flatten() for each in given])
        if torch.equal(got, flat) or torch.equal(got, flat / processes):
            hint = "The bucket is a copy: its parts must be copied back into the gradients."
            return differs("the gradients have nothing of the other processes", hint)
        if not difference(got, want * processes):
            return differs("the gradients are sums", "The mean is wanted: divide by the number of processes.")
        if reported := difference(got, want, "the gradients, one after the other,"):
            return differs(reported)
    return PASSED


# What FSDP2 with a unit for each layer sends on two processes, by kind.
_UNITS, _HALF = DEPTH + 1, 220_800


def judge_fsdp(script: object) -> Verdict:
    """19.2: each layer is a unit, each parameter is gathered once, and no gradient is all-reduced."""
    if not isinstance(script, str):
        return differs(f"it is of type {type(script).__name__}, not the text of a program")
    if "fully_shard" not in script:
        return differs("the script does not call fully_shard", "Import it from torch.distributed.fsdp.")
    wrapped = differs(
        "the model is still wrapped in DistributedDataParallel",
        "DDP copies all parameters to every process: `fully_shard` takes its place, it does not go inside it.",
    )
    if "DistributedDataParallel(" in script:  # around FSDP2 it cannot be made
        return wrapped
    ran = alone.run(script)
    if isinstance(ran.model, torch.nn.parallel.DistributedDataParallel):
        return wrapped
    if (ran.place, ran.parts) != (0, 2):
        return differs("train gets other arguments than rank and processes", "Each process has its part of examples.")
    gathered, scattered = ran.sent.get("all_gather", (0, 0)), ran.sent.get("reduce_scatter", (0, 0))
    reported = f"all_gather {gathered[0]} times, {gathered[1]:,} bytes; reduce_scatter {scattered[0]} times, "
    reported += f"{scattered[1]:,} bytes"
    if scattered[0] == 1:
        hint = "One unit: all parameters are gathered before the first layer. Make each layer a unit first."
        return differs(reported, hint)
    if scattered[1] < _HALF:
        hint = "Some parameters are in no unit, so their gradients are not added up: make the model itself one as well."
        return differs(reported, hint)
    if gathered[1] > _HALF:
        return differs(reported, "The layers are gathered twice: `reshard_after_forward` says whether they are kept.")
    if gathered != (_UNITS, _HALF) or scattered != (_UNITS, _HALF):
        return differs(reported)
    return PASSED


def _counts() -> tuple[int, int]:
    """Bytes that one of two processes sends to gather all parameters once, and those of the layers."""
    model = new_model()
    whole = sum(p.nbytes for p in model.parameters())
    return whole // 2, sum(p.nbytes for p in model.layers.parameters()) // 2


def judge_regather(answer: object) -> Verdict:
    """19.3: bytes of a step in which the layers are gathered twice, and the rest once."""
    number = number_in(answer)
    once, layers = _counts()
    if number == 2 * once + layers:
        return PASSED
    reported = (
        f"{answer} is not what one process sends" if number is None else f"{number:,} is not what one process sends"
    )
    if number == 3 * once:
        return differs(reported, "Everything twice: but the outermost unit is kept, since backward begins with it.")
    if number == 2 * once:
        return differs(
            reported, "That is one all_gather of everything, and one reduce_scatter: which is done twice now?"
        )
    if number == once + layers:
        return differs(reported, "Those are the gathers. The gradients are sent, too.")
    if number == 2 * once + 2 * layers:
        return differs(reported, "By two processes each sends half of what it gathers: (n - 1) / n of the bytes.")
    return differs(reported)


# 19.4's answer cell before it is touched: process 0 waits for gathers that no other process calls
def _only_process_0(model, rank):  # type: ignore[no-untyped-def]
    saved = {}
    if rank == 0:
        for name, parameter in model.named_parameters():
            saved[name] = parameter.full_tensor()
    return saved


_PROCESSES = 4


def _difference_of_calls(first: alone.Saved, other: alone.Saved) -> str:
    """The first difference between the collectives of process 0 and another; "" if there is none."""
    counts = len(first.called), len(other.called)
    if counts[0] != counts[1]:
        return f"process 0 calls {counts[0]} collectives, process {other.rank} calls {counts[1]}"
    for number, (one, two) in enumerate(zip(first.called, other.called, strict=True), 1):
        if one != two:
            said = [f"{kind} of {nbytes:,} bytes" for kind, nbytes in (one, two)]
            return f"collective {number} is {said[0]} in process 0, {said[1]} in process {other.rank}"
    return ""


def judge_checkpoint(checkpoint: Answer) -> Verdict:
    """19.4: every process gathers, process 0 keeps all parameters, the others neither keep nor hold them."""
    first, *others = (alone.save(checkpoint, rank, _PROCESSES) for rank in range(_PROCESSES))
    for other in others:
        if reported := _difference_of_calls(first, other):
            return differs(
                reported,
                "A gather ends when every process has called it, and all must call the same collectives in the same "
                "order. Which lines depend on the rank, and need not?",
            )
    if not isinstance(first.returned, Mapping):
        return differs(f"process 0 returns {type(first.returned).__name__}, not a dict")
    model = dict(new_model().named_parameters())
    if missing := model.keys() - first.returned.keys():
        return differs(f"process 0 returns nothing for {min(missing)!r}, and {len(missing) - 1} others")
    for name, parameter in model.items():
        whole = first.returned[name]
        local = whole.to_local() if hasattr(whole, "to_local") else whole
        if local.shape != parameter.shape:
            return differs(
                f"{name!r} has {local.numel():,} numbers in process 0, the whole {parameter.numel():,}",
                "That is the part of process 0. The parts of the others must be gathered.",
            )
        # alone, a process gathers right numbers for its own part only
        if not torch.equal(local.chunk(_PROCESSES)[0], parameter.chunk(_PROCESSES)[0]):
            return differs(f"{name!r} has other numbers than that parameter of the model")
    nbytes = sum(p.nbytes for p in model.values())
    for other in others:
        if other.returned:
            return differs(f"process {other.rank} returns something", "Only process 0 writes the checkpoint.")
        if other.held_nbytes >= nbytes:
            return differs(
                f"process {other.rank} holds {other.held_nbytes:,} bytes at a time, the model has {nbytes:,}",
                "Every process must gather, but which one must keep the result while it gathers the next parameter?",
            )
    return PASSED


EXERCISES = (
    Exercise(
        "19.1",
        judge_bucket,
        (
            "How many tensors does one all_reduce take?",
            "`torch.cat` makes one tensor of flattened ones; `all_reduce` changes it in place.",
            "After the all_reduce the buckets' parts go back: `split` by the sizes, then `copy_` into each gradient.",
        ),
        stub=_one_by_one,
        why="One all_reduce has the same bytes and pays its latency once, not 38 times. DDP does this in buckets of "
        "25 MB, so that the first bucket travels while the backward pass goes on.",
    ),
    Exercise(
        "19.2",
        judge_fsdp,
        (
            "What replaces DistributedDataParallel(new_model())? Start with `model = new_model()`.",
            "A mesh of one axis from `init_device_mesh`; then `fully_shard` for each of `model.layers`.",
            "The embedding and the head are in no layer: the last call is for the model itself.",
        ),
        stub=launch.code("ddp"),
        why="Three units: two layers, and what is in no layer. Each is gathered before it computes, and its gradients "
        "are reduce-scattered: together the bytes of DDP's all_reduce, with half of the state in each process.",
    ),
    Exercise(
        "19.3",
        judge_regather,
        (
            "Which of the three units are gathered a second time?",
            "Every gather and every reduce_scatter of n processes sends (n - 1) / n of the unit's bytes.",
            "Add up: the gather of everything, the second gather of both layers, the reduce_scatter of everything.",
        ),
        why="220,800 to gather, 199,936 to gather the layers again, 220,800 to reduce-scatter. At most 1.5× the bytes: "
        "that is the price at which FSDP2's default holds one layer at a time.",
    ),
    Exercise(
        "19.4",
        judge_checkpoint,
        (
            "How many all_gathers does each process call? Read both lines below the code.",
            "`full_tensor` is a collective: what depends on the rank is not whether it is called.",
            "What depends on the rank is how long the result is kept: for the file, or only until the next gather.",
        ),
        stub=_only_process_0,
        why="All processes call the same collectives in the same order; what a process keeps may depend on its rank. "
        "AdamW's moments are DTensors, too, and are needed to resume training. Large "
        "models use torch.distributed.checkpoint, which gathers nothing: each process writes its own part.",
    ),
)
