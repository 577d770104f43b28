"""Lesson 04: computation follows the data."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled

__all__ = ["EXERCISES"]

P = ts.P
MIB = 2**20


def _operand(spec: Any, shape: tuple[int, ...] = (64, 64)) -> ts.ShapeDtypeStruct:
    """A matrix laid out by `spec` on the lesson's mesh: programs need no more."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))


def _told(made: Any) -> str:
    """The collectives of a program in one line."""
    return ", ".join(map(str, ts.collectives_in(made))) or "no collectives"


def judge_silent_sum(spec: Any) -> Verdict:
    """The sum of each column without communication, an eighth of the matrix on each device."""
    if not isinstance(spec, P):
        return differs(f"its type is {type(spec).__name__}, not P")
    made = compiled(lambda v: v.sum(0), _operand(spec))
    (held, *_), nbytes = made.program.metas, made.cost_analysis().nbytes
    assert held is not None
    reported = f"each device holds {held} and sends {nbytes} bytes"
    is_eighth = held.nbytes == 64 * 64 * 4 // 8
    if not is_eighth and nbytes == 0:
        return differs(reported, "No communication, but there are copies: both axes have to shard something.")
    if is_eighth and nbytes:
        return differs(reported, "A column that is spread over several devices must be added up by communication.")
    return PASSED if is_eighth else differs(reported)


def _dot(left: Any, right: Any) -> Any:
    return left @ right


def judge_layouts_of_a_program(specs: Any) -> Verdict:
    """The layouts for which `left @ right` gathers 6,144 bytes along `a`, and is P('a', 'b')."""
    if not isinstance(specs, list | tuple) or len(specs) != 2 or not all(isinstance(spec, P) for spec in specs):
        return differs("it is not a pair of P(...)")
    made = compiled(_dot, *map(_operand, specs))
    result, found = made.output_shardings.spec, ts.collectives_in(made)
    reported = f"the result has {result}; {_told(made)}"
    kinds = [(each.kind, each.axes, each.nbytes) for each in found]
    if result == P("a", "b") and kinds == [("all_gather", ("a",), 6144)]:
        return PASSED
    if result == P("a", "b") and not found:
        return differs(
            reported, "The result is right, but nothing is missing. Which operand must be in more parts than that?"
        )
    if result == P("a", "b") and ("all_gather", ("a",), 6144) in kinds:
        hint = "The result and the gather over `a` are right. What makes the other collective necessary?"
        return differs(reported, hint)
    if result == P("a", "b"):
        hint = "The result is right. All shards that differ along `a` are gathered: 3 pieces of 2,048 bytes arrive."
        return differs(reported, hint)
    if [each.kind for each in found] == ["all_gather"]:
        return differs(
            reported, "A gather, but `b` shards nothing of the result. Which operand has the result's columns?"
        )
    return differs(reported)


def why_of_layouts(specs: Any) -> str:
    """What is true of both answers: `right` by rows along a, or by columns along b and a."""
    gathered = (
        "rows, which are the contracted dim," if specs[1] == P("a", "b") else "columns, cut by a as well as by b,"
    )
    return (
        f"`right` gives the result its columns by b, and its {gathered} are gathered along a: so FSDP and tensor "
        "parallelism are combined in practice."
    )


def _layer(x: Any, up: Any, down: Any) -> Any:
    return torch.relu(x @ up) @ down


def judge_weights_in_sixteen_mib(specs: Any) -> Verdict:
    """The layer with at most 16 MiB of weights on a device, and at most 196,608 bytes sent."""
    if not isinstance(specs, list | tuple) or len(specs) != 3 or not all(isinstance(spec, P) for spec in specs):
        return differs("it is not three P(...)")
    operands = [
        _operand(spec, shape) for spec, shape in zip(specs, ((64, 1024), (1024, 8192), (8192, 1024)), strict=True)
    ]
    made = compiled(_layer, *operands)
    held = sum(meta.nbytes for meta in made.program.metas[1:3] if meta is not None) / MIB
    nbytes = made.cost_analysis().nbytes
    reported = f"{held:g} MiB of weights on a device; {_told(made)}"
    if held > 32:
        return differs(reported, "Too much memory: a matrix that no axis shards is whole on each device, 32 MiB.")
    if held > 16:
        return differs(reported, "Too much memory: an axis of 2 devices leaves half of a matrix, 16 MiB, on each.")
    if nbytes <= 196_608:
        return PASSED
    kinds = [each.kind for each in ts.collectives_in(made)]
    if "all_gather" in kinds:
        return differs(reported, "Something is gathered first. Does one axis shard two dims that do not match?")
    if kinds == ["all_reduce"] and nbytes <= 458_752:
        hint = (
            "One all_reduce, of all 64 rows and 1024 columns. Let one axis do the sum, and the other one "
            "share out what is summed."
        )
        return differs(reported, hint)
    return differs(reported)


