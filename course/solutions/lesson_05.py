"""Lesson 05: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def all_pairs(distance: Any, points: Any) -> Any:
    """The distance of each point to each."""
    return ts.vmap(ts.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))(points, points)


def of_others(table: Any) -> Any:
    """The nearest other point, from all distances."""
    return (table + torch.diag(torch.full((len(table),), torch.inf))).argmin(1)


def looped(distance: Any, points: Any) -> Any:
    """Wrong: a loop over all pairs."""
    return of_others(torch.stack([torch.stack([distance(a, b) for b in points]) for a in points]))


def gradients(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Of each example."""
    return ts.vmap(ts.grad(loss), in_axes=(None, 0, 0))(w, examples, targets)


def shortened(gradient: Any, most: float = 1.0) -> Any:
    """At most 10 long, along the last dim."""
    return gradient * (10 / gradient.norm(dim=-1, keepdim=True)).clamp(max=most)


def clipped_mean(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """05.2: each is shortened before the mean."""
    return shortened(gradients(loss, w, examples, targets)).mean(0)


def clipped_in_a_loop(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    """Wrong: one example after the other."""
    each = [ts.grad(loss)(w, x, target) for x, target in zip(examples, targets, strict=True)]
    return shortened(torch.stack(each)).mean(0)


def stepped(models: Any, grads: Any, rate: float = 0.1) -> Any:
    """Each parameter minus its gradient."""
    return {name: models[name] - rate * grads[name] for name in models}


def step_each(loss: Any, models: Any, x: Any, target: Any) -> Any:
    """05.3: mapped over the models."""
    return stepped(models, ts.vmap(ts.grad(loss), in_axes=(0, None, None))(models, x, target))


def step_by_mean(loss: Any, models: Any, x: Any, target: Any) -> Any:
    """Wrong: one loss for all models."""
    mean = ts.grad(lambda models: ts.vmap(loss, in_axes=(0, None, None))(models, x, target).mean())
    return stepped(models, mean(models))


def step_in_a_loop(loss: Any, models: Any, x: Any, target: Any) -> Any:
    """Wrong: one model after the other."""
    each = [ts.grad(loss)({name: models[name][i] for name in models}, x, target) for i in range(4)]
    return stepped(models, {name: torch.stack([grads[name] for grads in each]) for name in models})


def step_up(loss: Any, models: Any, x: Any, target: Any) -> Any:
    """Wrong: along the gradient."""
    return stepped(models, ts.vmap(ts.grad(loss), in_axes=(0, None, None))(models, x, target), rate=-0.1)


ANSWERS = {
    "05.1": Answers(
        solution=lambda distance, points: of_others(all_pairs(distance, points)),
        wrong=(
            Wrong(lambda distance, points: ts.vmap(distance)(points, points), "One vmap pairs point 0 with point 0"),
            Wrong(lambda distance, points: all_pairs(distance, points).argmin(1), "could stand on the diagonal"),
            Wrong(all_pairs, "Where is the smallest number"),
            Wrong(lambda _, points: of_others(torch.cdist(points, points)), "Map the function that you are given"),
            Wrong(looped, "calls the function once"),
        ),
    ),
    "05.2": Answers(
        solution=clipped_mean,
        wrong=(
            Wrong(lambda *args: gradients(*args).mean(0), "Shorten those that are longer"),
            Wrong(lambda *args: shortened(gradients(*args).mean(0)), "The mean was shortened"),
            Wrong(lambda *args: shortened(gradients(*args), torch.inf).mean(0), "All are 10 long now"),
            Wrong(lambda *args: gradients(*args).clamp(-10, 10).mean(0), "Each number was cut off by itself"),
            Wrong(lambda *args: shortened(gradients(*args)), "Take their mean"),
            Wrong(lambda *args: shortened(gradients(*args)).sum(0), "That is the sum of the clipped gradients"),
            Wrong(clipped_in_a_loop, "calls `loss` once"),
        ),
    ),
    "05.3": Answers(
        solution=step_each,
        wrong=(
            Wrong(step_by_mean, "divides each gradient by 4"),
            Wrong(lambda loss, models, *data: stepped(models, ts.vmap(ts.grad(loss))(models, *data)), "see all of x"),
            Wrong(step_up, "These models climb"),
            Wrong(step_in_a_loop, "calls `loss` once"),
        ),
    ),
}
