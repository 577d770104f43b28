"""Lesson 09: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P


def constrained(value: Any, spec: ts.P) -> Any:
    """`value` by `spec`, on the lesson's mesh."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return ts.lax.with_sharding_constraint(value, ts.NamedSharding(mesh, spec))


def shrunk_by_if(v: Any) -> Any:
    """Wrong: an `if` on a traced value."""
    if v.max() > 1:
        return v / v.max()
    return v


ANSWERS = {
    "09.1": Answers(
        solution=P(None, ("a", "b")),
        wrong=(
            Wrong(P(None, "a"), "both axes have to cut"),
            Wrong(P(("a", "b")), "Whole columns do not"),
            Wrong(P("b", "a"), "Whole columns do not"),
            Wrong(P("a"), "which elements must be in one place"),
        ),
    ),
    "09.2": Answers(
        solution=(P(None, "b"), P("b", None)),
        wrong=(
            Wrong((P(None, "b"), P(None, "b")), "Which dim of `w2` meets them"),
            Wrong((P("b"), P(None, "b")), "Which cut of `w1`"),
            Wrong((P(None, "b"), P()), "the one of 2 devices"),
            Wrong((P(None, "a"), P("a")), "the one of 2 devices"),
        ),
    ),
    "09.3": Answers(
        solution=ts.jit(lambda v: v / torch.clamp(v.max(), min=1)),
        wrong=(
            Wrong(ts.jit(shrunk_by_if), "no values to choose a branch by"),
            Wrong(ts.jit(lambda v: v / v.max()), "By what may one divide"),
            Wrong(ts.jit(lambda v: torch.where(v > 1, v / v.max(), v)), "Each element decided for itself"),
            Wrong(ts.jit(lambda v: torch.clamp(v, max=1)), "By what do you divide"),
        ),
    ),
    "09.4": Answers(
        solution=lambda left, right: constrained(left @ right, P(None, "b")),
        wrong=(
            Wrong(lambda left, right: constrained(left @ right, P("b")), "Those are the rows"),
            Wrong(lambda left, right: left @ constrained(right, P(None, "b")), "by a detour"),
            Wrong(lambda left, right: constrained(left, P(None, "b")) @ right, "Who decides where"),
            Wrong(lambda left, right: constrained(left @ right, P()), "Who decides where"),
        ),
    ),
}
