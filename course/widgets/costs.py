"""Lesson 11: what a device holds, by kind, and sends in a training step, under a layout beside four others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from course.patterns import (
    EXAMPLES,
    LAYOUTS,
    OPTIMIZERS,
    PATTERNS,
    WIDTH,
    Plan,
    compiled,
    held_by_kind,
    modelled,
    operands,
    training_step,
)
from course.planner import LAPTOPS, estimate
from course.widgets.bars import bar, legend
from course.widgets.base import Choice, Control, Explorer, Press
from course.widgets.card import MUTED, Piece, Sheet, paragraph, stack
from course.widgets.kind_bars import BAR_WIDTH, THICK_AND_THIN, kind_legend, kind_rows
from course.widgets.timed import OnPress, Timed, is_too_much, table, table_piece, timed
from tinyshard import jit
from tinyshard.arrays.placement import device_put
from tinyshard.compile.cost import CollectiveCount
from tinyshard.draw.colours import KINDS as COLOURS
from tinyshard.draw.html import human_bytes
from tinyshard.runtime.lifecycle import devices
from tinyshard.sharding import NamedSharding
from tinyshard.sharding.mesh import make_mesh

__all__ = ["Compared", "Costs", "costs_of", "describe", "draw", "layout_costs", "look"]

HEADING = "What a device holds and sends in one training step"

MESHES = ((1, 1), (8, 1), (4, 2), (2, 4), (1, 8))
WIDTHS, ALL_EXAMPLES = (WIDTH, 8192), (EXAMPLES, 10_240)
BESIDE = (((1, 1), "data parallel"), ((8, 1), "data parallel"), ((8, 1), "ZeRO-1"), ((8, 1), "FSDP"))
SHARDED = {
    "data parallel": "nothing",
    "ZeRO-1": "AdamW's state along data (ZeRO-1)",
    "FSDP": "all parameters along data (FSDP)",
    "layers 1 and 2": "layers 1 and 2 along model",
    "all layers": "layers 0 to 3 along model",
}
ALONG = {name: 0 if name in ("ZeRO-1", "FSDP") else 1 for name in LAYOUTS}

# yellow, green, dark blue, each with a height of its own
HEIGHTS = {"all_reduce": 20, "all_gather": 15, "reduce_scatter": 10}
KINDS = {kind: (COLOURS[kind], height) for kind, height in HEIGHTS.items()}
OTHER_KIND = (COLOURS["transfer"], 20)
MIB = 1 << 20


@dataclass(frozen=True)
class Costs:
    """What a training step costs each device.

    Args:
        plan: the step, with its mesh and its layout.
        counted: what it holds at the peak, by kind, counted in the program.
        modelled: the same, by the formula.
        traffic: what it sends, by collective and axes.
        flops: its multiplications and additions.
        modelled_s: how long a step takes on the planner's laptop, with perfect overlap and with none.
    """

    plan: Plan
    counted: dict[str, int]
    modelled: dict[str, int]
    traffic: tuple[CollectiveCount, ...]
    flops: int
    modelled_s: tuple[float, float]

    @property
    def name(self) -> str:
        """The layout, in words."""
        data, model = self.plan.mesh
        return "one device" if data * model == 1 else f"{data} × {model}, {self.plan.layout}"

    @property
    def sent_nbytes(self) -> int:
        """What it sends in all."""
        return sum(part.nbytes for part in self.traffic)

    @property
    def peak_nbytes(self) -> int:
        """What it holds at the peak."""
        return sum(self.counted.values())


@dataclass(frozen=True)
class Compared:
    """The chosen layout, last, and others to compare it with, for one network, one batch and one optimizer."""

    costs: tuple[Costs, ...]
    times: tuple[Timed, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The steps."""
        return tuple(costs.plan for costs in self.costs)

    @property
    def chosen(self) -> Costs:
        """The layout that was chosen."""
        return self.costs[-1]


def layout_costs() -> Explorer[Compared]:
    """Choose mesh, what is sharded, optimizer, width and batch; see what a step costs each device.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; programs are made for meshes without devices, and counted. The button runs a few steps of each
    layout on the devices here.

    Example:
        >>> layout_costs().text.splitlines()[6].split()[7:11]
        ['1.03', '2.07', '1.80', '0.00']
    """
    controls: list[Control] = [
        Choice("mesh", "data × model", [(f"{data} × {model}", (data, model)) for data, model in MESHES], start=(4, 2)),
        Choice("layout", "sharded", [(words, name) for name, words in SHARDED.items()], start="layers 1 and 2"),
        Choice("optimizer", "optimizer", [(name, name) for name in OPTIMIZERS]),
        Choice("width", "width", [(f"{width:,}", width) for width in WIDTHS]),
        Choice("examples", "examples", [(f"{examples:,}", examples) for examples in ALL_EXAMPLES]),
        Press("measured", "measure here"),
    ]
    known = OnPress(times_of)

    def look_and_measure(measured: int, **chosen: Any) -> Compared:
        compared = look(**chosen)
        return replace(compared, times=known(measured, compared.plans) or ())

    return Explorer(HEADING, controls, look_and_measure, draw, describe)


def look(mesh: tuple[int, int], layout: str, optimizer: str, width: int, examples: int) -> Compared:
    """Make the programs, and count.

    Args:
        mesh: sizes of the axes data and model.
        layout: one of LAYOUTS.
        optimizer: one of OPTIMIZERS.
        width: outputs of the layers in the middle.
        examples: of the whole batch.

    Communication: none.
    """
    chosen = (mesh, layout if mesh[ALONG[layout]] > 1 else "data parallel")  # an axis of one device shards nothing
    rows = [*(row for row in BESIDE if row != chosen), chosen]
    return Compared(tuple(costs_of(Plan(*row, optimizer, width, examples)) for row in rows))


