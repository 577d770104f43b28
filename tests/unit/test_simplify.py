"""A program without steps that compute nothing new: what is left of it, and what stays apart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import tinyshard as ts
from tinyshard.compile.simplify import simplified
from tinyshard.core.program import Builder, Program, Reason, Value
from tinyshard.core.types import ShapedType

pytestmark = pytest.mark.usefixtures("local")

F32 = torch.float32


def type_of(*shape: int) -> ShapedType:
    return ShapedType(shape, F32)


def written(steps: list[tuple[str, Any, tuple[int, ...]]], inputs: list[ShapedType], outputs: list[int]) -> Program:
    """A program of steps with one result each: (op, arguments, shape)."""
    builder = Builder((0,), (1,))
    for meta in inputs:
        builder.input(meta)
    for op, args, shape in steps:
        builder.emit(op, args, {}, [type_of(*shape)])
    return builder.finish(outputs)


def ops(program: Program) -> list[str]:
    return [step.op.removeprefix("aten.").partition(".")[0] for step in program.steps]


X, Y = Value(0), Value(1)


T, CLONE, RESHAPE, SIN = "aten.t.default", "aten.clone.default", "aten.reshape.default", "aten.sin.default"
SUM = [(RESHAPE, (X, [6]), (6,)), ("all_reduce", (Y,), (6,))]
BOTH = "aten.add.Tensor", (Y, Value(2)), ()
CASES = {
    "a transpose of a transpose": ([(T, (X,), (3, 2)), (T, (Y,), (2, 3)), (SIN, (Value(2),), (2, 3))], ["sin"]),
    "a transpose, twice": (
        [(T, (X,), (3, 2)), (T, (X,), (3, 2)), ("aten.add.Tensor", (Y, Value(2)), (3, 2))],
        ["t", "add"],
    ),
    "a copy of an operand": ([(CLONE, (X,), (2, 3)), (SIN, (Y,), (2, 3))], ["sin"]),
    "a copy that is a result": ([(SIN, (X,), (2, 3)), (CLONE, (Y,), (2, 3))], ["sin", "clone"]),
    "a copy of a part": (  # without it all that it is a part of would be kept
        [("aten.slice.Tensor", (X, 0, 0, 1), (1, 3)), (CLONE, (Y,), (1, 3)), (SIN, (Value(2),), (1, 3))],
        ["slice", "clone", "sin"],
    ),
    "a shape around a sum": ([*SUM, (RESHAPE, (Value(2), [2, 3]), (2, 3))], ["all_reduce"]),
    "another shape after a sum": ([*SUM, (RESHAPE, (Value(2), [3, 2]), (3, 2))], ["reshape", "all_reduce", "reshape"]),
    "a transpose around a sum": (  # its elements come in another order
        [(T, (X,), (3, 2)), ("all_reduce", (Y,), (3, 2)), (RESHAPE, (Value(2), [2, 3]), (2, 3))],
        ["t", "all_reduce", "reshape"],
    ),
    "a shape around a sum whose copy is used": (
        [*SUM, (CLONE, (Value(2),), (6,)), (RESHAPE, (Value(3), [2, 3]), (2, 3)), (SIN, (Value(3),), (6,))],
        ["reshape", "all_reduce", "sin"],
    ),
    "a shape of a shape": ([(RESHAPE, (X, [6]), (6,)), (RESHAPE, (Y, [3, 2]), (3, 2))], ["reshape"]),
    "the shape that it has": (
        [(RESHAPE, (X, [6]), (6,)), (RESHAPE, (Y, [2, 3]), (2, 3)), (SIN, (Value(2),), (2, 3))],
        ["sin"],
    ),
    "a tensor, twice": (  # that may be so to save memory
        [(SIN, (X,), (2, 3)), (SIN, (X,), (2, 3)), ("aten.add.Tensor", (Y, Value(2)), (2, 3))],
        ["sin", "sin", "add"],
    ),
    "a number, twice": ([("aten.sum.default", (X,), ()), ("aten.sum.default", (X,), ()), BOTH], ["sum", "add"]),
    "numbers of two kinds": (
        [("aten.sum.default", (X,), ()), ("aten.add.Tensor", (Y, 1), ()), ("aten.add.Tensor", (Y, 1.0), ())],
        ["sum", "add", "add"],
    ),
    "a draw, twice": (
        [("aten.sum.default", (X,), ()), *[("aten.rand_like.default", (Y,), ())] * 2, BOTH],
        ["sum", "rand_like", "rand_like", "add"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_computes_nothing_new_is_left_out(name: str) -> None:
    steps, left = CASES[name]
    program = simplified(written(steps, [type_of(2, 3)], [len(steps)]))
    assert ops(program) == left
    assert [program.metas[n] for n in program.outputs] == [type_of(*steps[-1][2])]
    assert len(program.metas) == 1 + len(left)


def test_the_reasons_and_lines_stay_with_their_steps() -> None:
    builder = Builder((0, 1), (2,))
    builder.input(type_of(2, 3))
    for line, (op, args, kwargs) in enumerate(
        [
            ("aten.clone.default", (X,), {}),
            ("aten.t.default", (Y,), {}),
            ("all_gather", (Value(2),), {"axes": (0,), "dim": 1}),
        ]
    ):
        builder.where = f"line {line}"
        builder.emit(op, args, kwargs, [type_of(3, 4) if op == "all_gather" else type_of(3, 2)])
    builder.reasons[2] = Reason("aten.mm.default", "why")
    program = simplified(builder.finish([3]))
    assert ops(program) == ["t", "all_gather"]
    assert program.lines == ("line 1", "line 2")
    assert [(k, reason.why) for k, reason in program.reasons] == [(1, "why")]


def test_a_checkpointed_function_is_still_computed_again() -> None:
    def block(x: Any) -> Any:
        return torch.sin(torch.sin(x))

    def sines(block: Any) -> int:
        slope = ts.jit(ts.grad(lambda x: block(block(x)).sum()))
        return slope.lower(torch.ones(8)).compile().as_text().count("aten.sin.")

    assert sines(ts.checkpoint(block)) > sines(block)


def body_of(text: str) -> Counter[str]:
    """How often each op is in the body of the loop of a program's text."""
    lines = [line for line in text.splitlines() if line.startswith("      %")]
    return Counter(line.split(" = ")[1].split("(")[0] for line in lines)


