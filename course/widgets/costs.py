"""Lesson 11: memory, traffic and work of a training step, for a layout beside one device, copies and FSDP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from course.planner import LAPTOPS, estimate
from course.widgets.bars import bar, legend
from course.widgets.base import Choice, Control, Explorer, Press
from course.widgets.card import MUTED, Piece, Sheet, paragraph, stack
from course.widgets.costs_step import CUTS, OPTIMIZERS, operands, train_step
from course.widgets.timed import OnPress, Timed, is_too_much, table, table_piece, timed
from tinyshard import jit
from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.placement import device_put
from tinyshard.compile.cost import CollectiveCount
from tinyshard.draw.colours import KINDS as COLOURS
from tinyshard.draw.colours import OKABE_ITO
from tinyshard.draw.html import human_bytes
from tinyshard.runtime.lifecycle import devices
from tinyshard.sharding import NamedSharding, PartitionSpec
from tinyshard.sharding.mesh import AbstractMesh, make_mesh

__all__ = ["Compared", "Costs", "costs_of", "describe", "draw", "layout_costs", "look"]

HEADING = "What a device holds and sends in one training step"

MESHES = ((1, 1), (8, 1), (4, 2), (2, 4), (1, 8))
WIDTHS = (256, 8192)
EXAMPLES = (256, 8192)

# sky blue, purple, orange, vermilion: distinct for any kind of colour vision; each part also has its own height
PARTS = (
    ("parameters", OKABE_ITO[0], 20),
    ("optimizer state", OKABE_ITO[3], 20),
    ("share of the batch", OKABE_ITO[1], 15),
    ("activations, gradients, gathered weights at the peak", OKABE_ITO[6], 10),
)
# yellow, green, dark blue, each with a height of its own, as above
HEIGHTS = {"all_reduce": 20, "all_gather": 15, "reduce_scatter": 10}
KINDS = {kind: (COLOURS[kind], height) for kind, height in HEIGHTS.items()}
OTHER_KIND = (COLOURS["transfer"], 20)
CUT_WORDS = {"nothing": "none", "W2 and W3": "W2 and W3 along model", "W1 and W2": "W1 and W2 along model"}
CUT_WORDS["FSDP"] = "every W along data (FSDP)"
LOSS = "aten.mean.default"  # the step after which the loss, or a device's part of it, is known
BAR_WIDTH = 380  # px


@dataclass(frozen=True)
class Costs:
    """What a training step costs each device.

    Args:
        name: the layout, in words.
        layout: sizes of the axes data and model, and one of CUTS.
        parameters_nbytes: of the parameters that a device holds.
        state_nbytes: of the optimizer's state that it holds.
        batch_nbytes: of its share of the batch.
        kept_nbytes: what is held on top of these once the loss is known: activations, and gathered weights.
        peak_nbytes: the most that it holds at once during the step.
        traffic: what it sends, by collective and axes.
        flops: its multiplications and additions.
        modelled_s: how long a step takes on the planner's laptop, with perfect overlap and with none.
        problem: why a laptop had better not run it; "" where it may.
    """

    name: str
    layout: tuple[tuple[int, int], str]
    parameters_nbytes: int
    state_nbytes: int
    batch_nbytes: int
    kept_nbytes: int
    peak_nbytes: int
    traffic: tuple[CollectiveCount, ...]
    flops: int
    modelled_s: tuple[float, float]
    problem: str

    @property
    def sent_nbytes(self) -> int:
        """What it sends in all."""
        return sum(part.nbytes for part in self.traffic)


@dataclass(frozen=True)
class Compared:
    """The chosen layout, last, and others to compare it with, for one network, one batch and one optimizer."""

    width: int
    examples: int
    optimizer: str
    costs: tuple[Costs, ...]
    times: tuple[Timed, ...] = ()


def layout_costs() -> Explorer[Compared]:
    """Choose mesh, sharded weights, optimizer, width and batch; see what a step costs each device.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; programs are made for meshes without devices, and counted. The button runs a few steps of each
    layout on the devices here.

    Example:
        >>> print(layout_costs().text.splitlines()[5])
        4 × 2, W2 and W3       1.03 MiB          0 B    198.5 KiB   322.75 KiB     3.28 MiB     1.67 MiB         77.5
    """
    controls: list[Control] = [
        Choice("mesh", "data × model", [(_words(mesh), mesh) for mesh in MESHES], start=(4, 2)),
        Choice("cut", "sharded weights", [(CUT_WORDS[name], name) for name in CUTS], start="W2 and W3"),
        Choice("optimizer", "optimizer", [(name, name) for name in OPTIMIZERS]),
        Choice("width", "width", [(f"{width:,}", width) for width in WIDTHS]),
        Choice("examples", "examples", [(f"{examples:,}", examples) for examples in EXAMPLES]),
        Press("measured", "measure here"),
    ]
    known = OnPress(times_of)

    def look_and_measure(measured: int, **chosen: Any) -> Compared:
        compared = look(**chosen)
        return replace(compared, times=known(measured, compared) or ())

    return Explorer(HEADING, controls, look_and_measure, draw, describe)


def look(mesh: tuple[int, int], cut: str, optimizer: str, width: int, examples: int) -> Compared:
    """Make the programs, and count.

    Args:
        mesh: sizes of the axes data and model.
        cut: one of CUTS.
        optimizer: one of OPTIMIZERS.
        width: outputs of the layers in the middle.
        examples: of the whole batch.

    Communication: none.
    """
    known = [((1, 1), "nothing"), ((8, 1), "nothing"), ((8, 1), "FSDP")]
    axis = 0 if cut == "FSDP" else 1
    layout = (mesh, cut if mesh[axis] > 1 else "nothing")  # an axis of one device shards nothing
    chosen = [*(pair for pair in known if pair != layout), layout]
    costs = tuple(costs_of(mesh, cut, width, examples, optimizer) for mesh, cut in chosen)
    return Compared(width, examples, optimizer, costs)


@lru_cache(maxsize=64)
def costs_of(mesh: tuple[int, int], cut: str, width: int, examples: int, optimizer: str = "SGD") -> Costs:
    """What a training step costs each device.

    Args:
        mesh: sizes of the axes data and model.
        cut: one of CUTS.
        width: outputs of the layers in the middle.
        examples: of the whole batch.
        optimizer: one of OPTIMIZERS.

    Communication: none.

    Example:
        >>> costs_of((8, 1), "nothing", 256, 256).sent_nbytes
        2345805
    """
    grid = AbstractMesh(mesh, ("data", "model"))

    def stand_in(shape: tuple[int, ...], spec: PartitionSpec) -> ShapeDtypeStruct:
        return ShapeDtypeStruct(shape, torch.float32, sharding=NamedSharding(grid, spec))

    params, state, batch = operands(stand_in, cut, width, examples, optimizer)
    compiled = jit(train_step(grid, cut)).lower(params, state, batch).compile()
    by_model = estimate(compiled, LAPTOPS)
    program, cost, memory = compiled.program, compiled.cost_analysis(), compiled.memory_analysis()
    held = [meta.nbytes for meta in program.metas[: program.num_inputs] if meta is not None]
    count = 2 * len(params)
    is_known = next(k for k, step in enumerate(memory.steps) if step.op == LOSS)
    return Costs(
        _layout_words(mesh, cut),
        (mesh, cut),
        sum(held[:count]),
        sum(held[count:-2]),
        sum(held[-2:]),
        memory.steps[is_known].nbytes - memory.argument_nbytes,
        memory.peak_nbytes,
        cost.traffic,
        cost.flops,
        (by_model.overlapped_s, by_model.step_s),
        is_too_much(memory.peak_nbytes * grid.size, cost.flops * grid.size),
    )


def times_of(compared: Compared) -> tuple[Timed, ...]:
    """What a step takes on the devices here, for each layout; too large ones are not run.

    Args:
        compared: the layouts, by the model.

    Communication: that of some training steps.
    """
    return tuple(_time_of(costs, compared) for costs in compared.costs)


def _time_of(costs: Costs, compared: Compared) -> Timed:
    mesh, cut = costs.layout

    def prepare() -> Callable[[], Any]:
        grid = make_mesh(mesh, ("data", "model"), devices=devices()[: math.prod(mesh)])
        random = torch.Generator().manual_seed(0)

        def placed(shape: tuple[int, ...], spec: PartitionSpec) -> Any:
            return device_put(0.05 * torch.randn(shape, generator=random), NamedSharding(grid, spec))

        given = operands(placed, cut, compared.width, compared.examples, compared.optimizer)
        step = jit(train_step(grid, cut))
        return lambda: step(*given)

    return timed(costs.name, costs.sent_nbytes, costs.modelled_s, prepare, costs.problem)


def draw(compared: Compared) -> Sheet:
    """A bar of memory for each layout, and one of traffic."""
    longest = max(costs.peak_nbytes for costs in compared.costs)
    most_sent = max([costs.sent_nbytes for costs in compared.costs] + [1])
    memory = [_memory_bar(costs, BAR_WIDTH / longest) for costs in compared.costs]
    traffic = [_traffic_bar(costs, BAR_WIDTH / most_sent) for costs in compared.costs]
    chosen = compared.costs[-1]
    pieces = [
        paragraph([_heading(compared)]),
        paragraph(["memory of one device"], fill=MUTED),
        legend(PARTS, size=12, height=20),
        *memory,
        paragraph(["sent by one device in a step"], fill=MUTED),
        legend(_kinds(compared), size=12, height=20),
        *traffic,
        paragraph([f"{chosen.name}:", *_lines(chosen)], size=12, is_code=True),
    ]
    title = f"{_heading(compared)}; {chosen.name}: {human_bytes(chosen.peak_nbytes)} at the peak"
    pieces += [table_piece(compared.times)] if compared.times else []
    return Sheet(title, stack(pieces, 6))


def describe(compared: Compared) -> str:
    """A table, and the collectives of the chosen layout."""
    columns = ("parameters", "optimizer", "batch", "for backward", "at the peak", "sent", "Mflop")
    lines = [_heading(compared), f"{'':18}" + "".join(f"{name:>13}" for name in columns)]
    for costs in compared.costs:
        sizes = (costs.parameters_nbytes, costs.state_nbytes, costs.batch_nbytes, costs.kept_nbytes)
        words = "".join(f"{human_bytes(size):>13}" for size in (*sizes, costs.peak_nbytes, costs.sent_nbytes))
        lines.append(f"{costs.name:18}{words}{costs.flops / 1e6:>13,.1f}")
    chosen = compared.costs[-1]
    return "\n".join([*lines, "", f"{chosen.name}:", *_lines(chosen), *table(compared.times)])


def _layout_words(mesh: tuple[int, int], cut: str) -> str:
    return "one device" if mesh == (1, 1) else f"{_words(mesh)}, {cut}"


def _lines(costs: Costs) -> list[str]:
    if not costs.traffic:
        return ["  no communication"]
    return [f"  {t.kind} over {'*'.join(t.axes)}, {t.count} of them: {t.nbytes:,} bytes" for t in costs.traffic]


def _heading(compared: Compared) -> str:
    return (
        f"layers of 784, {compared.width:,}, {compared.width:,}, {compared.width:,}, 10; "
        f"{compared.examples:,} examples, {compared.optimizer}"
    )


def _words(mesh: tuple[int, int]) -> str:
    return f"{mesh[0]} × {mesh[1]}"


def _kinds(compared: Compared) -> list[tuple[str, str, float]]:
    """The collectives that any of the layouts has; the usual three first."""
    found = {t.kind for costs in compared.costs for t in costs.traffic}
    return [(kind, *KINDS.get(kind, OTHER_KIND)) for kind in [*KINDS, *sorted(found - KINDS.keys())] if kind in found]


def _memory_bar(costs: Costs, px_per_byte: float) -> Piece:
    held = (costs.parameters_nbytes, costs.state_nbytes, costs.batch_nbytes)
    sizes = (*held, costs.peak_nbytes - sum(held))
    parts = [(name, size, colour, height) for (name, colour, height), size in zip(PARTS, sizes, strict=True)]
    return _bar(costs.name, parts, px_per_byte, human_bytes(costs.peak_nbytes))


def _traffic_bar(costs: Costs, px_per_byte: float) -> Piece:
    parts = [(f"{t.kind} over {'*'.join(t.axes)}", t.nbytes, *KINDS.get(t.kind, OTHER_KIND)) for t in costs.traffic]
    return _bar(costs.name, parts, px_per_byte, human_bytes(costs.sent_nbytes))


def _bar(name: str, parts: list[tuple[str, int, str, int]], px_per_byte: float, words: str) -> Piece:
    return bar(name, parts, words, human_bytes, px_per_unit=px_per_byte, row=28, width=BAR_WIDTH + 90)
