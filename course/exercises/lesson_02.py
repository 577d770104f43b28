"""Lesson 02: one example at a time, all at once."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES", "convolve", "distance", "loss"]


def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The lesson's convolution of one example: x of n numbers, w of 3, n - 2 sums."""
    return torch.stack([torch.dot(x[i - 1 : i + 2], w) for i in range(1, len(x) - 1)])


def loss(w: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The lesson's loss of one example."""
    return ((convolve(x, w) - target) ** 2).mean()


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The lesson's distance between two points."""
    return ((a - b) ** 2).sum().sqrt()


def judge_axes(axes: Any) -> Verdict:
    """Signals are the columns of a 5 x 4 matrix, windows the rows of a 4 x 3 one, results are to be columns."""
    in_axes, out_axes = axes
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    signals, windows = torch.arange(20.0).reshape(5, 4), torch.arange(12.0).reshape(4, 3)
    if isinstance(in_axes, tuple) and len(in_axes) == 2 and None in in_axes:
        return differs("one argument is shared by all signals", "`None` shares. Here each signal has its own window.")
    try:
        result = ts.vmap(convolve, in_axes=in_axes, out_axes=out_axes)(signals, windows)
    except ts.errors.MappingError as error:
        hint = "`in_axes` has an entry for each argument: which dim of `signals` has size 4, and which of `windows`?"
        return differs(f"vmap says: {str(error).splitlines()[0]}", hint)
    want = torch.stack([convolve(signals[:, i], windows[i]) for i in range(4)], dim=1)
    if not difference(result, want.T):
        return differs("the results are the rows, shape (4, 3)", "The numbers are right: now say `out_axes`.")
    wrong = difference(result, want, "the result")
    return differs(wrong) if wrong else PASSED


def judge_table(table: Callable[..., Any]) -> Verdict:
    """All pairs of four points."""
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    got = table(points)
    want = torch.cdist(points, points)
    if not difference(got, torch.zeros(4)):
        return differs(
            "it has 4 numbers, all of them 0",
            "One vmap pairs point 0 with point 0, 1 with 1. Which one would pair *one* point with all others?",
        )
    if not difference(got, torch.stack([distance(point, points) for point in points])):
        return differs(
            "it has one number for each point",
            "With `None` the inner function gets all points at once, and adds them up. A second vmap takes them apart.",
        )
    wrong = difference(got, want, "the table of 4 points", tolerance=1e-4)
    return differs(wrong) if wrong else PASSED


def judge_pulls(pulls: Callable[..., Any]) -> Verdict:
    """The length of each example's gradient."""
    w = torch.tensor([2.0, 3.0, 4.0])
    examples = torch.arange(5.0) + torch.tensor([[0.0], [1.0], [3.0], [4.0]])
    targets = torch.tensor([10.0, 20.0, 30.0]) + torch.tensor([[0.0], [10.0], [20.0], [50.0]])
    got = pulls(w, examples, targets)
    each = torch.stack([torch.func.grad(loss)(w, x, target) for x, target in zip(examples, targets, strict=True)])
    if not difference(got, each, tolerance=1e-4):
        return differs("these are the gradients", "Nearly: their length is wanted, one number for each example.")
    if not difference(got, each.norm(), tolerance=1e-4):
        return differs("it is one number for all examples", "Take the length along dim 1: `norm(dim=1)`.")
    if not difference(got, each.mean(0).norm(), tolerance=1e-4):
        return differs(
            "it is the length of the mean gradient, one number",
            "The gradient of a mean no longer knows its examples: first the gradient of one, then vmap.",
        )
    if not difference(got, [loss(w, x, t) for x, t in zip(examples, targets, strict=True)], tolerance=1e-4):
        return differs("these are the losses", "How strongly an example pulls is the length of its *gradient*.")
    wrong = difference(got, each.norm(dim=1), "the vector of lengths", tolerance=1e-4)
    return differs(wrong) if wrong else PASSED


def judge_centred(centred: Callable[..., Any]) -> Verdict:
    """Each number less the mean of all, in a batch that is called `i`."""
    numbers = torch.tensor([1.0, 2.0, 3.0, 6.0])
    got = plain(ts.vmap(centred, axis_name="i")(numbers))
    if not difference(got, torch.zeros(4)):
        return differs(
            "all four are 0", "Inside, `v` is one number, and it is its own mean. Who knows the mean of the batch?"
        )
    if not difference(got, numbers - numbers.sum()):
        return differs(
            "it subtracts the sum", "`psum` adds up; one of its sisters in section 6 also divides by the number."
        )
    if not difference(got, numbers.mean().expand(4)):
        return differs("it is the mean itself", "The mean is right. What was to be subtracted from what?")
    wrong = difference(got, numbers - numbers.mean(), "the result for 1, 2, 3, 6")
    return differs(wrong) if wrong else PASSED


EXERCISES = (
    Exercise(
        "02.1",
        judge_axes,
        (
            "Which dim of `signals`, and which dim of `windows`, counts the four examples?",
            "`in_axes` is a tuple, an entry for each argument; `out_axes` is the dim of the result that counts to 4.",
            "Columns are counted by dim 1, rows by dim 0.",
        ),
        stub=(None, None),
    ),
    Exercise(
        "02.2",
        judge_table,
        (
            "How would you get the distances from *one* point to all others?",
            "Section 3 ends with every x with every w: the same pattern, with one argument twice.",
            "`ts.vmap(ts.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))`",
        ),
    ),
    Exercise(
        "02.3",
        judge_pulls,
        (
            "Which function gives the gradient for *one* example?",
            "Map `ts.grad(loss)`: `w` is shared, examples and targets are not.",
            "`ts.vmap(ts.grad(loss), in_axes=(None, 0, 0))(w, examples, targets)`; of its rows `.norm(dim=1)`.",
        ),
    ),
    Exercise(
        "02.4",
        judge_centred,
        (
            "Inside the function there is one number. How does section 6 reach the others?",
            "It is a function of `ts.lax`, and it gets the name of the batch, `'i'`.",
            "`ts.lax.pmean(v, 'i')` is the mean of all.",
        ),
        stub=lambda v: v,
    ),
)