@lru_cache(maxsize=64)
def costs_of(plan: Plan) -> Costs:
    """What a training step costs each device.

    Args:
        plan: the step, with its mesh and its layout.

    Communication: none.

    Example:
        >>> costs_of(Plan()).sent_nbytes
        2356606
    """
    program = compiled(plan)
    by_model, cost = estimate(program, LAPTOPS), program.cost_analysis()
    modelled_s = by_model.overlapped_s, by_model.step_s
    return Costs(plan, held_by_kind(plan), modelled(plan), cost.traffic, cost.flops, modelled_s)


def times_of(plans: tuple[Plan, ...]) -> tuple[Timed, ...]:
    """What a step takes on the devices here, for each layout; too large ones are not run.

    Args:
        plans: of the layouts.

    Communication: that of some training steps.
    """
    return tuple(_time_of(costs_of(plan)) for plan in plans)


def _time_of(costs: Costs) -> Timed:
    plan, count = costs.plan, math.prod(costs.plan.mesh)

    def prepare() -> Callable[[], Any]:
        grid = make_mesh(plan.mesh, ("data", "model"), devices=devices()[:count])
        random = torch.Generator().manual_seed(0)

        def placed(x: torch.Tensor, sharding: NamedSharding) -> Any:
            if x.dtype == torch.int64 and x.dim():
                return device_put(torch.arange(len(x)) % PATTERNS, sharding)
            values = 0.05 * torch.randn(x.shape, generator=random).abs()
            return device_put(values if x.is_floating_point() else torch.zeros_like(x, device="cpu"), sharding)

        given = operands(plan, grid, placed)
        step = jit(training_step(plan.optimizer, plan.width))  # nothing is donated: it is run again and again
        return lambda: step(*given)

    problem = is_too_much(costs.peak_nbytes * count, costs.flops * count)
    return timed(costs.name, costs.sent_nbytes, costs.modelled_s, prepare, problem)


def draw(compared: Compared) -> Sheet:
    """Two bars of memory for each layout, counted and by the formula, and one of traffic."""
    longest = max(max(costs.peak_nbytes, sum(costs.modelled.values())) for costs in compared.costs)
    most_sent = max([costs.sent_nbytes for costs in compared.costs] + [1])
    memory = [row for costs in compared.costs for row in _memory_rows(costs, longest)]
    traffic = [_traffic_bar(costs, BAR_WIDTH / most_sent) for costs in compared.costs]
    chosen = compared.chosen
    pieces = [
        paragraph([_heading(compared)]),
        paragraph(["memory of one device at the peak of the step"], fill=MUTED),
        kind_legend(),
        *memory,
        paragraph([THICK_AND_THIN], fill=MUTED, size=12),
        paragraph(["sent by one device in a step"], fill=MUTED),
        legend(_kinds(compared), size=12, height=20),
        *traffic,
        paragraph([f"{chosen.name}:", *_lines(chosen)], size=12, is_code=True),
    ]
    title = f"{_heading(compared)}; {chosen.name}: {human_bytes(chosen.peak_nbytes)} at the peak"
    pieces += [table_piece(compared.times)] if compared.times else []
    return Sheet(title, stack(pieces, 4))


def describe(compared: Compared) -> str:
    """A table in MiB, and the collectives of the chosen layout."""
    columns = ("params", "state", "grads", "gath.", "activ.", "peak", "model", "sent")
    lines = [
        _heading(compared),
        f"{'MiB of one device':22}" + "".join(f"{name:>9}" for name in columns) + f"{'Mflop':>12}",
    ]
    for costs in compared.costs:
        sizes = (*costs.counted.values(), costs.peak_nbytes, sum(costs.modelled.values()), costs.sent_nbytes)
        words = "".join(f"{size / MIB:>9,.2f}" for size in sizes)
        lines.append(f"{costs.name:22}{words}{costs.flops / 1e6:>12,.0f}")
    return "\n".join([*lines, "", f"{compared.chosen.name}:", *_lines(compared.chosen), *table(compared.times)])


def _lines(costs: Costs) -> list[str]:
    if not costs.traffic:
        return ["  no communication"]
    return [f"  {t.kind} over {'*'.join(t.axes)}, {t.count} of them: {t.nbytes:,} bytes" for t in costs.traffic]


def _heading(compared: Compared) -> str:
    plan = compared.chosen.plan
    wide = f"{plan.width:,}"
    return f"layers of 784, {wide}, {wide}, {wide}, {PATTERNS}; {plan.examples:,} examples, {plan.optimizer}"


def _kinds(compared: Compared) -> list[tuple[str, str, float]]:
    """The collectives that any of the layouts has; the usual three first."""
    found = {t.kind for costs in compared.costs for t in costs.traffic}
    return [(kind, *KINDS.get(kind, OTHER_KIND)) for kind in [*KINDS, *sorted(found - KINDS.keys())] if kind in found]


def _memory_rows(costs: Costs, longest: int) -> list[Piece]:
    words = human_bytes(costs.peak_nbytes)
    return kind_rows(costs.name, costs.counted, costs.modelled, words, BAR_WIDTH / longest)


def _traffic_bar(costs: Costs, px_per_byte: float) -> Piece:
    parts = [(f"{t.kind} over {'*'.join(t.axes)}", t.nbytes, *KINDS.get(t.kind, OTHER_KIND)) for t in costs.traffic]
    words = human_bytes(costs.sent_nbytes)
    return bar(costs.name, parts, words, human_bytes, px_per_unit=px_per_byte, row=24, width=BAR_WIDTH + 90)
