"""Lesson 10: which counter makes which number, on which device, in both ways of counting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from course.widgets.base import Choice, Control, Explorer, Options, Step
from course.widgets.card import MUTED, WIDEST, Piece, Sheet, beside, paragraph, stack
from course.widgets.grid import Entry, grid
from course.widgets.traffic import in_lockstep
from tinyshard import jit, random
from tinyshard.compile.compiled import Compiled
from tinyshard.core import config
from tinyshard.sharding import NamedSharding, P
from tinyshard.sharding.mesh import AbstractMesh

__all__ = ["Drawn", "Number", "counter_map", "describe", "draw", "look"]

HEADING = "Which counter makes which number, and on which device"

SEED = 42
SHAPES = ((24,), (8, 6))
PARTS = (1, 2, 4, 8)
LONGEST_LINE = 8  # numbers of a vector in one line of the picture
GAP = 16  # px between two blocks
FLAG = "threefry_partitionable"


@dataclass(frozen=True)
class Number:
    """One random number.

    Args:
        place: its place in the whole array, in reading order.
        counters: what it was made from, besides the key: one counter, or two that are stirred together.
        value: between 0 and 1.
        maker: the device that made it.
    """

    place: int
    counters: tuple[int, ...]
    value: float
    maker: int


@dataclass(frozen=True)
class Drawn:
    """An array of random numbers, block by block.

    Args:
        shape: of the whole.
        shard_shape: of one block; the rows are cut.
        is_partitionable: the flag.
        blocks: for each device its numbers, in reading order.
        nbytes: what one device sends.
        exchanges: the collectives of the program, in order.
        follow: the place of the number that stands out.
    """

    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    is_partitionable: bool
    blocks: tuple[tuple[Number, ...], ...]
    nbytes: int
    exchanges: tuple[str, ...]
    follow: int


def counter_map() -> Explorer[Drawn]:
    """Choose an array, its number of blocks, and the kind of counters.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; the programs are made for a mesh without devices and run in this process.

    Example:
        >>> print(counter_map().choose(parts=8, is_partitionable=False).text.splitlines()[4])
        CPU 2: 6 7 8 of counters 6+18 7+19 8+20; 8 made by CPU 6
    """
    ways = [("one counter for each number", True), ("pairs of counters, as JAX did formerly", False)]
    controls: list[Control] = [
        Choice("is_partitionable", "counters", ways),
        Choice("shape", "numbers", [("24", (24,)), ("8 × 6", (8, 6))]),
        Choice("parts", "shards", _cuts, start=4),
        Step("follow", "follow number", lambda chosen: math.prod(chosen["shape"]) - 1, start=8),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(is_partitionable: bool, shape: tuple[int, ...], parts: int, follow: int) -> Drawn:
    """Make the program that draws the numbers, and run it on each device's coordinates.

    Args:
        is_partitionable: which way of counting.
        shape: of the whole array.
        parts: in how many blocks its rows are cut, one for each device.
        follow: the place of the number that stands out.

    Communication: none.
    """
    compiled = _program(is_partitionable, shape, parts)
    key = torch.tensor([0, SEED], dtype=torch.int32)
    exchanges, blocks = in_lockstep(compiled.program, [[key]] * parts)
    values = [block.flatten().tolist() for block in blocks]
    count, held = math.prod(shape), len(values[0])
    numbers = tuple(
        tuple(
            Number(place, _counters(place, count, is_partitionable), value, _maker(device, value, exchanges))
            for place, value in enumerate(row, device * held)
        )
        for device, row in enumerate(values)
    )
    return Drawn(
        shape,
        tuple(blocks[0].shape),
        is_partitionable,
        numbers,
        compiled.cost_analysis().nbytes,
        tuple(exchange[0] for exchange in exchanges),
        min(follow, count - 1),
    )


def draw(drawn: Drawn) -> Sheet:
    """A block for each device, its numbers in the colour of their maker; in each cell the counters."""
    blocks = []
    for device, numbers in enumerate(drawn.blocks):
        entries = [_entry(number, drawn) for number in numbers]
        line = drawn.shard_shape[-1] if len(drawn.shape) > 1 else LONGEST_LINE
        rows = [entries[k : k + line] for k in range(0, len(entries), line)]
        size = (26.0, 24.0) if drawn.is_partitionable else (46.0, 24.0)
        blocks.append(stack([paragraph([f"CPU {device}"], size=12), grid(rows, size)], 2))
    per_line = 4 if 4 * blocks[0].width + 3 * GAP <= WIDEST else 2
    lines = [beside(blocks[k : k + per_line], GAP) for k in range(0, len(blocks), per_line)]
    legend = "in a cell: the counters; its colour: the device that made the number; thick border: the one to follow"
    pieces = [paragraph([_headline(drawn)]), *lines, paragraph([*_summary(drawn), _followed(drawn)])]
    return Sheet(_headline(drawn), stack([*pieces, _small(legend)]))


def describe(drawn: Drawn) -> str:
    """For each device the places of its numbers, their counters, and which of them other devices made."""
    lines = [_headline(drawn), ""]
    for device, numbers in enumerate(drawn.blocks):
        places, counters = (" ".join(words) for words in ([str(n.place) for n in numbers], map(_made_from, numbers)))
        makers = sorted({n.maker for n in numbers} - {device})
        others = [f"; {_places(numbers, maker)} made by CPU {maker}" for maker in makers]
        lines.append(f"CPU {device}: {places} of counters {counters}{''.join(others)}")
    return "\n".join([*lines, "", *_summary(drawn), _followed(drawn)])


@lru_cache(maxsize=64)
def _program(is_partitionable: bool, shape: tuple[int, ...], parts: int) -> Compiled:
    rows = NamedSharding(AbstractMesh((parts,), ("a",)), P("a"))

    def drawing(key: Any) -> Any:
        return random.uniform(key, shape)

    before = config.read(FLAG)
    config.update(FLAG, is_partitionable)
    try:
        compiled: Compiled = jit(drawing, out_shardings=rows).lower(random.key(SEED)).compile()
    finally:
        config.update(FLAG, before)
    return compiled


def _cuts(chosen: Mapping[str, Any]) -> Options:
    return [(f"{parts} block{'s' if parts > 1 else ''}", parts) for parts in PARTS]


def _counters(place: int, count: int, is_partitionable: bool) -> tuple[int, ...]:
    """One counter for each number; or number i and number i + count/2 from both of these counters."""
    if is_partitionable:
        return (place,)
    low = place % (count // 2)
    return (low, low + count // 2)


def _maker(device: int, value: float, exchanges: list[Any]) -> int:
    """The device itself, unless the number came to it in an exchange: then the one that brought it there."""
    for _, _, before, after in exchanges:
        if value in after[device].flatten().tolist():
            return next(source for source, brought in enumerate(before) if value in brought.flatten().tolist())
    return device


def _places(numbers: tuple[Number, ...], maker: int) -> str:
    return " ".join(str(n.place) for n in numbers if n.maker == maker)


def _entry(number: Number, drawn: Drawn) -> Entry:
    tip = f"number {number.place}: {number.value:.4f}, made by CPU {number.maker}"
    return Entry(_made_from(number), (number.maker,), tip, number.place == drawn.follow)


def _made_from(number: Number) -> str:
    return "+".join(map(str, number.counters))


def _headline(drawn: Drawn) -> str:
    shape = " × ".join(map(str, drawn.shape))
    way = "one counter for each number" if drawn.is_partitionable else "pairs of counters"
    blocks = len(drawn.blocks)
    return f"{shape} numbers in {blocks} block{'s' if blocks > 1 else ''}, {way}"


def _summary(drawn: Drawn) -> list[str]:
    sent = ", ".join(drawn.exchanges)
    traffic = (
        f"{drawn.nbytes} bytes sent by the busiest device, by the model: {sent}" if sent else "no device sends anything"
    )
    foreign = sum(n.maker != device for device, numbers in enumerate(drawn.blocks) for n in numbers)
    return [traffic, f"{foreign} of {math.prod(drawn.shape)} numbers are made elsewhere than where they are kept"]


def _followed(drawn: Drawn) -> str:
    device, number = next((d, n) for d, row in enumerate(drawn.blocks) for n in row if n.place == drawn.follow)
    where = (
        f"made and kept by CPU {device}"
        if number.maker == device
        else f"made by CPU {number.maker}, kept by CPU {device}"
    )
    return f"number {number.place} is {number.value:.4f}, from counter {_made_from(number)}, {where}"


def _small(words: str) -> Piece:
    return paragraph([words], size=11, fill=MUTED)
