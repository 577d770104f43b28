"""Lesson 04: two operand layouts in; out come the program, the result's layout, the bytes and the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from course.planner import LAPTOPS, estimate
from course.widgets.base import Choice, Control, Explorer, Press
from course.widgets.card import MUTED, Sheet, beside, folded, inset, paragraph, stack
from course.widgets.timed import OnPress, Timed, is_too_much, table, table_piece, timed
from tinyshard import jit
from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.placement import device_put
from tinyshard.core.layout import Layout
from tinyshard.draw import sharding_svg
from tinyshard.lax import with_sharding_constraint
from tinyshard.runtime.lifecycle import devices
from tinyshard.sharding import NamedSharding, P, PartitionSpec
from tinyshard.sharding.mesh import AbstractMesh, Mesh, make_mesh

__all__ = ["Planned", "describe", "draw", "layout_table", "look"]

HEADING = "Layouts of the operands in; program, layout and bytes out"

MESH = AbstractMesh((4, 2), ("a", "b"))
SPECS = (
    P(),
    P("a"),
    P("b"),
    P(None, "a"),
    P(None, "b"),
    P("a", "b"),
    P("b", "a"),
    P(("a", "b")),
    P(None, ("a", "b")),
)
SIZES = (64, 1024, 4096)
LONGEST_LINE = 94  # characters of a program's line; more would make the picture too wide
SCALE = 0.8  # of each of the three arrays, so that they fit side by side
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "left @ right": lambda left, right: left @ right,
    "left + right": lambda left, right: left + right,
    "left @ right.T": lambda left, right: left @ right.T,
}


@dataclass(frozen=True)
class Planned:
    """What the partitioner makes of two operands.

    Args:
        function: the expression.
        size: rows and columns of each operand.
        specs: of left, right and the result.
        layouts: likewise.
        program: its text.
        nbytes: what the busiest device sends, by the model of lesson 03.
        flops: what one device computes.
        traffic: the collectives, as "all_reduce over b, once".
        modelled_s: how long it takes on the planner's laptop, with perfect overlap and with none.
        problem: why a laptop had better not run it; "" where it may.
        times: what was measured here.
    """

    function: str
    size: int
    specs: tuple[PartitionSpec, PartitionSpec, PartitionSpec]
    layouts: tuple[Layout, Layout, Layout]
    program: str
    nbytes: int
    flops: int
    traffic: tuple[str, ...]
    modelled_s: tuple[float, float]
    problem: str
    times: tuple[Timed, ...] = ()


def layout_table() -> Explorer[Planned]:
    """Choose how the operands are cut, and read what each device then runs.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; the programs are planned for a mesh without devices. The button runs the chosen one on the
    devices here.

    Example:
        >>> print(layout_table().choose(left=P(None, "b"), right=P("b")).text.splitlines()[0])
        P(None, 'b') @ P('b') -> P(): 16,384 bytes sent, 262,144 flops by each device; all_reduce over b
    """
    specs = [(str(spec), spec) for spec in SPECS]
    controls: list[Control] = [
        Choice("function", "function", [(words, words) for words in FUNCTIONS]),
        Choice("left", "left", specs, start=P("a")),
        Choice("right", "right", specs, start=P(None, "b")),
        Choice("result", "result", [("as it comes", None), *specs]),
        Choice("size", "size", [(f"{size} × {size}", size) for size in SIZES]),
        Press("measured", "measure here"),
    ]
    known: OnPress[tuple[Planned, PartitionSpec | None], tuple[Timed, ...]] = OnPress(lambda key: (time_of(*key),))

    def look_and_measure(measured: int, **chosen: Any) -> Planned:
        planned = look(**chosen)
        return replace(planned, times=known(measured, (planned, chosen["result"])) or ())

    return Explorer(HEADING, controls, look_and_measure, draw, describe)


def look(function: str, left: PartitionSpec, right: PartitionSpec, result: PartitionSpec | None, size: int) -> Planned:
    """Ask the partitioner.

    Args:
        function: one of FUNCTIONS.
        left: how the first operand is cut.
        right: how the second operand is cut.
        result: how the result should be cut; None leaves it to the partitioner.
        size: rows and columns of each operand.

    Communication: none.
    """
    shardings = [NamedSharding(MESH, spec) for spec in (left, right)]
    operands = [ShapeDtypeStruct((size, size), torch.float32, sharding=sharding) for sharding in shardings]
    compiled = jit(_expression(function, result, MESH)).lower(*operands).compile()
    made = compiled.output_shardings
    assert isinstance(made, NamedSharding)
    cost, by_model = compiled.cost_analysis(), estimate(compiled, LAPTOPS)
    first, second, third = (sharding.layout(2) for sharding in (*shardings, made))
    return Planned(
        function,
        size,
        (left, right, made.spec),
        (first, second, third),
        compiled.as_text(),
        cost.nbytes,
        cost.flops,
        tuple(
            f"{t.kind} over {'*'.join(t.axes)}" + (f", {t.count} times" if t.count > 1 else "") for t in cost.traffic
        ),
        (by_model.overlapped_s, by_model.step_s),
        is_too_much(by_model.memory_nbytes * MESH.size, cost.flops * MESH.size),
    )


def time_of(planned: Planned, result: PartitionSpec | None) -> Timed:
    """What the expression takes on the devices here; a too large one is not run.

    Args:
        planned: the layouts of the operands, and the costs by the model.
        result: how the result should be cut; None leaves it to the partitioner.

    Communication: that of the program, several times.
    """

    def prepare() -> Callable[[], Any]:
        mesh = make_mesh(tuple(MESH.shape.values()), MESH.axis_names, devices=devices()[: MESH.size])
        whole = torch.ones(planned.size, planned.size)
        left, right = (device_put(whole, NamedSharding(mesh, spec)) for spec in planned.specs[:2])
        function = jit(_expression(planned.function, result, mesh))
        return lambda: function(left, right)

    return timed(planned.function, planned.nbytes, planned.modelled_s, prepare, planned.problem)


def draw(planned: Planned) -> Sheet:
    """Left, right and result side by side; below them what it costs, and the program."""
    names = ("left", "right", "result")
    shape = (planned.size, planned.size)
    boxes = [
        stack([paragraph([f"{name}: {spec}"]), inset(sharding_svg(layout, shape), SCALE)], 2)
        for name, spec, layout in zip(names, planned.specs, planned.layouts, strict=True)
    ]
    times = [table_piece(planned.times)] if planned.times else []
    lines = [part for line in planned.program.splitlines() for part in folded(line, LONGEST_LINE)]
    program = paragraph(lines, size=12, is_code=True)
    heading = paragraph(["the program that each device runs:"], fill=MUTED)
    cost = paragraph([_cost(planned), *(planned.traffic or ["no collectives"])])
    return Sheet(
        f"{planned.function}: {_cost(planned)}", stack([beside(boxes, 20), cost, stack([heading, program], 2), *times])
    )


def describe(planned: Planned) -> str:
    """One line as in the lesson's table, and the program."""
    left, right, result = planned.specs
    sign = "@" if "@" in planned.function else "+"
    turned = ".T" if planned.function.endswith(".T") else ""
    found = "; ".join(planned.traffic) or "no collectives"
    return f"{left} {sign} {right}{turned} -> {result}: {_cost(planned)}; {found}\n" + "\n".join(
        [planned.program, *table(planned.times)]
    )


def _expression(function: str, result: PartitionSpec | None, mesh: Mesh) -> Callable[[Tensor, Tensor], Tensor]:
    def made_of(left: Tensor, right: Tensor) -> Tensor:
        value = FUNCTIONS[function](left, right)
        return value if result is None else with_sharding_constraint(value, NamedSharding(mesh, result))

    return made_of


def _cost(planned: Planned) -> str:
    return f"{planned.nbytes:,} bytes sent, {planned.flops:,} flops by each device"
