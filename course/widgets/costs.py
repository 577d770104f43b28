"""Lesson 08: memory, traffic and work of a training step, for a layout beside one device and beside pure copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from course.widgets.bars import bar, legend
from course.widgets.base import Choice, Control, Explorer
from course.widgets.card import MUTED, Piece, card, paragraph, stack
from tinyshard import jit
from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.compile.cost import CollectiveCount
from tinyshard.compile.memory import memory_of
from tinyshard.draw.colours import OKABE_ITO
from tinyshard.draw.html import human_bytes
from tinyshard.sharding import NamedSharding, P, PartitionSpec
from tinyshard.sharding.mesh import AbstractMesh
from tinyshard.transforms.autodiff import value_and_grad

__all__ = ["Compared", "Costs", "costs_of", "describe", "draw", "layout_costs", "look"]

HEADING = "What a device holds and sends in one training step"

MESHES = ((1, 1), (8, 1), (4, 2), (2, 4), (1, 8))
WIDTHS = (256, 8192)
EXAMPLES = (256, 8192)

Layer = tuple[PartitionSpec, PartitionSpec]
WHOLE: Layer = (P(), P())
BY_COLUMNS: Layer = (P(None, "model"), P("model"))
BY_ROWS: Layer = (P("model"), P())

# what is cut along "model" → layout of W and b of each layer
CUTS: dict[str, tuple[Layer, ...]] = {
    "nothing": (WHOLE, WHOLE, WHOLE, WHOLE),
    "W2 and W3": (WHOLE, BY_COLUMNS, BY_ROWS, WHOLE),
    "W1 and W2": (BY_COLUMNS, BY_ROWS, WHOLE, WHOLE),
}
# sky blue, orange, vermilion: told apart with any kind of colour vision; each part also has a height of its own
PARTS = (
    ("parameters", OKABE_ITO[0], 20),
    ("share of the batch", OKABE_ITO[1], 15),
    ("on top at the peak", OKABE_ITO[6], 10),
)
BAR_WIDTH = 380  # px


@dataclass(frozen=True)
class Costs:
    """What a training step costs each device.

    Args:
        name: the layout, in words.
        parameters_nbytes: of the parameters that a device holds.
        batch_nbytes: of its share of the batch.
        peak_nbytes: the most that it holds at once during the step.
        traffic: what it sends, by collective and axes.
        flops: its multiplications and additions.
    """

    name: str
    parameters_nbytes: int
    batch_nbytes: int
    peak_nbytes: int
    traffic: tuple[CollectiveCount, ...]
    flops: int

    @property
    def sent_nbytes(self) -> int:
        """What it sends in all."""
        return sum(part.nbytes for part in self.traffic)


@dataclass(frozen=True)
class Compared:
    """The chosen layout and two to hold it against, for one network and one batch."""

    width: int
    examples: int
    costs: tuple[Costs, ...]


def layout_costs() -> Explorer[Compared]:
    """Choose mesh, cut, width and batch; see what a step of the lesson's network costs each device.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; programs are made for meshes without devices, and counted.

    Example:
        >>> print(layout_costs().text.splitlines()[4])
        4 × 2, W2 and W3          1.03 MiB     198.5 KiB      3.02 MiB      1.83 MiB         64.7
    """
    controls: list[Control] = [
        Choice("mesh", "data × model", [(_words(mesh), mesh) for mesh in MESHES], start=(4, 2)),
        Choice("cut", "sharded along model", [(name, name) for name in CUTS], start="W2 and W3"),
        Choice("width", "width", [(f"{width:,}", width) for width in WIDTHS]),
        Choice("examples", "examples", [(f"{examples:,}", examples) for examples in EXAMPLES]),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(mesh: tuple[int, int], cut: str, width: int, examples: int) -> Compared:
    """Make the programs, and count.

    Args:
        mesh: sizes of the axes data and model.
        cut: one of CUTS.
        width: outputs of the layers in the middle.
        examples: of the whole batch.

    Communication: none.
    """
    known = [((1, 1), "nothing"), ((8, 1), "nothing")]
    chosen = [*known, (mesh, cut)] if (mesh, cut) not in known else known
    return Compared(width, examples, tuple(costs_of(mesh, cut, width, examples) for mesh, cut in chosen))


@lru_cache(maxsize=64)
def costs_of(mesh: tuple[int, int], cut: str, width: int, examples: int) -> Costs:
    """What a training step costs each device.

    Args:
        mesh: sizes of the axes data and model.
        cut: one of CUTS.
        width: outputs of the layers in the middle.
        examples: of the whole batch.

    Communication: none.

    Example:
        >>> costs_of((8, 1), "nothing", 256, 256).sent_nbytes
        2345805
    """
    grid = AbstractMesh(mesh, ("data", "model"))
    sizes = [784, width, width, width, 10]

    def stand_in(shape: tuple[int, ...], spec: PartitionSpec) -> ShapeDtypeStruct:
        return ShapeDtypeStruct(shape, torch.float32, sharding=NamedSharding(grid, spec))

    params = [
        (stand_in((m, n), specs[0]), stand_in((n,), specs[1]))
        for (m, n), specs in zip(pairwise(sizes), CUTS[cut], strict=True)
    ]
    batch = (stand_in((examples, sizes[0]), P("data")), stand_in((examples, sizes[-1]), P("data")))
    compiled = jit(_train_step).lower(params, batch).compile()
    program, cost = compiled.program, compiled.cost_analysis()
    held = [meta.nbytes for meta in program.metas[: program.num_inputs] if meta is not None]
    count = 2 * len(params)
    return Costs(
        f"{_words(mesh)}, {cut if mesh[1] > 1 else 'nothing'}" if mesh != (1, 1) else "one device",
        sum(held[:count]),
        sum(held[count : count + 2]),
        memory_of(program).peak_nbytes,
        cost.traffic,
        cost.flops,
    )


def draw(compared: Compared) -> str:
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
        *traffic,
        paragraph([f"{chosen.name}:", *_lines(chosen)], size=12, is_code=True),
    ]
    title = f"{_heading(compared)}; {chosen.name}: {human_bytes(chosen.peak_nbytes)} at the peak"
    return card(title, stack(pieces, 6), heading=HEADING)


def describe(compared: Compared) -> str:
    """A table, and the collectives of the chosen layout."""
    columns = ("parameters", "batch", "at the peak", "sent", "Mflop")
    lines = [_heading(compared), f"{'':20}" + "".join(f"{name:>14}" for name in columns[:-1]) + f"{columns[-1]:>13}"]
    for costs in compared.costs:
        sizes = (costs.parameters_nbytes, costs.batch_nbytes, costs.peak_nbytes, costs.sent_nbytes)
        words = "".join(f"{human_bytes(size):>14}" for size in sizes)
        lines.append(f"{costs.name:20}{words}{costs.flops / 1e6:>13,.1f}")
    chosen = compared.costs[-1]
    return "\n".join([*lines, "", f"{chosen.name}:", *_lines(chosen)])


def _train_step(params: Any, batch: Any) -> Any:
    def loss(params: Any, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        for weights, bias in params:
            outputs = inputs @ weights + bias
            inputs = outputs.clamp(min=0)
        result: torch.Tensor = ((outputs - targets) ** 2).sum(-1).mean()
        return result

    value, grads = value_and_grad(loss)(params, batch)
    new = [(w - 1e-3 * dw, b - 1e-3 * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]
    return value, new


def _lines(costs: Costs) -> list[str]:
    if not costs.traffic:
        return ["  nobody talks"]
    return [f"  {t.kind} over {'*'.join(t.axes)}, {t.count} of them: {t.nbytes:,} bytes" for t in costs.traffic]


def _heading(compared: Compared) -> str:
    return (
        f"layers of 784, {compared.width:,}, {compared.width:,}, {compared.width:,}, 10; {compared.examples:,} examples"
    )


def _words(mesh: tuple[int, int]) -> str:
    return f"{mesh[0]} × {mesh[1]}"


def _memory_bar(costs: Costs, px_per_byte: float) -> Piece:
    rest = costs.peak_nbytes - costs.parameters_nbytes - costs.batch_nbytes
    sizes = (costs.parameters_nbytes, costs.batch_nbytes, rest)
    parts = [(name, size, colour, height) for (name, colour, height), size in zip(PARTS, sizes, strict=True)]
    return _bar(costs.name, parts, px_per_byte, human_bytes(costs.peak_nbytes))


def _traffic_bar(costs: Costs, px_per_byte: float) -> Piece:
    parts = [
        (f"{t.kind} over {'*'.join(t.axes)}", t.nbytes, OKABE_ITO[2 if k % 2 else 4], 20 - 5 * (k % 2))
        for k, t in enumerate(costs.traffic)
    ]
    return _bar(costs.name, parts, px_per_byte, human_bytes(costs.sent_nbytes))


def _bar(name: str, parts: list[tuple[str, int, str, int]], px_per_byte: float, words: str) -> Piece:
    return bar(name, parts, words, human_bytes, px_per_unit=px_per_byte, row=28, width=BAR_WIDTH + 90)
