"""Lesson 07: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def mean_of_all(losses: Any, is_real: Any) -> Any:
    """The sum of the real losses by their number, both added over all devices."""
    return ts.lax.psum((losses * is_real).sum(), "i") / ts.lax.psum(is_real.sum(), "i")


def mean_by_gathering(losses: Any, is_real: Any) -> Any:
    """All losses on all devices."""
    every, mask = ts.lax.all_gather(losses, "i"), ts.lax.all_gather(is_real, "i")
    return (every * mask).sum() / mask.sum()


def mean_of_means(losses: Any, is_real: Any) -> Any:
    """Each device counts once; one without a real loss counts as 0."""
    return ts.lax.pmean((losses * is_real).sum() / is_real.sum().clamp(min=1), "i")


def only_three(row: Any) -> Any:
    """Device 3 holds its row, all other devices zeros."""
    return torch.where(ts.lax.axis_index("i") == 3, row, 0.0)


def letters_from_three(row: Any) -> Any:
    """Device 3 sends its row to each of the others, one after the other."""
    me, heard = ts.lax.axis_index("i"), row
    for other in (0, 1, 2, 4, 5, 6, 7):
        heard = torch.where(me == other, ts.lax.ppermute(row, "i", [(3, other)]), heard)
    return heard


def relayed_from_three(row: Any) -> Any:
    """Each device passes the row on to the next: seven steps, each with another sender."""
    me, heard = ts.lax.axis_index("i"), row
    for source in (3, 4, 5, 6, 7, 0, 1):
        target = (source + 1) % 8
        heard = torch.where(me == target, ts.lax.ppermute(heard, "i", [(source, target)]), heard)
    return heard


def doubled_from_three(row: Any) -> Any:
    """Devices that have the row already pass it on: three steps, and device 3 sends in each."""
    me, heard = ts.lax.axis_index("i"), row
    for pairs in ([(3, 7)], [(3, 1), (7, 5)], [(3, 2), (7, 6), (1, 0), (5, 4)]):
        came = ts.lax.ppermute(heard, "i", pairs)
        for _, target in pairs:
            heard = torch.where(me == target, came, heard)
    return heard


def new_piece(piece: Any, gradient: Any) -> Any:
    """A step by the piece of the mean gradient."""
    return piece - 0.5 * ts.lax.psum_scatter(gradient, "i", tiled=True) / 8


def piece_of_all(piece: Any, gradient: Any) -> Any:
    """The whole mean gradient, although only a piece is used."""
    mean = ts.lax.pmean(gradient, "i")
    return piece - 0.5 * mean.reshape(8, 8)[ts.lax.axis_index("i")]


def all_weights(piece: Any, gradient: Any) -> Any:
    """All new weights on each device."""
    return ts.lax.all_gather(piece, "i", tiled=True) - 0.5 * ts.lax.pmean(gradient, "i")


def heads_by_gathering(block: Any) -> Any:
    """All tokens of all heads, although only one head is kept."""
    every = ts.lax.all_gather(block, "i", tiled=True)
    return every.index_select(1, ts.lax.axis_index("i").reshape(1))


ANSWERS = {
    "07.1": Answers(
        solution=mean_of_all,
        wrong=(
            Wrong(mean_of_means, "A mean of means"),
            Wrong(lambda losses, is_real: ts.lax.pmean(losses.mean(), "i"), "The padding is counted too"),
            Wrong(lambda losses, is_real: (losses * is_real).sum() / is_real.sum(), "mean of its own losses"),
            Wrong(lambda losses, is_real: ts.lax.psum((losses * is_real).sum(), "i") / 64, "How many losses are real"),
            Wrong(
                lambda losses, is_real: ts.lax.psum((losses * is_real).sum(), "i") / 50, "another number of real losses"
            ),
            Wrong(mean_by_gathering, "Which two numbers of each device"),
        ),
    ),
    "07.2": Answers(
        solution=lambda row: ts.lax.psum(only_three(row), "i"),
        wrong=(
            Wrong(lambda row: ts.lax.all_gather(row, "i")[3], "seven are thrown away"),
            Wrong(letters_from_three, "one device sends the row to several others"),
            Wrong(doubled_from_three, "one device sends the row to several others"),
            Wrong(lambda row: ts.lax.ppermute(row, "i", [(3, i) for i in range(8)]), "one receiver for each sender"),
            Wrong(lambda row: ts.lax.psum(row, "i"), "only device 3 counts"),
            Wrong(only_three, "Which collectives end like that"),
        ),
    ),
    "07.3": Answers(
        solution=new_piece,
        wrong=(
            Wrong(piece_of_all, "Which collective stops there"),
            Wrong(
                lambda piece, gradient: piece - 0.5 * ts.lax.psum_scatter(gradient, "i", tiled=True),
                "The task says their mean",
            ),
            Wrong(lambda piece, gradient: piece - 0.5 * ts.lax.psum_scatter(gradient, "i") / 8, "`tiled=True` allows"),
            Wrong(all_weights, "only its own piece of 8"),
            Wrong(lambda piece, gradient: piece - 0.5 * gradient[:8], "Which numbers of the mean gradient"),
        ),
    ),
    "07.4": Answers(
        solution=lambda block: ts.lax.all_to_all(block, "i", 1, 0, tiled=True),
        wrong=(
            Wrong(heads_by_gathering, "Which collective sends each device only its piece"),
            Wrong(lambda block: ts.lax.all_to_all(block, "i", 0, 1, tiled=True), "the one of its 8 heads"),
            Wrong(lambda block: ts.lax.all_to_all(block, "i", 1, 1, tiled=True), "and the tokens joined"),
            Wrong(lambda block: ts.lax.all_to_all(block, "i", 1, 0), "stacked in a new dim"),
            Wrong(lambda block: block.reshape(32, 1, 2), "Piece j of a device's block"),
        ),
    ),
}
