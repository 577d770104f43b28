"""Lesson 05: one function on many examples, and on many models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES", "convolve", "distance", "line_loss", "loss", "watched"]

Shapes = list[tuple[tuple[int, ...], ...]]
MOST = 10.0  # the length to which a gradient is clipped


def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The lesson's convolution of one example: x of n numbers, w of 3, n - 2 sums."""
    return torch.stack([torch.dot(x[i - 1 : i + 2], w) for i in range(1, len(x) - 1)])


def loss(w: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The lesson's loss of one example."""
    return ((convolve(x, w) - target) ** 2).mean()


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The lesson's distance between two points."""
    return ((a - b) ** 2).sum().sqrt()


def line_loss(model: dict[str, torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The lesson's loss of one model: how far `scale * x + shift` is from the target."""
    return ((model["scale"] * x + model["shift"] - target) ** 2).mean()


def watched(function: Callable[..., Any]) -> tuple[Callable[..., Any], Shapes]:
    """The function, and a list to which each of its calls adds the shapes of the tensors in its arguments."""
    seen: Shapes = []

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            given = inspect.signature(function).bind(*args, **named)
        except TypeError as error:  # without the lines of `inspect`
            raise TypeError(f"{function.__name__}(): {error}") from None
        seen.append(tuple(tuple(x.shape) for x in ts.tree.leaves(given.args)))
        return function(*given.args)

    return call, seen


def judge_nearest(nearest: Callable[..., Any]) -> Verdict:
    """Of four points the nearest other one; `distance` is called once, for two points."""
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    noted, seen = watched(distance)
    got = nearest(noted, points)
    if not difference(got, torch.zeros(4)):
        return differs(
            "it has 4 numbers, all of them 0",
            "One vmap pairs point 0 with point 0, 1 with 1. Which one would pair *one* point with all others?",
        )
    if not difference(got, torch.arange(4)):
        return differs(
            "each point is its own nearest neighbour",
            "The distance of a point to itself is 0, the least there is. What could stand on the diagonal instead?",
        )
    if not difference(got, torch.cdist(points, points), tolerance=1e-4):
        return differs("it is the table of all distances", "Nearly. Where is the smallest number of each row?")
    wrong = difference(got, torch.tensor([2, 2, 0, 1]), "the nearest neighbours of 4 points")
    if wrong:
        return differs(wrong)
    if not seen:
        return differs(
            "the neighbours are right, but `distance` was not called",
            "Another `distance` would need other neighbours. Map the function that you are given.",
        )
    if len(seen) > 1 or seen[0] != ((2,), (2,)):
        return differs(
            f"the neighbours are right, but `distance` was called {len(seen)} times, first with the shapes {seen[0]}",
            "`vmap` calls the function once, with the shapes of one example: here of two points, (2,) and (2,).",
        )
    return PASSED


def judge_clipped_mean(clipped_mean: Callable[..., Any]) -> Verdict:
    """The mean of 24 gradients, each at most 10 long; `loss` is called once."""
    w = torch.tensor([2.0, 3.0, 4.0])
    examples = torch.arange(5.0) + torch.arange(24.0)[:, None]
    targets = torch.tensor([10.0, 20.0, 30.0]) + 7 * torch.arange(24.0)[:, None]
    noted, seen = watched(loss)
    got = clipped_mean(noted, w, examples, targets)
    each = torch.stack([torch.func.grad(loss)(w, x, target) for x, target in zip(examples, targets, strict=True)])
    length = each.norm(dim=1, keepdim=True)
    clipped = each * (MOST / length).clamp(max=1)
    reported = difference(got, clipped.mean(0), "the mean of 24 clipped gradients", tolerance=1e-4)
    mean = each.mean(0)
    for other, hint in (
        (clipped, "Nearly: these are the 24 clipped gradients. Take their mean."),
        (clipped.sum(0), "That is the sum of the clipped gradients. Take their mean."),
        (mean, "That is the mean of the gradients as they are. Shorten those that are longer than 10 first."),
        (mean * (MOST / mean.norm()).clamp(max=1), "The mean was shortened: by then one example may have decided it."),
        ((MOST * each / length).mean(0), "All are 10 long now. One that was shorter stays as it is: `clamp(max=1)`."),
        (each.clamp(-MOST, MOST).mean(0), "Each number was cut off by itself. Shorten the gradient as a whole."),
    ):
        if reported and not difference(got, other, tolerance=1e-4):
            return differs(reported, hint)
    if reported:
        return differs(reported)
    if len(seen) != 1:
        return differs(
            f"the mean is right, but `loss` was called {len(seen)} times",
            "`vmap` of the gradient calls `loss` once, with the shapes of one example.",
        )
    return PASSED


def judge_step_each(step_each: Callable[..., Any]) -> Verdict:
    """Four models after one step on the same batch; `loss` is called once, for one model."""
    models = {"scale": torch.tensor([0.0, 1.0, 2.0, 3.0]), "shift": torch.tensor([1.0, 0.0, 0.0, -1.0])}
    x, target = torch.tensor([0.0, 1.0, 2.0, 4.0]), torch.tensor([1.0, 3.0, 4.0, 9.0])
    noted, seen = watched(line_loss)
    got = step_each(noted, models, x, target)
    if not isinstance(got, dict) or set(got) != set(models):
        return differs(f"it is not a dict with {' and '.join(models)}")
    off = models["scale"][:, None] * x + models["shift"][:, None] - target
    grads = {"scale": (2 * off * x).mean(1), "shift": (2 * off).mean(1)}

    def is_like(factor: float) -> bool:
        return not any(difference(got[name], models[name] - factor * grads[name], tolerance=1e-4) for name in models)

    if not is_like(0.1):
        reported = next(
            reported
            for name in models
            if (reported := difference(got[name], models[name] - 0.1 * grads[name], f"the {name} of 4 models", 1e-4))
        )
        if is_like(0.025):
            return differs(
                reported, "The mean over the models divides each gradient by 4. Each model has its own loss."
            )
        if is_like(-0.1):
            return differs(reported, "These models climb: a step must go against the gradient.")
        if len(seen) == 1 and seen[0][2] == ():
            return differs(
                reported, "Each model has seen one number of x. Which entry of `in_axes` lets all see all of x?"
            )
        return differs(reported)
    if len(seen) != 1 or seen[0][0] != ():
        return differs(
            f"the models are right, but `loss` was called {len(seen)} times, first with the shapes {seen[0]}"
            if seen
            else "the models are right, but `loss` was not called",
            "`vmap` over the models calls `loss` once, with a `scale` and a `shift` of shape ().",
        )
    return PASSED


EXERCISES = (
    Exercise(
        "05.1",
        judge_nearest,
        (
            "How would you get the distances from *one* point to all others?",
            "`vmap` with one None in `in_axes` gives a function of one point and all others: map that function too.",
            "Two maps make a table of all distances. The zeros on its diagonal are not neighbours: what could stand "
            "there instead, before you look for the smallest number of each row?",
        ),
        why="`distance` is written for two points, and still sees two. `vmap` adds the dims of all pairs around it.",
    ),
    Exercise(
        "05.2",
        judge_clipped_mean,
        (
            "Which function has a gradient for each example? It stands above.",
            "The factor for one example is 10 divided by the length of its gradient, but never more than 1.",
            "`norm(dim=1, keepdim=True)` has the lengths as a column: from it comes one factor for each gradient.",
        ),
        why="Clipping needs the gradients apart: once they are added up, no example's part can be shortened. With a "
        "little noise it is DP-SGD, which trains on data that must stay private.",
    ),
    Exercise(
        "05.3",
        judge_step_each,
        (
            "`ts.grad(loss)` is the gradient with respect to one model, as a dict. Over what must it be mapped?",
            "`in_axes` has an entry for each argument: the models along dim 0, the batch shared.",
            "The gradients are a dict of the same names. Each new parameter is the old one minus 0.1 times its own.",
        ),
        why="One program trains all four: each operation has one more dim, and for small models costs little more. "
        "Ensembles are trained this way, and learning rates compared.",
    ),
)