def test_a_loop_computes_what_is_constant_once_before_it() -> None:
    def looped(w: Any, wide: Any, xs: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return total + x @ w.bfloat16().t().float() + wide.double().float(), None

        return ts.lax.scan(add, torch.zeros(4), xs)[0]

    w, wide, xs = torch.randn(4, 3), torch.randn(4), torch.randn(5, 3)
    f = ts.jit(looped)
    text = f.lower(w, wide, xs).compile().as_text()
    before, body = text.split("scan(")[0], body_of(text)
    assert before.count("dtype=torch.bfloat16") == 1
    # a number of 64 bits is larger than what it is made of, and so is a float of 32 than one of 16
    assert body["aten._to_copy.default"] == 3
    torch.testing.assert_close(f(w, wide, xs), looped(w, wide, xs))


def test_what_a_loop_gathers_of_its_constants_is_gathered_in_each_round() -> None:
    mesh = ts.make_mesh((8,), ("d",))
    w = ts.device_put(torch.randn(16, 8), ts.NamedSharding(mesh, ts.P("d")))
    xs = torch.randn(5, 8)

    def looped(w: Any, xs: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return total + ts.reshard(w.bfloat16(), ts.NamedSharding(mesh, ts.P())).float() @ x, None

        return ts.lax.scan(add, torch.zeros(16), xs)[0]

    compiled = ts.jit(looped).lower(w, xs).compile()
    assert [(each.kind, each.count) for each in compiled.cost_analysis().traffic] == [("all_gather", 5)]
