"""Lesson 18: three puzzles, scored on values, bytes, memory and work."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.capstone import FSDP, PIPELINE, RING, Score
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.held import held_during

__all__ = ["EXERCISES"]

Answer = Callable[..., Any]
MOST_HELD = 3  # lines of a message


def _too_much(score: Score, hint_bytes: str, hint_peak: str, hint_flops: str) -> Verdict:
    """What of a right answer is above its target, the first of bytes, memory and work."""
    for what, got, most, hint in (
        ("a device sends {:,} bytes", score.nbytes, score.goal.nbytes, hint_bytes),
        ("a device holds {:,} bytes at its peak", score.peak_nbytes, score.goal.peak_nbytes, hint_peak),
        ("a device does {:,} operations", score.flops, score.goal.flops, hint_flops),
    ):
        if got > most:
            peak = _at_the_peak(score) if hint is hint_peak else ""
            return differs(f"the values are right, but {what.format(got)}; the target is {most:,}{peak}", hint)
    return PASSED


def _at_the_peak(score: Score) -> str:
    """The step of the peak, and the largest values that are held there."""
    line = score.compiled.memory_analysis()
    step = line.steps[line.peak_step]
    held = held_during(score.compiled.program, line.peak_step)
    return "\n".join(
        [
            f"\n  the peak is in step {line.peak_step}, {step.op}, which makes {step.result}; the largest there:",
            *(f"    {each.count} x {each.type} from {each.op}: {each.nbytes:,} bytes" for each in held[:MOST_HELD]),
        ]
    )


def judge_ring(answer: Answer) -> Verdict:
    """18.1: one block of keys and values at a time, with a softmax that is put together as they come by."""
    score = RING.score(answer)
    if "nan" in score.wrong or "inf" in score.wrong:
        return differs(
            score.wrong,
            "exp of a large score overflows. Subtract the largest score of each row that you have seen so far, and "
            "shrink what you had added up before by exp(old - new).",
        )
    if score.wrong:
        return differs(score.wrong)
    gathers = score.compiled.cost_analysis().count("all_gather") > 0
    return _too_much(
        score,
        "Eight blocks come by, and your own is there already: how many moves is that? After the last block, "
        "no device needs another one.",
        "Gathering makes room for the keys and values of all devices at once. Hold one block of each; pass it on by "
        "ppermute."
        if gathers
        else "Which value of 128 x 1024 numbers do you make, or which blocks do you keep after their turn?",
        "Each pair of blocks needs two products: scores, and weights times values.",
    )


def judge_fsdp(answer: Answer) -> Verdict:
    """18.2: a matrix is whole only while it is used."""
    score = FSDP.score(answer)
    if score.wrong.startswith("new matrix"):
        return differs(
            score.wrong,
            "The loss is a mean over all examples, and each device's gradient is that of its own eight. What do you "
            "get if you add up eight means?",
        )
    if score.wrong:
        return differs(score.wrong)
    cost = score.compiled.cost_analysis()
    if cost.count("all_reduce") > 1:
        return differs(
            f"the values are right, but there are {cost.count('all_reduce')} all_reduce; only the loss needs one",
            "No device needs a whole gradient: each one updates its own rows. Which collective adds up and cuts?",
        )
    return _too_much(
        score,
        "Count the collectives: six gathered forward, five again backward, six gradients scattered.",
        "Gathered matrices, or their gradients, wait there. Let go of a matrix after its product, and gather it again "
        "backward, from shard.clone(): equal steps are done once. Scatter a gradient as soon as it is made.",
        "Forward a product for each layer, backward two, but for the first layer one.",
    )


def judge_pipeline(answer: Answer) -> Verdict:
    """18.3: every stage has work in nearly every tick."""
    score = PIPELINE.score(answer)
    if score.wrong.startswith("what the last stage returns has the shape"):
        return differs(
            score.wrong, "Sixteen results leave the last stage: the first one in tick 7, the last one in tick 22."
        )
    if score.wrong:
        return differs(score.wrong)
    # a device that is done early is judged on its ticks first: they are what the puzzle is about
    if score.flops > score.goal.flops:
        products = score.flops // (score.goal.flops // 23)
        return differs(
            f"the values are right, but a device does {products} products; the target is 23",
            "While stage 1 works on micro-batch 0, what keeps stage 0 from starting on micro-batch 1?",
        )
    return _too_much(
        score,
        "What is computed in the last tick stays where it is.",
        "Keep only what leaves the last stage.",
        "",
    )


# ---- the answer cells before they are touched: right, but wasteful ------------------------------------------------


def _gathered_attention(q, k, v):  # type: ignore[no-untyped-def]
    k = ts.lax.all_gather(k, "ring", tiled=True)
    v = ts.lax.all_gather(v, "ring", tiled=True)
    return torch.softmax(q @ k.T / q.shape[1] ** 0.5, -1) @ v


def _step_of_whole_matrices(shards, batch):  # type: ignore[no-untyped-def]
    inputs, targets = batch
    whole = [ts.lax.all_gather(shard, "data", tiled=True) for shard in shards]

    def loss(whole):  # type: ignore[no-untyped-def]
        outputs = inputs
        for number, W in enumerate(whole):
            outputs = (outputs.clamp(min=0) if number else outputs) @ W
        return ((outputs - targets) ** 2).mean()

    value, grads = ts.value_and_grad(loss)(whole)
    mine = [ts.lax.psum_scatter(grad, "data", tiled=True) / 8 for grad in grads]
    return ts.lax.pmean(value, "data"), [shard - 0.1 * grad for shard, grad in zip(shards, mine, strict=True)]


def _one_at_a_time(W, batches):  # type: ignore[no-untyped-def]
    right = [(i, i + 1) for i in range(7)]
    results = []
    for value in batches:
        for stage in range(8):
            value = (value @ W[0]).clamp(min=0)
            if stage < 7:
                value = ts.lax.ppermute(value, "stage", right)
        results.append(value)
    return torch.stack(results)[None]


EXERCISES = (
    Exercise(
        "18.1",
        judge_ring,
        (
            "Start with one block: what would you have to remember of it, so that a second block can be added later?",
            "For each row remember three things: the largest score so far, the sum of the weights, the weighted sum of "
            "the values.",
            "When a larger score comes, multiply both sums by exp(old largest - new largest). At the end divide one "
            "by the other. Keys and values move together, in one ppermute of the pair.",
        ),
        stub=_gathered_attention,
        why="Of each block three things are remembered: the largest score, the sum of weights, the weighted sum. So "
        "one block of keys and values at a time is enough, and seven moves bring them all.",
    ),
    Exercise(
        "18.2",
        judge_fsdp,
        (
            "In which lines is a matrix whole, and how long does something still need it?",
            "Write the backward pass by hand. For outputs = inputs @ W: the gradient by W is inputs.T @ grad, "
            "that by inputs is grad @ W.T.",
            "Backward, layer by layer: make the gradient of the matrix and scatter it at once; gather the matrix "
            "anew; go on to the layer before, where clamp lets through only what was positive.",
        ),
        stub=_step_of_whole_matrices,
        why="A matrix is whole for one product, a gradient for one reduce-scatter. Five more all-gathers buy that.",
    ),
    Exercise(
        "18.3",
        judge_pipeline,
        (
            "Draw a table: a row for each stage, a column for each tick. Which micro-batch is where?",
            "In tick t stage s works on micro-batch t - s. There are 16 + 8 - 1 ticks.",
            "In each tick stage 0 takes batches[min(tick, 15)], the others what they received: "
            "torch.where(me == 0, ...). From tick 7 on, keep what comes out.",
        ),
        stub=_one_at_a_time,
        why="16 micro-batches and a bubble of 7 ticks: 23 products, and 22 moves: the last tick sends nothing.",
    ),
)
