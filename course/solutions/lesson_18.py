"""Lesson 18: answers."""

import math

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

AROUND = [(i, (i + 1) % 8) for i in range(8)]
RIGHT = [(i, i + 1) for i in range(7)]

# ---- 18.1 ------------------------------------------------------------------------------------------------------


def attention(q, k, v, moves, with_largest=True):  # type: ignore[no-untyped-def]
    """Attention around the ring; with eight moves one too many, and without the largest score it overflows."""
    largest = torch.full_like(q[:, :1], -math.inf)
    total = torch.zeros_like(largest)
    weighted = torch.zeros_like(q)
    for block in range(8):
        scores = q @ k.T / q.shape[1] ** 0.5
        seen = torch.maximum(largest, scores.amax(1, keepdim=True)) if with_largest else torch.zeros_like(largest)
        weights = torch.exp(scores - seen)
        shrink = torch.exp(largest - seen) if with_largest else 1.0
        total = total * shrink + weights.sum(1, keepdim=True)
        weighted = weighted * shrink + weights @ v
        largest = seen
        if block < moves:
            k, v = ts.lax.ppermute((k, v), "ring", AROUND)
    # one move too many must be seen to be used, or the program leaves it out
    return weighted / total + (0 * (k[:1, :1] + v[:1, :1]) if moves > 7 else 0)


def ring(q, k, v):  # type: ignore[no-untyped-def]
    """One block of keys and values at a time."""
    return attention(q, k, v, moves=7)


def ring_of_eight_moves(q, k, v):  # type: ignore[no-untyped-def]
    """Sends everything home again."""
    return attention(q, k, v, moves=8)


def ring_that_overflows(q, k, v):  # type: ignore[no-untyped-def]
    """Adds up exp of the scores as they are."""
    return attention(q, k, v, moves=7, with_largest=False)


def gathered_by_moves(q, k, v):  # type: ignore[no-untyped-def]
    """Moves one block at a time, and keeps them all."""
    keys, values = [k], [v]
    for _ in range(7):
        k, v = ts.lax.ppermute((k, v), "ring", AROUND)
        keys.append(k)
        values.append(v)
    return torch.softmax(q @ torch.cat(keys).T / q.shape[1] ** 0.5, -1) @ torch.cat(values)


def gathered(q, k, v):  # type: ignore[no-untyped-def]
    """Gathers keys and values, in one collective each."""
    k, v = ts.lax.all_gather((k, v), "ring", tiled=True)
    return torch.softmax(q @ k.T / q.shape[1] ** 0.5, -1) @ v


# ---- 18.2 ------------------------------------------------------------------------------------------------------


def gather(shard):  # type: ignore[no-untyped-def]
    """The whole matrix."""
    return ts.lax.all_gather(shard, "data", tiled=True)


def scatter(grad):  # type: ignore[no-untyped-def]
    """This device's rows of the mean of all gradients."""
    return ts.lax.psum_scatter(grad, "data", tiled=True) / 8


def step(shards, batch, again, scatter=scatter):  # type: ignore[no-untyped-def]
    """A training step with the backward pass by hand; `again` says what is gathered there."""
    inputs, targets = batch
    kept = [inputs]
    for number, shard in enumerate(shards):
        outputs = kept[-1] @ gather(shard)
        if number < len(shards) - 1:
            kept.append(outputs.clamp(min=0))
    error = outputs - targets
    grad = 2 * error / error.numel()
    new: list[torch.Tensor] = []
    for number in reversed(range(len(shards))):
        new.insert(0, shards[number] - 0.1 * scatter(kept[number].T @ grad))
        if number:
            grad = (grad @ gather(again(shards[number])).T) * (kept[number] > 0)
    return ts.lax.pmean((error**2).mean(), "data"), new


def fsdp(shards, batch):  # type: ignore[no-untyped-def]
    """A matrix is whole only while it is used."""
    return step(shards, batch, lambda shard: shard.clone())


def fsdp_that_keeps(shards, batch):  # type: ignore[no-untyped-def]
    """Gathers the same again: the program does it once, and keeps it."""
    return step(shards, batch, lambda shard: shard)


def fsdp_of_sums(shards, batch):  # type: ignore[no-untyped-def]
    """Adds up the gradients of eight means, and does not divide."""
    return step(shards, batch, lambda shard: shard.clone(), lambda grad: ts.lax.psum_scatter(grad, "data", tiled=True))


def fsdp_of_whole_gradients(shards, batch):  # type: ignore[no-untyped-def]
    """Every device gets the whole gradient, and takes its own rows of it."""

    def own_rows(grad):  # type: ignore[no-untyped-def]
        whole = ts.lax.pmean(grad, "data")
        return whole.reshape(8, -1, 256).index_select(0, ts.lax.axis_index("data").reshape(1)).squeeze(0)

    return step(shards, batch, lambda shard: shard.clone(), own_rows)


# ---- 18.3 ------------------------------------------------------------------------------------------------------


def pipeline_of(W, batches, first, send_last=False):  # type: ignore[no-untyped-def]
    """Every stage works in every tick; results are kept from tick `first` on."""
    me = ts.lax.axis_index("stage")
    received = torch.zeros_like(batches[0])
    results = []
    for tick in range(23):
        value = torch.where(me == 0, batches[min(tick, 15)], received)
        value = (value @ W[0]).clamp(min=0)
        if tick >= first:
            results.append(value)
        if tick < 22 or send_last:
            received = ts.lax.ppermute(value, "stage", RIGHT)
    return torch.stack(results)[None] + (0 * received[:1, :1] if send_last else 0)


def pipeline(W, batches):  # type: ignore[no-untyped-def]
    """23 ticks."""
    return pipeline_of(W, batches, first=7)


def pipeline_that_keeps_late(W, batches):  # type: ignore[no-untyped-def]
    """Forgets that the first result leaves in tick 7, counted from 0."""
    return pipeline_of(W, batches, first=8)


def pipeline_that_sends_last(W, batches):  # type: ignore[no-untyped-def]
    """Sends on in the last tick too."""
    return pipeline_of(W, batches, first=7, send_last=True)


def one_after_the_other(W, batches):  # type: ignore[no-untyped-def]
    """Each micro-batch goes through all stages before the next one starts."""
    results = []
    for number in range(16):
        value = batches[number]
        for stage in range(8):
            value = (value @ W[0]).clamp(min=0)
            value = ts.lax.ppermute(value, "stage", RIGHT) if stage < 7 else value
        results.append(value)
    return torch.stack(results)[None]


ANSWERS = {
    "18.1": Answers(
        solution=ring,
        wrong=(
            Wrong(ring_that_overflows, "exp of a large score overflows"),
            Wrong(ring_of_eight_moves, "no device needs another one"),
            Wrong(gathered, "Gathering makes room for the keys"),
            Wrong(gathered_by_moves, "which blocks do you keep after their turn"),
        ),
    ),
    "18.2": Answers(
        solution=fsdp,
        wrong=(
            Wrong(fsdp_that_keeps, "from shard.clone()"),
            Wrong(fsdp_of_sums, "add up eight means"),
            Wrong(fsdp_of_whole_gradients, "Which collective adds up and cuts"),
        ),
    ),
    "18.3": Answers(
        solution=pipeline,
        wrong=(
            Wrong(one_after_the_other, "what keeps stage 0 from starting"),
            Wrong(pipeline_that_keeps_late, "the first one in tick 7"),
            Wrong(pipeline_that_sends_last, "What is computed in the last tick"),
        ),
    ),
}
