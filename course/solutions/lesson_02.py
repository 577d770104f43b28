"""Lesson 02: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.exercises.lesson_02 import distance, loss
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def mean_pull(w: Any, examples: Any, targets: Any) -> Any:
    """Wrong: the gradient of the mean."""
    return ts.grad(lambda w: ts.vmap(loss, in_axes=(None, 0, 0))(w, examples, targets).mean())(w).norm()


ANSWERS = {
    "02.1": Answers(
        solution=((1, 0), 1),
        wrong=(
            Wrong((0, 0), "an entry for each argument"),
            Wrong(((1, 0), 0), "now say `out_axes`"),
            Wrong(((1, None), 1), "`None` shares"),
            Wrong((1, 1), "which of `windows`"),
        ),
    ),
    "02.2": Answers(
        solution=lambda points: ts.vmap(ts.vmap(distance, in_axes=(None, 0)), in_axes=(0, None))(points, points),
        wrong=(
            Wrong(lambda points: ts.vmap(distance)(points, points), "One vmap pairs point 0 with point 0"),
            Wrong(
                lambda points: ts.vmap(distance, in_axes=(0, None))(points, points), "A second vmap takes them apart"
            ),
            Wrong(lambda points: distance(points, points), "How would you get"),
        ),
    ),
    "02.3": Answers(
        solution=lambda w, xs, ys: ts.vmap(ts.grad(loss), in_axes=(None, 0, 0))(w, xs, ys).norm(dim=1),
        wrong=(
            Wrong(lambda w, xs, ys: ts.vmap(ts.grad(loss), in_axes=(None, 0, 0))(w, xs, ys), "their length is wanted"),
            Wrong(lambda w, xs, ys: ts.vmap(ts.grad(loss), in_axes=(None, 0, 0))(w, xs, ys).norm(), "along dim 1"),
            Wrong(lambda w, xs, ys: ts.vmap(loss, in_axes=(None, 0, 0))(w, xs, ys), "the length of its *gradient*"),
            Wrong(mean_pull, "no longer knows its examples"),
            Wrong(lambda w, xs, ys: ts.vmap(ts.grad(loss))(w, xs, ys), "Which function gives the gradient"),
        ),
    ),
    "02.4": Answers(
        solution=lambda v: v - ts.lax.pmean(v, "i"),
        wrong=(
            Wrong(lambda v: v - v.mean(), "it is its own mean"),
            Wrong(lambda v: v - ts.lax.psum(v, "i"), "also divides"),
            Wrong(lambda v: ts.lax.pmean(v, "i"), "subtracted from what"),
            Wrong(lambda v: v - ts.lax.pmean(v, "j"), "How does section 6"),
            Wrong(lambda v: torch.abs(v - ts.lax.pmean(v, "i")), "How does section 6"),
        ),
    ),
}
