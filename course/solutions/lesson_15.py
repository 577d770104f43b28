"""Lesson 15: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.exercises.lesson_15 import constrained, loss_of_master, low_loss
from course.solutions.answers import Answers, Wrong
from course.zero import ADAM

__all__ = ["ANSWERS"]

P = ts.P
BOTH = P(("device", "host"))


def mixed_step(master: Any, state: Any, batch: Any) -> Any:
    """15.3."""
    low = ts.tree.map(lambda w: constrained(w.bfloat16(), P()), master)
    value, grads = ts.value_and_grad(low_loss)(low, batch)
    grads = ts.tree.map(lambda g: constrained(g, P("d")).float(), grads)
    return value, *ADAM.update(master, grads, state)


def wide_step(master: Any, state: Any, batch: Any) -> Any:
    """Wrong: nothing is in bfloat16."""
    x, wanted = batch

    def loss(whole: Any) -> Any:
        y = x
        for weights in whole:
            y = y + torch.nn.functional.gelu(y @ weights["up.weight"].T) @ weights["down.weight"].T
        return (y - wanted).square().mean()

    value, grads = ts.value_and_grad(loss)(ts.tree.map(lambda w: constrained(w, P()), master))
    return value, *ADAM.update(master, ts.tree.map(lambda g: constrained(g, P("d")), grads), state)


def converted_too_early(master: Any, state: Any, batch: Any) -> Any:
    """Wrong: each gradient is converted first, and therefore made whole first."""
    low = ts.tree.map(lambda w: constrained(w.bfloat16(), P()), master)
    value, grads = ts.value_and_grad(low_loss)(low, batch)
    grads = ts.tree.map(lambda g: constrained(g.float(), P("d")), grads)
    return value, *ADAM.update(master, grads, state)


def cut_too_late(master: Any, state: Any, batch: Any) -> Any:
    """Wrong: the constraint in the loss has made each gradient whole before it is cut."""
    value, grads = ts.value_and_grad(loss_of_master)(master, batch)
    grads = ts.tree.map(lambda g: constrained(g, P("d")), grads)
    return value, *ADAM.update(master, grads, state)


ANSWERS = {
    "15.1": Answers(
        solution=(P(), P("device"), P("device")),
        wrong=(
            Wrong((P(), BOTH, BOTH), "Whole matrices cross the link"),
            Wrong((P(), P("host"), P("host")), "Whole matrices cross the link"),
            Wrong((P(), None, P("device")), "still whole on each device"),
            Wrong((P("device"), P("device"), P("device")), "gathered twice"),
        ),
    ),
    "15.2": Answers(
        solution=ts.checkpoint_policies.dots_saveable,
        wrong=(
            Wrong(ts.checkpoint_policies.nothing_saveable, "The product of `up`"),
            Wrong(ts.checkpoint_policies.save_only_these_names("active"), "The product of `up`"),
            Wrong(ts.checkpoint_policies.save_only_these_names("hidden", "active"), "Which of the two wide values"),
        ),
    ),
    "15.3": Answers(
        solution=mixed_step,
        wrong=(
            Wrong(wide_step, "computed in float32"),
            Wrong(converted_too_early, "made whole on every device"),
            Wrong(cut_too_late, "made whole on every device"),
        ),
    ),
}
