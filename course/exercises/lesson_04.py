"""Lesson 04: one program, many devices."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

MATRIX = torch.arange(32.0).reshape(8, 4)


def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The lesson's convolution of one example: x of n numbers, w of 3, n - 2 sums."""
    return torch.stack([torch.dot(x[i - 1 : i + 2], w) for i in range(1, len(x) - 1)])


def judge_column_sums(column_sums: Callable[..., Any]) -> Verdict:
    """The four sums, each over the four blocks that lie one above the other."""
    got = column_sums(MATRIX)
    told = difference(got, MATRIX.sum(0), "the result")
    if told and not difference(got, MATRIX[:2].sum(0)):
        return differs(told, "Only the first two rows are in it: nobody added up the blocks that lie below each other.")
    if told and tuple(got.shape) == (8,):
        return differs(told, "Eight numbers: `out_specs` lays the pieces side by side along the wrong axis.")
    if told and tuple(got.shape) == (2,):
        return differs(told, "Half of the columns: `out_specs` must say that the two halves lie along an axis.")
    if told and tuple(got.shape) == (4,):
        return differs(told, "Which devices hold other rows of the *same* columns? They are neighbours along one axis.")
    return differs(told) if told else PASSED


def judge_below(below: Callable[..., Any]) -> Verdict:
    """Each number less the largest of all eight."""
    numbers = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    got = ts.pmap(below, axis_name="i")(numbers)
    told = difference(got, numbers - 9, "the result for 3, 1, 4, 1, 5, 9, 2, 6")
    if told and not difference(got, torch.zeros(8)):
        return differs(told, "Each device subtracts the largest of its own number. Who knows all eight?")
    if told and not difference(got, 9 - numbers):
        return differs(told, "The sign is turned: own number less the largest.")
    if told and not difference(got, numbers - numbers.sum()):
        return differs(told, "That is the sum of all; the largest is wanted.")
    return differs(told) if told else PASSED


def judge_rows(convolve_all: Callable[..., Any]) -> Verdict:
    """24 rows on eight devices, three on each."""
    xs, w = torch.arange(24.0)[:, None] + torch.arange(5.0), torch.tensor([2.0, 3.0, 4.0])
    try:
        got = convolve_all(xs, w)
    except ts.errors.MappingError as error:
        hint = "A device takes one row of the mapped dim. Make 8 stacks of 3, and let vmap take the stack apart."
        return differs(f"pmap says: {str(error).splitlines()[0]}", hint)
    want = torch.stack([convolve(x, w) for x in xs])
    if tuple(getattr(got, "shape", ())) == (8, 3, 3):
        return differs("the result is still in 8 stacks, shape (8, 3, 3)", "Nearly: `reshape` it to 24 rows.")
    told = difference(got, want, "the result")
    if told:
        return differs(told)
    if not isinstance(got, ts.Array):
        return differs("the values are right, but no device took part", "`vmap` alone runs here. Who hands out rows?")
    working = len(got.devices())
    if working != 8:
        return differs(
            f"the values are right, but {working} of 8 devices worked",
            "The first dim of the stacks goes to the devices: how many stacks, of how many rows each?",
        )
    return PASSED


def judge_mean(mean: Callable[..., Any]) -> Verdict:
    """One number, equal on all devices, so that `out_specs=P()` is no lie."""
    got = mean(MATRIX)
    told = difference(got, MATRIX.mean(), "the result")
    if told and not difference(got, MATRIX.mean() * 8):
        return differs(told, "Eight times too large: the mean of means of equal blocks is the mean. Who divides by 8?")
    if told and tuple(got.shape) == () and 0 < float(got) < 15.5:
        hint = "The value of one device was taken, and it does not know all blocks. Over which axes must they talk?"
        return differs(told, hint)
    return differs(told) if told else PASSED


EXERCISES = (
    Exercise(
        "04.1",
        judge_column_sums,
        (
            "A device adds up the columns of its block, `block.sum(0)`. Which devices hold the rest of these columns?",
            "They lie along `a`: `psum` over it. The result has one dim, the columns. Which axis cuts it?",
            "`ts.lax.psum(block.sum(0), 'a')`, with `in_specs=P('a', 'b')` and `out_specs=P('b')`.",
        ),
    ),
    Exercise(
        "04.2",
        judge_below,
        (
            "Inside there is one number. How does section 4 reach the others?",
            "The collective that gives everyone the largest is called `pmax`.",
            "`v - ts.lax.pmax(v, 'i')`",
        ),
        stub=lambda v: v,
    ),
    Exercise(
        "04.3",
        judge_rows,
        (
            "24 rows, 8 devices: how many rows for each, and in which shape do you hand them out?",
            "Section 5 does it for 16 rows; `w` is shared in both maps.",
            "`reshape(8, 3, 5)`, then `pmap` of `vmap`, both with `in_axes=(0, None)`, then `reshape(24, 3)`.",
        ),
    ),
    Exercise(
        "04.4",
        judge_mean,
        (
            "`out_specs=P()` promises that all eight devices hold the same. What makes it true?",
            "All blocks have the same size, so the mean of their means is the mean of all.",
            "`ts.lax.pmean(block.mean(), ('a', 'b'))`: one collective may run over both axes.",
        ),
    ),
)
