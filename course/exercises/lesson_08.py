"""Lesson 08: a ring by hand."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, number_in
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled, on_each_device

__all__ = ["EXERCISES"]

TABLE = torch.arange(64.0).reshape(8, 8) ** 2
ROWS = TABLE.flatten()


def _costs(mapped: Any, steps: int, nbytes: int) -> tuple[str, int, int]:
    """What is wrong with the collectives of the program, in words; how many there are, and how many bytes they send."""
    found = ts.collectives_in(compiled(mapped, ROWS))
    others = [each.kind for each in found if each.kind != "collective_permute"]
    counted, sent = sum(each.count for each in found), sum(each.nbytes for each in found)
    if others:
        return f"its program has {' and '.join(others)}", counted, sent
    if counted > steps or sent > nbytes:
        reported = f"{counted} collective_permutes and {sent} bytes, not {steps} and {nbytes}"
        return reported, counted, sent
    return "", counted, sent


def judge_halo(with_halo: Callable[..., Any]) -> Verdict:
    """The row between the last number of the left neighbour's and the first of the right neighbour's."""
    left, right = TABLE.roll(1, 0)[:, -1:], TABLE.roll(-1, 0)[:, :1]
    mapped = on_each_device(with_halo)
    got = mapped(ROWS)
    reported = difference(got, torch.cat([left, TABLE, right], 1).flatten(), "the result")
    open_left, open_right = left.clone(), right.clone()
    open_left[0], open_right[7] = 0, 0
    seen = (
        (
            torch.cat([open_left, TABLE, open_right], 1),
            "At the ends there are zeros: no device sends there. In a ring device 7 sends to device 0, and 0 to 7.",
        ),
        (
            torch.cat([TABLE.roll(-1, 0)[:, -1:], TABLE, TABLE.roll(1, 0)[:, :1]], 1),
            "Left and right are exchanged. In a pair the first number sends, the second receives.",
        ),
        (
            torch.cat([right, TABLE, left], 1),
            "The right two numbers, at the wrong ends: the left neighbour's comes first.",
        ),
        (
            torch.cat([TABLE.roll(1, 0)[:, :1], TABLE, TABLE.roll(-1, 0)[:, -1:]], 1),
            "The right neighbours, but their far ends. Which number of the left neighbour is next to your first?",
        ),
        (
            torch.cat([TABLE.roll(1, 0), TABLE, TABLE.roll(-1, 0)], 1),
            "Three whole rows. Only one number of each neighbour is wanted.",
        ),
    )
    for wrong, hint in seen:
        if reported and not difference(got, wrong.flatten()):
            return differs(reported, hint)
    if reported:
        return differs(reported)
    reported, _, sent = _costs(mapped, steps=2, nbytes=8)
    if reported and sent <= 64:
        return differs(reported, "Right, but whole rows travel. Cut the edge off *before* it is sent.")
    if reported:
        return differs(reported, "Right, but every device gets all rows. Which two devices have what is needed?")
    return PASSED


def judge_sum_so_far(sum_so_far: Callable[..., Any]) -> Verdict:
    """The sum of the rows of all devices up to this one, in three steps."""
    mapped = on_each_device(sum_so_far)
    got = mapped(ROWS)
    want = TABLE.cumsum(0)
    reported = difference(got, want.flatten(), "the result")
    if reported and not difference(got, TABLE.sum(0).repeat(8)):
        return differs(
            reported, "Every device has the sum of all rows: they go all the way around. Which pairs must be missing?"
        )
    if reported and not difference(got, (want - TABLE).flatten()):
        return differs(reported, "The device's own row is missing in its sum.")
    if reported and not difference(got, TABLE.flip(0).cumsum(0).flip(0).flatten()):
        return differs(
            reported, "That is the sum of this device's row and of those *after* it. In a pair the first number sends."
        )
    if reported:
        return differs(reported)
    reported, counted, _ = _costs(mapped, steps=3, nbytes=96)
    if reported and "permutes" not in reported:
        return differs(reported, "`ppermute` alone is allowed: no row may travel to a device that does not add it.")
    if reported:
        hint = f"Right, in {counted} steps. After one a device holds the sum of two rows: send *that* on, farther away."
        return differs(reported, hint)
    return PASSED


def judge_crossing(answer: Any) -> Verdict:
    """The row size for which the ring and halving, then doubling take equally long on links between neighbours."""
    nbytes = number_in(answer)
    if nbytes is None:
        return differs(f"it is of type {type(answer).__name__}, not a number")
    ring_us, halving_us = 140 + 1.75e-5 * nbytes, 60 + 2.5e-5 * nbytes
    if abs(ring_us - halving_us) <= 0.01 * ring_us:
        return PASSED
    reported = f"for {nbytes:,.0f} bytes the ring takes {ring_us:,.1f} µs, halving, then doubling {halving_us:,.1f} µs"
    if 0 < nbytes < 1000:
        return differs(reported, "In bytes, please: a megabyte has a million.")
    for wrong, hint in (
        (16_000_000, "You let the ring send two whole rows. With 8 devices it is 2 · 7/8."),
        (4_923_077, "You counted one half of the ring's bytes: reduce-scatter *and* all-gather send 7/8 each."),
        (1_333_333, "You counted one half of the ring's steps: it has 7 and 7."),
        (32_000_000, "You added up what *one* link carries. Each step waits for its own busiest link."),
        (2_461_538, "You added up both directions of a link. It carries 100 GB/s in each."),
        (6_400_000, "You sent all of a message to the device opposite one way around. Half goes the other way."),
        (3_384_615, "That is the ring against doubling alone, which has 3 steps, and 5 rows on the busiest link."),
        (8_800_000, "That is doubling alone, with links between any two devices. Here neighbours have links."),
    ):
        if abs(nbytes - wrong) < 0.01 * wrong:
            return differs(reported, hint)
    return differs(reported)


def judge_gather_in_three(gather_in_three: Callable[..., Any]) -> Verdict:
    """All rows, in order, on each device, in three steps."""
    mapped = on_each_device(gather_in_three)
    try:
        got = mapped(ROWS).block_until_ready()
    except ts.errors.RemoteError as error:
        if "Expected a long tensor" not in str(error):
            raise
        hint = (
            "`index_copy`, `index_select` and `gather` of torch take whole numbers of 64 bits only; `axis_index` has "
            "32. Convert it by `.long()`, or index with brackets, which take both."
        )
        return differs("torch says: Expected a long tensor for index, but got Int", hint)
    reported = difference(got, TABLE.repeat(8, 1), "the result")
    if reported and tuple(got.shape) == (512,):
        return differs(reported, "All in one dim: the target is a table, f32[8, 8], on each device.")
    if reported and tuple(got.shape) == (64, 8):
        tables = ts.device_get(got).reshape(8, 8, 8)
        if all(torch.equal(table.sort(0).values, TABLE) for table in tables):
            hint = (
                "All rows are there, but in another order on each device. Which device's row is in line 0 of "
                "device `me`?"
            )
            return differs(reported, hint)
    if reported:
        return differs(reported)
    reported, counted, _ = _costs(mapped, steps=3, nbytes=224)
    if reported and "permutes" not in reported:
        return differs(reported, "Build it from `ppermute` alone.")
    if reported:
        hint = f"Right, in {counted} steps. Send all that you hold, not only the row that arrived last."
        return differs(reported, hint)
    return PASSED


EXERCISES = (
    Exercise(
        "08.1",
        judge_halo,
        (
            "Two permutations: one in which every device sends to the right, one in which it sends to the left. "
            "Which number goes which way?",
            "To the right goes the last number, `row[-1:]`: it becomes the left edge of the next device. What goes "
            "to the left?",
            "`ppermute` of `row[-1:]` along `ring` gives the left edge. Build the right edge with reversed pairs, "
            "then `torch.cat` the three.",
        ),
        stub=lambda row: row,
        why="Only the two edges travel, 4 bytes each way, however long the rows are. An all-gather would send every "
        "row to every device, 224 bytes.",
    ),
    Exercise(
        "08.2",
        judge_sum_so_far,
        (
            "After a step with distance 1 device 5 knows rows 4 and 5. From which device does it get rows 2 and 3 "
            "together?",
            "Distances 1, 2 and 4, as in doubling; but every device only gets from devices *before* it.",
            "The pairs for a distance are `(j, j + distance)`, as long as both are devices. A device without a "
            "sender adds zeros.",
        ),
        stub=lambda row: row,
        why="After distances 1, 2 and 4 a device has the sums of the 2, 4 and 8 rows up to its own; where there are "
        "fewer, zeros arrive. 3 steps of 32 bytes.",
    ),
    Exercise(
        "08.3",
        judge_gather_in_three,
        (
            "A device holds one row, then two, then four. From how far away do the next ones come?",
            "If device `me` gets from `me + distance`, for distances 1, 2 and 4, it holds the rows me, me + 1, me + "
            "2 and so on, in this order.",
            "With `held[s]` the row of device me + s, row j is `held[(j - me) % 8]`: one indexing by a tensor, as in "
            "section 4. Brackets take `axis_index` as it is; `index_copy` needs `.long()`.",
        ),
        stub=lambda row: row,
        why="Every row still travels to seven devices, so the bytes are the same. But what is sent doubles in each "
        "step: 3 steps are enough for 8 devices, and 10 for 1,024. It is the second half of the all-reduce below.",
    ),
    Exercise(
        "08.4",
        judge_crossing,
        (
            "How many more steps does the ring have, and how many bytes does its busiest link save?",
            "8 more steps cost 80 µs. The busiest link carries 1.75 k bytes instead of 2.5 k. When does the difference "
            "take 80 µs?",
            "Set up the equation: the bytes saved, in terms of k, at 100 GB/s take 80 µs. Solve for k, in bytes.",
        ),
        why="The ring loses 8 steps of 10 µs and saves 0.75 k bytes on the busiest link: equal at 0.75 k / 100 GB/s = "
        "80 µs. Below that few steps win; above it the links decide, and the ring uses each for one message at a time.",
    ),
)
