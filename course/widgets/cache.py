"""Lesson 09: what jit finds in its caches. A function was called once; change something, and call it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course.widgets.base import Choice, Control, Explorer
from course.widgets.card import INK, MUTED, Piece, Sheet, beside, paragraph, stack
from course.wrapping import filled
from tinyshard import jit
from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.draw.cell import number, text
from tinyshard.sharding import NamedSharding, P, PartitionSpec
from tinyshard.sharding.mesh import AbstractMesh

__all__ = ["Fact", "Remembered", "cache_explorer", "describe", "draw", "look"]

HEADING = "What a second call finds in the caches of jit"
MESH = AbstractMesh((4, 2), ("a", "b"))
SHAPES = ((64, 64), (32, 64))
DTYPES = (torch.float32, torch.float64)
SPECS = (P("a"), P(None, "b"), P())
TIMES = (2, 3)
OFFSETS = (1.0, 100.0)
SCALES = {"2.0": 2.0, "10.0": 10.0, "64 numbers": [2.0] * 64}
FUNCTIONS = ("the same", "written again")

BOX_WIDTH, BOX_HEIGHT = 250.0, 46.0  # px
NEW_COLOUR = "#D55E00"  # vermilion of Okabe and Ito; the words and the thick frame say it too


@dataclass(frozen=True, slots=True)
class Fact:
    """Something about a call.

    Args:
        name: what it is.
        before: at the first call.
        now: at the second one.
        decides: which caches have it in their key.
    """

    name: str
    before: str
    now: str
    decides: str

    @property
    def is_changed(self) -> bool:
        """Whether it is another one at the second call."""
        return self.before != self.now


@dataclass(frozen=True)
class Remembered:
    """What the second call finds.

    Args:
        facts: what the two calls are like.
        is_trace_found: whether the function was not run again.
        is_program_found: whether nothing was partitioned again.
        is_stale: whether the trace holds a number that is another one by now.
        graph: the trace that is used, in words.
    """

    facts: tuple[Fact, ...]
    is_trace_found: bool
    is_program_found: bool
    is_stale: bool
    graph: str


def cache_explorer() -> Explorer[Remembered]:
    """Choose the difference of the second call, and read what is made again.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; the function is traced and partitioned for a mesh without devices.

    Example:
        >>> print(cache_explorer().choose(spec=P(None, "b")).text.splitlines()[0])
        trace: found; program: made again
    """
    controls: list[Control] = [
        Choice("function", "function", [(words, words) for words in FUNCTIONS]),
        Choice("shape", "shape of x", [(_size(shape), shape) for shape in SHAPES]),
        Choice("dtype", "dtype of x", [(_name(dtype), dtype) for dtype in DTYPES]),
        Choice("spec", "layout of x", [(str(spec), spec) for spec in SPECS]),
        Choice("times", "times (static)", [(str(times), times) for times in TIMES]),
        Choice("scale", "scale (a tensor outside)", [(words, words) for words in SCALES]),
        Choice("offset", "offset (a number outside)", [(str(offset), offset) for offset in OFFSETS]),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(
    function: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    spec: PartitionSpec,
    times: int,
    scale: str,
    offset: float,
) -> Remembered:
    """Make both calls as far as the program, and see what the second one finds.

    Args:
        function: one of FUNCTIONS.
        shape: of the argument at the second call; the first one takes the first of each list.
        dtype: likewise.
        spec: its layout.
        times: the static argument.
        scale: the tensor that the function closes over, one of SCALES.
        offset: the number that it closes over.

    Communication: none.
    """
    first = _Watched()
    before = first.lowered(SHAPES[0], DTYPES[0], SPECS[0], TIMES[0])
    program = before.compile().program
    second = first if function == FUNCTIONS[0] else _Watched()
    second.change(torch.tensor(SCALES[scale]), offset)
    traced = second.traced
    after = second.lowered(shape, dtype, spec, times)
    is_trace_found = second is first and second.traced == traced
    facts = (
        Fact("function", FUNCTIONS[0], function, "trace"),
        Fact("shape of x", _size(SHAPES[0]), _size(shape), "trace"),
        Fact("dtype of x", _name(DTYPES[0]), _name(dtype), "trace"),
        Fact("times (static)", str(TIMES[0]), str(times), "trace"),
        Fact("scale (a tensor outside)", next(iter(SCALES)), scale, "trace, by shape and dtype"),
        Fact("layout of x", str(SPECS[0]), str(spec), "program"),
        Fact("offset (a number outside)", str(OFFSETS[0]), str(offset), "nothing"),
        Fact("values of x", "any", "any", "nothing"),
    )
    return Remembered(
        facts,
        is_trace_found,
        is_trace_found and after.compile().program is program,
        is_trace_found and offset != OFFSETS[0],
        after.as_text(),
    )


class _Watched:
    """A jitted function that closes over a tensor and a number, and counts how often it is traced."""

    def __init__(self) -> None:
        self.traced = 0
        scale, offset = torch.tensor(SCALES["2.0"]), OFFSETS[0]

        def f(x: Tensor, times: int) -> Tensor:
            self.traced += 1
            for _ in range(times):
                x = x * scale
            return x + offset

        def change(new_scale: Tensor, new_offset: float) -> None:
            nonlocal scale, offset
            scale, offset = new_scale, new_offset

        self.change = change
        self._jitted = jit(f, static_argnames="times")

    def lowered(self, shape: tuple[int, int], dtype: torch.dtype, spec: PartitionSpec, times: int) -> Any:
        """The function, traced for an argument that is only described."""
        x = ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))
        return self._jitted.lower(x, times=times)


def draw(remembered: Remembered) -> Sheet:
    """The facts of both calls in a table; below, what is found and what is made again, and the trace."""
    facts = remembered.facts
    columns = [
        ["", *(fact.name for fact in facts)],
        ["first call", *(fact.before for fact in facts)],
        ["", *("≠" if fact.is_changed else "" for fact in facts)],
        ["second call", *(fact.now for fact in facts)],
        ["decides about the", *(fact.decides for fact in facts)],
    ]
    table = beside([_column(column) for column in columns], gap=14)
    boxes = beside(
        [
            _box("trace", remembered.is_trace_found, "the function runs again"),
            _box("program", remembered.is_program_found, "it is partitioned again"),
        ]
    )
    heading = paragraph(["the trace that the second call uses:"], fill=MUTED)
    graph = paragraph(remembered.graph.splitlines(), size=12, is_code=True)
    rows = [table, boxes, *_warning(remembered), stack([heading, graph], 2)]
    return Sheet(_verdict(remembered), stack(rows))


def describe(remembered: Remembered) -> str:
    """The same in words."""
    changed = []
    for fact in remembered.facts:
        if fact.is_changed:
            decides = "nothing" if fact.decides == "nothing" else f"the {fact.decides}"
            words = f"{fact.name}: {fact.before}, now {fact.now} (decides about {decides})"
            changed.append(filled("  ", words, "    "))
    stale = [f"  {_STALE}"] if remembered.is_stale else []
    return "\n".join([_verdict(remembered), *(changed or ["  nothing is different"]), *stale, remembered.graph])


_STALE = "stale: the trace holds the offset of the first call"


def _warning(remembered: Remembered) -> list[Piece]:
    """A coloured bar before the words; in that colour they would be pale on white."""
    if not remembered.is_stale:
        return []
    words = paragraph([_STALE])
    bar = Piece(f'<rect width="4" height="{number(words.height)}" fill="{NEW_COLOUR}"/>', 4, words.height)
    return [beside([bar, words], 8)]


def _verdict(remembered: Remembered) -> str:
    def said(is_found: bool) -> str:
        return "found" if is_found else "made again"

    return f"trace: {said(remembered.is_trace_found)}; program: {said(remembered.is_program_found)}"


def _column(lines: list[str]) -> Piece:
    """A heading and the lines below it."""
    return stack([paragraph(lines[:1], fill=MUTED), paragraph(lines[1:])], 2)


def _box(name: str, is_found: bool, else_words: str) -> Piece:
    """A frame that says whether something was found: thin if it was, thick and coloured if it is made again."""
    colour, width = (INK, 1) if is_found else (NEW_COLOUR, 3)
    room = f'width="{number(BOX_WIDTH)}" height="{number(BOX_HEIGHT)}"'
    frame = f'<rect {room} rx="6" fill="none" stroke="{colour}" stroke-width="{width}"/>'
    first = f"{name}: {'found in the cache' if is_found else 'made again'}"
    second = "nothing to do" if is_found else else_words
    words = text(first, BOX_WIDTH / 2, BOX_HEIGHT * 0.32, 13) + text(second, BOX_WIDTH / 2, BOX_HEIGHT * 0.7, 12)
    return Piece(frame + words, BOX_WIDTH, BOX_HEIGHT)


def _size(shape: tuple[int, int]) -> str:
    return " × ".join(map(str, shape))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
