"""Lesson 11: answers."""

from typing import Any

import torch
from torch.nn import functional as F

import tinyshard as ts
from course.exercises.lesson_11 import BY_INPUTS, BY_OUTPUTS
from course.patterns import loss, network
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P
COUNTING = torch.cat([torch.ones(310), torch.zeros(10)])


def loss_of_rest(params: Any, batch: Any, counts: Any) -> Any:
    """11.1."""
    x, labels = batch
    each = F.cross_entropy(torch.func.functional_call(network(), params, (x,)), labels, reduction="none")
    return (each * counts).sum() / counts.sum()


def mean_of_weighted(params: Any, batch: Any, counts: Any) -> Any:
    """Wrong: divides by the number of rows."""
    x, labels = batch
    return (
        F.cross_entropy(torch.func.functional_call(network(), params, (x,)), labels, reduction="none") * counts
    ).mean()


def weighted_inputs(params: Any, batch: Any, counts: Any) -> Any:
    """Wrong: zeros as inputs still give outputs."""
    x, labels = batch
    return loss(params, (x * counts[:, None], labels))


def sliced(params: Any, batch: Any, counts: Any) -> Any:
    """Wrong: right values, but rows travel."""
    x, labels = batch
    return loss(params, (x[:310], labels[:310]))


def clip(grads: Any, places: Any) -> Any:
    """11.2."""
    scattered = ts.lax.with_sharding_constraint(grads, places)
    return ts.optim.clip_by_global_norm(scattered, 1.0)[0]


def clip_then_scatter(grads: Any, places: Any) -> Any:
    """Wrong: the norm is taken of whole gradients."""
    return ts.lax.with_sharding_constraint(ts.optim.clip_by_global_norm(grads, 1.0)[0], places)


def clip_each(grads: Any, places: Any) -> Any:
    """Wrong: a norm for each gradient."""
    return {name: ts.optim.clip_by_global_norm(g, 1.0)[0] for name, g in grads.items()}


def only_scatter(grads: Any, places: Any) -> Any:
    """Wrong: nothing is clipped."""
    return ts.lax.with_sharding_constraint(grads, places)


ANSWERS = {
    "11.1": Answers(
        solution=(COUNTING, loss_of_rest),
        wrong=(
            Wrong((COUNTING, mean_of_weighted), "divided by 320"),
            Wrong((COUNTING, weighted_inputs), "The padding is in it"),
            Wrong((torch.ones(320), loss_of_rest), "The padding is in it"),
            Wrong((torch.ones(310), loss_of_rest), "Which rows must count"),
            Wrong((COUNTING, sliced), "Rows travel"),
        ),
    ),
    "11.2": Answers(
        solution=clip,
        wrong=(
            Wrong(clip_then_scatter, "Where will the update need it"),
            Wrong(clip_each, "by its own norm"),
            Wrong(only_scatter, "Nothing is clipped"),
        ),
    ),
    "11.3": Answers(
        solution={
            "layers.0.*": BY_OUTPUTS,
            "layers.1.weight": BY_INPUTS,
            "layers.2.*": BY_OUTPUTS,
            "layers.3.weight": BY_INPUTS,
        },
        wrong=(
            Wrong({"layers.2.*": BY_OUTPUTS, "layers.3.weight": BY_INPUTS}, "it is still whole"),
            Wrong({"layers.0.weight": BY_INPUTS, "layers.1.*": BY_OUTPUTS}, "has all 784 of them"),
            Wrong({"*": BY_OUTPUTS}, "Which kind of layer can use them there"),
            Wrong({"*": P("data")}, "Nothing is sharded along model"),
            Wrong({"*": P(("data", "model"))}, "Leave data to the batch"),
            Wrong({"layers.0.*": BY_OUTPUTS, "layers.1.weight": BY_INPUTS}, "Which weight is the largest"),
        ),
    ),
}
