"""Lesson 07: which device sends what to which."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled, on_each_device
from tinyshard import P
from tinyshard.compile.cost import bytes_sent, with_bodies
from tinyshard.core.collectives import COLLECTIVES

__all__ = ["EXERCISES"]

ROWS, CUT_ROWS = P("i"), P(None, "i")
TABLE = torch.arange(64.0).reshape(8, 8) ** 2


def _nbytes(mapped: Any, *args: torch.Tensor) -> int:
    """What the busiest device sends, by the model."""
    return compiled(mapped, *args).cost_analysis().nbytes


def _most_sent(mapped: Any, *args: torch.Tensor) -> int:
    """What the busiest of the eight devices sends in all collectives together: in a permutation only senders send."""
    sent = [0] * 8
    for part, times in with_bodies(compiled(mapped, *args).program):
        for step in part.steps:
            if step.op in COLLECTIVES and COLLECTIVES[step.op].communicates:
                pairs = step.kwargs.get("pairs")
                senders = range(8) if pairs is None else [source for source, target in pairs if source != target]
                for device in senders:
                    sent[device] += times * bytes_sent(part, step)
    return max(sent)


def judge_mean(mean_of_all: Callable[..., Any]) -> Verdict:
    """The mean of the real losses on each device, of 50, as the task says, and of 41."""
    verdict = _judge_mean(mean_of_all, 50)
    if not verdict.is_passed or _judge_mean(mean_of_all, 41).is_passed:
        return verdict
    return differs(
        "right for 50 real losses, but not for 41",
        "The next batch has another number of real losses. `is_real` says how many a device has.",
    )


def _judge_mean(mean_of_all: Callable[..., Any], count: int) -> Verdict:
    """Of 50 real ones, device 6 has two and device 7 none."""
    is_real = torch.arange(64) < count
    losses = torch.where(is_real, torch.arange(64.0) ** 2, 900.0)
    parts, masks = losses.reshape(8, 8), is_real.reshape(8, 8)

    def one(values: Any, mask: Any) -> Any:
        return mean_of_all(values, mask).reshape(1)

    mapped = on_each_device(one, count=2)
    got = mapped(losses, is_real)
    reported = difference(got, losses[is_real].mean().expand(8), "the result on the eight devices")
    local = torch.nan_to_num((parts * masks).sum(1) / masks.sum(1))
    if reported:
        values = torch.nan_to_num(ts.device_get(got))
        seen = (
            (local, "Each device returns the mean of its own losses. Which sums must be added over the devices?"),
            (
                torch.full((8,), float(losses.mean())),
                "The padding is counted too. Which devices have fewer than eight real losses?",
            ),
            (
                parts.mean(1),
                "Each device returns the mean of its own eight places, the padding included.",
            ),
            (
                (losses * is_real).sum().expand(8) / 64,
                "The sum is right, but it is divided by 64 places. How many losses are real?",
            ),
        )
        for wrong, hint in seen:
            if values.shape == wrong.shape and not difference(values, wrong):
                return differs(reported, hint)
        if values.shape == (8,) and bool((values == values[0]).all()):
            hint = "A mean of means counts each device once. But device 6 has two real losses, and device 7 none."
            return differs(reported, hint)
        return differs(reported)
    nbytes = _nbytes(mapped, losses, is_real)
    if nbytes > 21:
        hint = "Right, but all losses travel. Which two numbers of each device are enough?"
        return differs(f"the busiest device sends {nbytes} bytes, not 21", hint)
    return PASSED


def judge_from_three(from_three: Callable[..., Any]) -> Verdict:
    """The row of device 3, on all devices, and no device sends more than in an all-reduce of the row."""
    rows = TABLE.flatten()
    try:
        mapped = on_each_device(from_three)
        got = mapped(rows)
    except ts.errors.MappingError as error:
        hint = "A permutation has one receiver for each sender. Which collective gives the same to all devices?"
        return differs(str(error).splitlines()[0], hint)
    reported = difference(got, TABLE[3].repeat(8), "the result")
    if reported and not difference(got, TABLE.sum(0).repeat(8)):
        return differs(
            reported, "That is the sum of all rows. What must the others hold, so that only device 3 counts?"
        )
    if reported:
        return differs(reported)
    nbytes = _most_sent(mapped, rows)
    if nbytes > 56 and _passes_on(from_three):
        hint = (
            "Right, but one device sends the row to several others. Which collective ends with the same on all devices?"
        )
        return differs(f"the busiest device sends {nbytes} bytes, not 56", hint)
    if nbytes > 56:
        hint = "Right, but every device gets all eight rows, and seven are thrown away. Which way needs fewer bytes?"
        return differs(f"the busiest device sends {nbytes} bytes, not 56", hint)
    return PASSED


def _passes_on(from_three: Callable[..., Any]) -> bool:
    """Whether the row goes from device to device."""
    return compiled(on_each_device(from_three), TABLE.flatten()).cost_analysis().count("collective_permute") > 0


def why_from_three(from_three: Callable[..., Any]) -> str:
    """Of a sum with zeros, or of a row that devices pass on."""
    if _passes_on(from_three):
        return (
            "The devices pass the row on, and none of them sends more than 56 bytes. But the permutations follow one "
            "another, and each costs a call's floor (section 9). One psum of the row and seven rows of zeros sends 56 "
            "bytes and has one floor."
        )
    return (
        "A sum with seven rows of zeros is a broadcast, and an all-reduce sends less than two rows, however many "
        "devices there are: 2 · 7/8 · 32 = 56 bytes. An all-gather sends seven."
    )


def judge_new_piece(new_piece: Callable[..., Any]) -> Verdict:
    """The device's piece of the weights after a step by the mean gradient, for the bytes of a reduce-scatter."""
    weights, gradients = torch.arange(64.0) ** 2, torch.arange(512.0).flip(0)
    table = gradients.reshape(8, 64)
    mapped = on_each_device(new_piece, count=2)
    try:
        got = mapped(weights, gradients)
    except ts.errors.MappingError as error:
        hint = "The gradient has 64 numbers for 8 devices: `tiled=True` allows pieces of more than one number."
        return differs(str(error).splitlines()[0], hint)
    want = weights - 0.5 * table.mean(0)
    reported = difference(got, want, "the array of new weights")
    if reported and not difference(got, weights - 0.5 * table.sum(0)):
        return differs(reported, "That is a step by the *sum* of the gradients. The task says their mean.")
    if reported and not difference(got, weights + 0.5 * table.mean(0)):
        return differs(reported, "The step goes uphill: the sign is wrong.")
    if reported and tuple(got.shape) == (512,):
        return differs(reported, "Each device returns all 64 weights. It keeps, and updates, only its own piece of 8.")
    if reported:
        return differs(reported)
    nbytes = _nbytes(mapped, weights, gradients)
    if nbytes > 224:
        hint = (
            "Right, but every device gets all of the mean gradient, and uses an eighth. Which collective stops there?"
        )
        return differs(f"the busiest device sends {nbytes} bytes, not 224", hint)
    return PASSED


