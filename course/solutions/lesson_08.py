"""Lesson 08: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

RIGHT = [(j, (j + 1) % 8) for j in range(8)]
LEFT = [(j, (j - 1) % 8) for j in range(8)]


def with_halo(row: Any) -> Any:
    """The edges of both neighbours around the row."""
    left, right = ts.lax.ppermute(row[-1:], "i", RIGHT), ts.lax.ppermute(row[:1], "i", LEFT)
    return torch.cat([left, row, right])


def halo_of_rows(row: Any) -> Any:
    """Whole rows travel, and are cut afterwards."""
    left, right = ts.lax.ppermute(row, "i", RIGHT), ts.lax.ppermute(row, "i", LEFT)
    return torch.cat([left[-1:], row, right[:1]])


def halo_of_all(row: Any) -> Any:
    """All rows on each device."""
    rows, me = ts.lax.all_gather(row, "i"), ts.lax.axis_index("i")
    return torch.cat([rows[(me - 1) % 8][-1:], row, rows[(me + 1) % 8][:1]])


def halo_of_a_chain(row: Any) -> Any:
    """The ring is open."""
    left, right = ts.lax.ppermute(row[-1:], "i", RIGHT[:-1]), ts.lax.ppermute(row[:1], "i", LEFT[1:])
    return torch.cat([left, row, right])


def exchanged_halo(row: Any) -> Any:
    """To the wrong side."""
    left, right = ts.lax.ppermute(row[-1:], "i", LEFT), ts.lax.ppermute(row[:1], "i", RIGHT)
    return torch.cat([left, row, right])


def halo_at_the_wrong_ends(row: Any) -> Any:
    """Joined in the wrong order."""
    left, right = ts.lax.ppermute(row[-1:], "i", RIGHT), ts.lax.ppermute(row[:1], "i", LEFT)
    return torch.cat([right, row, left])


def far_halo(row: Any) -> Any:
    """The far end of each neighbour."""
    left, right = ts.lax.ppermute(row[:1], "i", RIGHT), ts.lax.ppermute(row[-1:], "i", LEFT)
    return torch.cat([left, row, right])


def sum_so_far(row: Any) -> Any:
    """Sums of 2, 4 and 8 rows; zeros from where no device is."""
    for distance in (1, 2, 4):
        row = row + ts.lax.ppermute(row, "i", [(j, j + distance) for j in range(8 - distance)])
    return row


def sum_along_a_chain(row: Any) -> Any:
    """Row by row, in seven steps."""
    total = row
    for _ in range(7):
        row = ts.lax.ppermute(row, "i", RIGHT[:-1])
        total = total + row
    return total


def sum_around_a_ring(row: Any) -> Any:
    """Doubling that goes all the way around."""
    for distance in (1, 2, 4):
        row = row + ts.lax.ppermute(row, "i", [(j, (j + distance) % 8) for j in range(8)])
    return row


def sum_from_here_on(row: Any) -> Any:
    """The devices after this one, not those before it."""
    for distance in (1, 2, 4):
        row = row + ts.lax.ppermute(row, "i", [(j + distance, j) for j in range(8 - distance)])
    return row


def masked_sum(row: Any) -> Any:
    """All rows on each device, which adds the first ones."""
    is_before = torch.arange(8) <= ts.lax.axis_index("i")
    return torch.where(is_before.reshape(8, 1), ts.lax.all_gather(row, "i"), 0.0).sum(0)


def unordered_gather(row: Any) -> Any:
    """The rows of me, me + 1, me + 2 and so on."""
    held = row.reshape(1, 8)
    for distance in (1, 2, 4):
        pairs = [(j, (j - distance) % 8) for j in range(8)]
        held = torch.cat([held, ts.lax.ppermute(held, "i", pairs)])
    return held


def gather_in_three(row: Any) -> Any:
    """The rows of me, me + 1, me + 2 and so on, put in order."""
    return unordered_gather(row)[(torch.arange(8) - ts.lax.axis_index("i")) % 8]


def gather_by_index_copy(row: Any) -> Any:
    """Right but for the index, which has 32 bits."""
    places = (torch.arange(8) + ts.lax.axis_index("i")).int() % 8
    return torch.zeros(8, 8).index_copy(0, places, unordered_gather(row))


def gather_in_seven(row: Any) -> Any:
    """Row by row around the ring."""
    arrived = [row]
    for _ in range(7):
        arrived.append(ts.lax.ppermute(arrived[-1], "i", RIGHT))
    return torch.stack(arrived)[(ts.lax.axis_index("i") - torch.arange(8)) % 8]


ANSWERS = {
    "08.1": Answers(
        solution=with_halo,
        wrong=(
            Wrong(halo_of_rows, "Cut the edge off *before* it is sent"),
            Wrong(halo_of_all, "Which two devices have what is needed"),
            Wrong(halo_of_a_chain, "In a ring device 7 sends to device 0"),
            Wrong(exchanged_halo, "Left and right are exchanged"),
            Wrong(halo_at_the_wrong_ends, "at the wrong ends"),
            Wrong(far_halo, "Which number of the left neighbour is next to your first"),
            Wrong(lambda row: torch.cat([row[-1:], row, row[:1]]), "Two permutations"),
        ),
    ),
    "08.2": Answers(
        solution=sum_so_far,
        wrong=(
            Wrong(sum_along_a_chain, "Right, in 7 steps"),
            Wrong(sum_around_a_ring, "Which pairs must be missing"),
            Wrong(lambda row: ts.lax.psum(row, "i"), "Which pairs must be missing"),
            Wrong(lambda row: sum_so_far(row) - row, "own row is missing"),
            Wrong(sum_from_here_on, "those *after* it"),
            Wrong(masked_sum, "`ppermute` alone is allowed"),
        ),
    ),
    "08.3": Answers(
        solution=gather_in_three,
        wrong=(
            Wrong(gather_in_seven, "Right, in 7 steps"),
            Wrong(gather_by_index_copy, "Convert it by `.long()`"),
            Wrong(unordered_gather, "in another order on each device"),
            Wrong(lambda row: ts.lax.all_gather(row, "i"), "Build it from `ppermute` alone"),
            Wrong(lambda row: gather_in_three(row).flatten(), "All in one dim"),
            Wrong(lambda row: row.reshape(1, 8).expand(8, 8), "From how far away"),
        ),
    ),
    "08.4": Answers(
        solution=10_666_667,
        wrong=(
            Wrong(10.7, "In bytes, please"),
            Wrong(16_000_000, "With 8 devices it is 2 · 7/8"),
            Wrong(4_923_077, "one half of the ring's bytes"),
            Wrong(1_333_333, "one half of the ring's steps"),
            Wrong(32_000_000, "its own busiest link"),
            Wrong(2_461_538, "both directions of a link"),
            Wrong(6_400_000, "Half goes the other way"),
            Wrong(8_800_000, "That is doubling alone"),
            Wrong(1_000_000, "How many more steps"),
        ),
    ),
}