def why_of_specs(specs: Any) -> str:
    """What is true of both answers: b cuts the rows of x, or the columns of `down`."""
    halved = "the rows of x" if specs[0] == P("b") else "the columns of down"
    practice = "tensor parallelism along one axis, data parallelism along the other"
    return (
        "The sum runs over the four devices of a, and b halves what is summed: a smaller matrix and a smaller group. "
        f"Here b cuts {halved}" + (f": in practice {practice}." if specs[0] == P("b") else ".")
    )


def unconstrained(left: Any, right: Any) -> Any:
    """The stub of 04.4."""
    return torch.relu(left @ right).sum(0)


def judge_column_sums(column_sums: Callable[..., Any]) -> Verdict:
    """The sums on every device, by a reduce_scatter along the columns and an all_gather."""
    made = compiled(column_sums, _operand(P(None, "b")), _operand(P("b")))
    spec, nbytes = made.output_shardings.spec, made.cost_analysis().nbytes
    reported = f"the result has {spec}, and {nbytes:,} bytes are sent: {_told(made)}"
    if spec != P():
        return differs(reported, "In the end every device must have all 64 sums: constrain the result, too.")
    if nbytes > 8320:
        kinds = [each.kind for each in ts.collectives_in(made)]
        if kinds == ["reduce_scatter", "all_reduce"]:
            hint = (
                "With rows on each device, a column's sum is a partial sum again, and reduced again. "
                "Which cut keeps columns whole?"
            )
            return differs(reported, hint)
        if kinds[:1] in (["all_gather"], ["all_to_all"]):
            hint = "An operand is moved before the product. Constrain the product: its partial sums are where they are."
            return differs(reported, hint)
        if kinds[:1] == ["all_reduce"]:
            return differs(
                reported,
                "The whole product is still reduced to every device. Constrain it before `relu` uses "
                "it, along the axis that holds the parts of its sums.",
            )
        return differs(reported)
    numbers = torch.arange(4096.0).reshape(64, 64) / 4096 - 0.5
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    left, right = (ts.device_put(numbers, ts.NamedSharding(mesh, spec)) for spec in (P(None, "b"), P("b")))
    wanted = torch.relu(numbers @ numbers).sum(0)
    wrong = difference(
        ts.jit(column_sums)(left, right), wanted, "for two matrices of 64 x 64 numbers the result", tolerance=1e-3
    )
    return differs(wrong) if wrong else PASSED


def why_of_sums(column_sums: Callable[..., Any]) -> str:
    """What is true of the function that passed, by the bytes that it sends."""
    made = compiled(column_sums, _operand(P(None, "b")), _operand(P("b")))
    nbytes, kinds = made.cost_analysis().nbytes, [each.kind for each in ts.collectives_in(made)]
    if kinds == ["reduce_scatter", "all_gather"]:
        return (
            "A reduce_scatter is the first half of an all_reduce. With whole columns on a device the second half is an "
            "all_gather of 64 sums, not of 64 x 64 numbers."
            + " If `a` cuts the columns too, by P(None, ('a', 'b')), 2,272 bytes are enough."
            * (nbytes > 2272)
        )
    return (
        "A device completes only its part of the product. What is sent after that are sums of columns, not columns: "
        f"{nbytes:,} bytes in all."
    )


EXERCISES = (
    Exercise(
        "04.1",
        judge_silent_sum,
        (
            "To add up a column, which elements must be on one device?",
            "Columns stay whole and are distributed: over how many devices, if each holds an eighth?",
            "One dim may be sharded by both axes: its entry in `P` is a tuple of names. Which of the two dims is it?",
        ),
        stub=P("a", "b"),
        why="Each device has 8 whole columns, so each sum is complete where it is computed. Shard what "
        "you do not sum over.",
    ),
    Exercise(
        "04.2",
        judge_layouts_of_a_program,
        (
            "From which operand does the result have its rows by `a`, and from which its columns by `b`?",
            "6,144 bytes along 4 devices: three times 2,048, a shard of 16 x 32. Which operand had such shards?",
            "Before the gather an operand is sharded by both axes, after it by `b` alone. `left` has "
            "nothing to do with `b`.",
        ),
        stub=(P("a"), P(None, "b")),
        why=why_of_layouts,
    ),
    Exercise(
        "04.3",
        judge_weights_in_sixteen_mib,
        (
            "The all_reduce sends the shard of y that a device has to complete. What makes that shard smaller?",
            "Sum along one axis only. Which axis leaves at most 8 MiB of each matrix on a device?",
            "`up` by columns and `down` by rows, by the axis of 4 devices. The axis of 2 is left for "
            "another dim of `x` or of `down`.",
        ),
        stub=(P(), P(None, ("a", "b")), P(("a", "b"))),
        why=why_of_specs,
    ),
    Exercise(
        "04.4",
        judge_column_sums,
        (
            "What do the sums of one column need: all of the product, or some columns of it?",
            "`ts.lax.with_sharding_constraint(value, sharding)`: the value is the product, and one of "
            "its dims is sharded by `b`.",
            "Product by columns: 8,192 bytes, and the sums are complete. A second constraint on the "
            "sums brings all 64 to every device, for 128.",
        ),
        stub=unconstrained,
        why=why_of_sums,
    ),
)
