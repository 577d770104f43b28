"""Lesson 04: answers."""

from collections.abc import Callable
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


def column_sums(product: ts.P, result: ts.P | None) -> Callable[..., Any]:
    """The sums, with the product and the result constrained to these specs."""

    def of(left: Any, right: Any) -> Any:
        sums = torch.relu(constrained(left @ right, product)).sum(0)
        return sums if result is None else constrained(sums, result)

    return of


def moved(left: Any, right: Any) -> Any:
    """Wrong: `right` is moved to columns, and not the product."""
    return constrained(torch.relu(left @ constrained(right, P(None, "b"))).sum(0), P())


def late(left: Any, right: Any) -> Any:
    """Wrong: the product is complete before the constraint applies."""
    return constrained(constrained(torch.relu(left @ right), P(None, "b")).sum(0), P())


ANSWERS = {
    "04.1": Answers(
        solution=P(None, ("a", "b")),
        wrong=(
            Wrong(P(None, "a"), "both axes have to shard"),
            Wrong(P(("a", "b")), "must be added up by communication"),
            Wrong(P("b", "a"), "must be added up by communication"),
            Wrong(P("a"), "which elements must be on one device"),
        ),
    ),
    "04.2": Answers(
        solution=(P("a"), P("a", "b")),
        wrong=(
            Wrong((P("a"), P("a")), "`b` shards nothing of the result"),
            Wrong((P("a", "b"), P(None, "b")), "3 pieces of 2,048 bytes"),
            Wrong((P(("a", "b")), P(None, "b")), "3 pieces of 2,048 bytes"),
            Wrong((P("a", "b"), P("a", "b")), "the other collective"),
            Wrong((P("a"), P(None, ("a", "b"))), "the other collective"),
            Wrong((P("a", "b"), P("b")), "From which operand"),
        ),
    ),
    "04.3": Answers(
        solution=(P("b"), P(None, "a"), P("a")),
        wrong=(
            Wrong((P("a"), P(None, "b"), P("b")), "leaves half of a matrix"),
            Wrong((P(("a", "b")), P(), P()), "is whole on each device"),
            Wrong((P(), P(None, "a"), P("a")), "the other one share out what is summed"),
            Wrong((P("a"), P(None, ("a", "b")), P(("a", "b"))), "one axis shard two dims that do not match"),
            Wrong((P(), P(("a", "b")), P(None, ("a", "b"))), "What makes that shard smaller"),
        ),
    ),
    "04.4": Answers(
        solution=column_sums(P(None, "b"), P()),
        wrong=(
            Wrong(column_sums(P("b"), P()), "Which cut keeps columns whole"),
            Wrong(column_sums(P(None, "b"), None), "constrain the result, too"),
            Wrong(late, "before `relu` uses it"),
            Wrong(moved, "An operand is moved"),
        ),
    ),
}
