"""What each device holds in the course of a `device_put`, step by step: recorded while its Program runs here.

All devices run in lockstep, in this process, on a table whose elements are their own numbers, 0 to 63: so what a
device holds after a step says which part of the table it is. A second run, in which every element is the number of
the device that holds it at the start, says where each came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course.widgets.traffic import exchanged
from tinyshard.arrays.transfer import move_program
from tinyshard.compile.cost import bytes_sent
from tinyshard.core.layout import Layout, coarsest
from tinyshard.core.program import Eqn, Program
from tinyshard.runtime.worker.executor import make_ready
from tinyshard.sharding import NamedSharding, P
from tinyshard.sharding.mesh import AbstractMesh

__all__ = ["NAMES", "NBYTES", "SHAPE", "Entry", "Journey", "Part", "Place", "Stage", "record_journey", "spec_text"]

NAMES = ("a", "b")  # of mesh axes
SHAPE = (8, 8)
NBYTES = 4 * SHAPE[0] * SHAPE[1]  # of float32

Entry = str | tuple[str, ...] | None
Place = tuple[Entry, ...] | str  # entries of a spec; "one" is CPU 0 alone


def spec_text(place: Place) -> str:
    """A place as the lesson writes it.

    Example:
        >>> spec_text((None, "a")), spec_text("one")
        ('P(None, "a")', 'CPU 0 alone')
    """
    return "CPU 0 alone" if isinstance(place, str) else f"P({', '.join(map(repr, place))})".replace("'", '"')


@dataclass(frozen=True, slots=True)
class Part:
    """What one device holds: rows and columns of the table, and for each element the device that it came from."""

    rows: range
    columns: range
    sources: tuple[tuple[int, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the part."""
        return 4 * len(self.rows) * len(self.columns)


@dataclass(frozen=True, slots=True)
class Stage:
    """What all devices hold after a step.

    Args:
        op: the step, such as "all_gather over a"; "start" before the first.
        nbytes: what the busiest device sends in it, by the library's model.
        parts: for each device its part; None where it holds nothing.
    """

    op: str
    nbytes: int
    parts: tuple[Part | None, ...]

    @property
    def most_held(self) -> int:
        """Bytes on the device that holds most."""
        return max(part.nbytes for part in self.parts if part)


@dataclass(frozen=True, slots=True)
class Journey:
    """A move: the mesh, where the table is and where it goes, and the stages on the way."""

    mesh: tuple[int, ...]
    have: Place
    want: Place
    stages: tuple[Stage, ...]

    @property
    def nbytes(self) -> int:
        """What the busiest device sends, all steps together."""
        return sum(stage.nbytes for stage in self.stages)


def record_journey(mesh: tuple[int, ...], have: Place, want: Place) -> Journey:
    """Run the move, and write down what each device holds after each step.

    Args:
        mesh: size of each mesh axis; the axes are named a, b.
        have: entries of the spec that the table has; "one" for all of it on CPU 0.
        want: likewise, where it goes.

    Communication: none.

    Example:
        >>> [(stage.op, stage.nbytes) for stage in record_journey((4, 2), ("a",), (None, "a")).stages]
        [('start', 0), ('all_to_all over a', 48)]
    """
    names = NAMES[: len(mesh)]
    old, new = (_layout(mesh, names, place) for place in (have, want))
    program = move_program(coarsest(old), coarsest(new), SHAPE, torch.float32)
    numbers = torch.arange(float(NBYTES // 4)).reshape(SHAPE)
    start = [numbers[old.index(k, SHAPE)] if k < len(old.devices) else None for k in range(len(program.devices))]
    whose = [None if block is None else torch.full_like(block, float(k)) for k, block in enumerate(start)]
    stages = [Stage("start", 0, _parts(start, whose))]
    steps = zip(_run(program, start), _run(program, whose), strict=True)
    for (step, blocks), (_, sources) in steps:
        over = " and ".join(_named(mesh, program, axis) for axis in step.kwargs.get("axes", ()))
        op = f"{step.op} over {over}" if over else step.op
        stages.append(Stage(op, bytes_sent(program, step), _parts(blocks, sources)))
    return Journey(mesh, have, want, tuple(stages))


def _run(program: Program, shards: list[Tensor | None]) -> list[tuple[Eqn, list[Tensor | None]]]:
    """All devices in lockstep; after each exchange and each cut its step, and what each device then holds."""
    ready = make_ready(program)
    values: list[list[Any]] = [[shard, *[None] * (ready.size - 1)] for shard in shards]
    found = []
    for step in ready.steps:
        slot = step.results[0]
        if step.call is not None:
            for row in values:
                row[slot] = step.call(row)[0]
            continue
        made = exchanged(program, step.step, [row[step.step.args[0].number] for row in values])
        for row, block in zip(values, made, strict=True):
            row[slot] = block
        found.append((step.step, made))
    return found


def _parts(blocks: list[Tensor | None], sources: list[Tensor | None]) -> tuple[Part | None, ...]:
    found: list[Part | None] = []
    for numbers, whose in zip(blocks, sources, strict=True):
        if numbers is None or whose is None:
            found.append(None)
            continue
        first, last = (divmod(int(numbers[corner]), SHAPE[1]) for corner in ((0, 0), (-1, -1)))
        table = tuple(tuple(int(device) for device in row) for row in whose.tolist())
        found.append(Part(range(first[0], last[0] + 1), range(first[1], last[1] + 1), table))
    return tuple(found)


def _layout(mesh: tuple[int, ...], names: tuple[str, ...], place: Place) -> Layout:
    if isinstance(place, str):
        return Layout((0,), (), ((),) * len(SHAPE))
    return NamedSharding(AbstractMesh(mesh, names), P(*place)).checked_layout(SHAPE)


def _named(mesh: tuple[int, ...], program: Program, axis: int) -> str:
    """The name of an axis of the program; axes that are always cut together are one axis there."""
    if len(program.axes) == len(mesh):
        return NAMES[axis]
    return "*".join(NAMES[: len(mesh)])