def judge_to_heads(to_heads: Callable[..., Any]) -> Verdict:
    """All tokens of one head on each device, for the bytes of an all-to-all."""
    words = torch.arange(512.0).reshape(32, 8, 2) ** 2
    mapped = on_each_device(to_heads, out_specs=CUT_ROWS)
    try:
        got = mapped(words)
    except ts.errors.MappingError as error:
        hint = "The dim that a device cuts in eight is the one of its 8 heads. Which dim is that?"
        return differs(str(error).splitlines()[0], hint)
    reported = difference(got, words, "the array")
    if reported and tuple(got.shape) == (4, 64, 2):
        hint = "A device still has 4 tokens. The heads must be cut, and the tokens joined."
        return differs(reported, hint)
    if reported and tuple(got.shape) == (8, 32, 2):
        hint = (
            "The pieces of the eight devices are stacked in a new dim. `tiled=True` joins them along the dim of "
            "the tokens."
        )
        return differs(reported, hint)
    if reported:
        return differs(reported)
    nbytes = _nbytes(mapped, words)
    if nbytes > 224:
        hint = (
            "Right, but every device gets all heads, and keeps one. Which collective sends each device only its piece?"
        )
        return differs(f"the busiest device sends {nbytes} bytes, not 224", hint)
    return PASSED


EXERCISES = (
    Exercise(
        "07.1",
        judge_mean,
        (
            "A mean is a sum divided by a count. Which of the two differ from device to device?",
            "Both the sum and the count of the real losses must be added over all devices, before one is divided by "
            "the other.",
            "`psum` of `(losses * is_real).sum()` is the upper half of the fraction. Build the lower half in the "
            "same way.",
        ),
        why="A sum and a count from each device are enough, however many real losses it has. Data-parallel training "
        "with padded or uneven batches needs just this.",
    ),
    Exercise(
        "07.2",
        judge_from_three,
        (
            "All devices must end with the same value. Which collectives end like that?",
            "A sum to which all devices but one contribute zeros is the value of that one.",
            "`torch.where(condition, row, 0.0)` chooses; the condition compares a device's own number with 3. What "
            "remains to be done?",
        ),
        stub=lambda row: row,
        why=why_from_three,
    ),
    Exercise(
        "07.3",
        judge_new_piece,
        (
            "Which numbers of the mean gradient does a device need?",
            "Section 5 has the collective that adds up, and gives each device only its piece. It adds: how does a "
            "sum become a mean?",
            "`psum_scatter` of the gradient with `tiled=True` has 8 numbers, the *sum* for this piece. Now take the "
            "step.",
        ),
        stub=lambda piece, gradient: piece,
        why="A device needs only the sum for its own piece: 256 · 7/8 = 224 bytes, what a reduce-scatter sends. The "
        "other half of an all-reduce would bring numbers that the device does not use. FSDP and ZeRO do this with "
        "gradients.",
    ),
    Exercise(
        "07.4",
        judge_to_heads,
        (
            "Piece j of a device's block goes to device j. Along which dim are these pieces cut, and along which are "
            "they joined?",
            "Compare f32[4, 8, 2], the block before, with f32[32, 1, 2], the block after. Which dim is shorter now, "
            "which longer?",
            "`all_to_all` takes the axis, then `split_axis` and `concat_axis`: which of the two makes a dim longer? "
            "`tiled=True` joins along a dim that is there.",
        ),
        stub=lambda block: block,
        why="To change the dim that is cut, each device sends 7/8 of its 256 bytes and keeps the rest: an all-to-all. "
        "An all-gather sends the whole block seven times.",
    ),
)
