"""Lesson 09: computation follows the data."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

P = ts.P


def _operand(spec: Any) -> ts.ShapeDtypeStruct:
    """A matrix of 64 x 64, laid out by `spec` on the lesson's mesh: programs need no more."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return ts.ShapeDtypeStruct((64, 64), torch.float32, sharding=ts.NamedSharding(mesh, spec))


def _program(function: Callable[..., Any], *specs: Any) -> Any:
    return ts.jit(function).lower(*map(_operand, specs)).compile()


def _talk(compiled: Any) -> str:
    """The collectives of a program: "all_gather over a, all_reduce over b"."""
    found = [f"{each.kind} over {' and '.join(each.axes)}" for each in compiled.cost_analysis().traffic]
    return ", ".join(found) or "no collective"


def judge_silent_sum(spec: Any) -> Verdict:
    """The sum of each column without talk, an eighth of the matrix on each device."""
    if not isinstance(spec, P):
        return differs(f"it is a {type(spec).__name__}, not a P(...)")
    compiled = _program(lambda v: v.sum(0), spec)
    held, nbytes = compiled.program.metas[0], compiled.cost_analysis().nbytes
    told = f"each device holds {held} and sends {nbytes} bytes"
    is_eighth = held.nbytes == 64 * 64 * 4 // 8
    if not is_eighth and nbytes == 0:
        return differs(told, "Silent, but there are copies: both axes have to cut something.")
    if is_eighth and nbytes:
        return differs(told, "A column that lies on several devices must be added up by talking. Whole columns do not.")
    return PASSED if is_eighth else differs(told)


def judge_two_products(specs: Any) -> Verdict:
    """w1 by columns, w2 by rows."""
    if not isinstance(specs, list | tuple) or not all(isinstance(spec, P) for spec in specs):
        return differs("it is not a pair of P(...)")
    compiled = _program(lambda v, w1, w2: (v @ w1) @ w2, P("a"), *specs)
    halves = [meta.nbytes == 64 * 64 * 4 // 2 for meta in compiled.program.metas[1:3]]
    if not all(halves):
        name = "w1" if not halves[0] else "w2"
        return differs(
            f"a device does not hold half of {name}", "Only one axis cuts into halves: the one of 2 devices."
        )
    told = f"the program has {_talk(compiled)}"
    talk = [each.kind for each in compiled.cost_analysis().traffic]
    if talk == ["all_reduce"]:
        return PASSED
    if specs[0] == P(None, "b"):
        return differs(told, "The first product is free now, its columns cut by `b`. Which dim of `w2` meets them?")
    return differs(told, "One collective is spent on the first product already. Which cut of `w1` makes it free?")


def judge_shrunk(shrunk: Callable[..., Any]) -> Verdict:
    """Divided by the largest where that is more than 1."""
    values = ts.device_put(torch.tensor([1.0, 2.0, 3.0, 4.0]), ts.NamedSharding(ts.make_mesh((4,), ("a",)), P("a")))
    jitted = ts.jit(shrunk)
    try:
        large, small = jitted(values), jitted(values / 8)
    except TypeError as error:
        hint = "A trace has no values to choose a branch by. The three ways out stand in section 8."
        return differs(f"jit says: {str(error).splitlines()[0]}", hint)
    told = difference(large, [0.25, 0.5, 0.75, 1.0], "shrunk of 1, 2, 3, 4")
    if told and not difference(large, [1.0, 0.5, 0.75, 1.0]):
        return differs(
            told, "Each element decided for itself: 1 was left as it is. The condition is about the largest."
        )
    if told:
        return differs(told)
    told = difference(small, [0.125, 0.25, 0.375, 0.5], "shrunk of 1/8, 2/8, 3/8, 4/8")
    return (
        differs(told, "Here the largest is not more than 1. By what may one divide without a change?")
        if told
        else PASSED
    )


def unconstrained(left: Any, right: Any) -> Any:
    """The stub of 09.4."""
    return left @ right


def judge_halved(halved: Callable[..., Any]) -> Verdict:
    """The product, its columns cut by `b`, by one reduce_scatter."""
    compiled = _program(halved, P(None, "b"), P("b"))
    spec, nbytes = compiled.output_shardings.spec, compiled.cost_analysis().nbytes
    told = f"the result has {spec}, and each device sends {nbytes:,} bytes: {_talk(compiled)}"
    if spec == P("b"):
        return differs(told, "Those are the rows. Columns are the second entry of P.")
    if spec != P(None, "b"):
        return differs(told)
    if nbytes != 8192:
        return differs(told, "The right place, by a detour. Constrain the product, and nothing before it.")
    numbers = torch.arange(4096.0).reshape(64, 64) / 4096
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    left, right = (ts.device_put(numbers, ts.NamedSharding(mesh, spec)) for spec in (P(None, "b"), P("b")))
    wrong = difference(halved(left, right), numbers @ numbers, "the product", tolerance=1e-3)
    return differs(wrong) if wrong else PASSED


EXERCISES = (
    Exercise(
        "09.1",
        judge_silent_sum,
        (
            "To add up a column, which elements must be in one place?",
            "Rows stay whole, columns are dealt out: over how many devices, if each holds an eighth?",
            "One dim may be cut by both axes: `P(None, (..., ...))`.",
        ),
        stub=P("a", "b"),
    ),
    Exercise(
        "09.2",
        judge_two_products,
        (
            "Which cut of `w1` makes `v @ w1` free (section 3)?",
            "Rows by columns: `w1` has its columns cut. They become the contracted dim of the second product.",
            "`w1` by columns, `w2` by rows, both over `b`.",
        ),
        stub=(P("b", None), P("b", None)),
    ),
    Exercise(
        "09.3",
        judge_shrunk,
        (
            "Dividing by 1 changes nothing. By what do you divide in each of the two cases?",
            "`v.max()` is a tensor; `torch.where` or `torch.clamp` makes the divisor of it.",
            "`v / torch.clamp(v.max(), min=1)`",
        ),
        stub=lambda v: v,
    ),
    Exercise(
        "09.4",
        judge_halved,
        (
            "Who decides where a result lives, and how do you overrule it (section 10)?",
            "`ts.lax.with_sharding_constraint(value, sharding)`: which value, which sharding?",
            "The value is `left @ right`; the sharding is `ts.NamedSharding(mesh, P(None, 'b'))`.",
        ),
        stub=unconstrained,
    ),
)
