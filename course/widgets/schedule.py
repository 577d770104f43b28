"""Lesson 18: the steps of a program one after the other, and the memory that a device holds during each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from course.widgets.base import Choice, Explorer, Step
from course.widgets.card import INK, MUTED, Piece, Sheet, paragraph, stack
from tinyshard.compile.memory import MemoryAnalysis
from tinyshard.draw.cell import number, text
from tinyshard.draw.colours import OKABE_ITO

__all__ = ["Run", "describe", "draw", "look", "program_schedule"]

HEADING = "The steps of a program, and what a device holds during each"

WIDTH, STRIP, HEIGHT, LEFT = 620, 30, 150, 6
ABOVE, RIGHT = 18, 16  # room for the numbers of the axis
BUCKETS, BAR = 14, 40  # rows of the picture in words, and the length of the longest
COMPUTE, EXCHANGE, LIMIT = OKABE_ITO[0], OKABE_ITO[6], "#d55e00"


class _HasMemory(Protocol):
    def memory_analysis(self) -> MemoryAnalysis: ...


@dataclass(frozen=True)
class Run:
    """One program, and where one looks.

    Args:
        name: what it is called.
        line: what a device holds during each step.
        limit_nbytes: what it may hold; None for no limit.
        step: the step that is pointed at.
    """

    name: str
    line: MemoryAnalysis
    limit_nbytes: int | None
    step: int

    @property
    def top_nbytes(self) -> int:
        """The upper edge of the picture."""
        return max(self.line.peak_nbytes, self.limit_nbytes or 0, 1)


def program_schedule(programs: Mapping[str, _HasMemory], limit_nbytes: int | None = None) -> Explorer[Run]:
    """Walk through the steps of programs, and see what is computed, what is sent, and what is held meanwhile.

    Args:
        programs: name → `jit(f).lower(...).compile()`.
        limit_nbytes: drawn as a dashed line.

    Returns:
        The explorer; it points at the step with the most memory first.

    Communication: none; nothing is run.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> f = ts.jit(lambda x: torch.sin(x) + 1)
        >>> print(program_schedule({"sine": f.lower(torch.zeros(256)).compile()}).text.splitlines()[0])
        sine: 2 steps, 0 of them exchanges; at most 3,072 bytes, in step 1
    """
    lines = {name: compiled.memory_analysis() for name, compiled in programs.items()}
    first = next(iter(lines))
    return Explorer(
        HEADING,
        [
            Choice("name", "program", [(name, name) for name in lines], start=first),
            Step("step", "step", lambda chosen: max(len(lines[chosen["name"]].steps) - 1, 0), lines[first].peak_step),
        ],
        lambda name, step: look(name, lines[name], limit_nbytes, step),
        draw,
        describe,
    )


def look(name: str, line: MemoryAnalysis, limit_nbytes: int | None, step: int) -> Run:
    """The data of the picture.

    Example:
        >>> look("empty", MemoryAnalysis(32, 0, ()), None, 0).top_nbytes
        32
    """
    return Run(name, line, limit_nbytes, min(step, len(line.steps) - 1))


def draw(run: Run) -> Sheet:
    """Above, a cell for each step: a low blue one computes, a high red one exchanges. Below, the memory line."""
    pieces = [
        paragraph([_summary(run)]),
        _legend(run),
        _strip(run),
        _line(run),
        paragraph([_pointed(run)], is_code=True),
    ]
    return Sheet(_summary(run), stack(pieces, 6))


def describe(run: Run) -> str:
    """The memory line on its side: a row for a few steps, `x` where something is exchanged."""
    moments = run.line.steps
    per_row = max(-(-len(moments) // BUCKETS), 1)
    rows = []
    for start in range(0, len(moments), per_row):
        some = moments[start : start + per_row]
        nbytes = max(m.nbytes for m in some)
        exchanges = sum(m.communicates for m in some)
        bar = "#" * round(BAR * nbytes / run.top_nbytes)
        place = f"{start}-{start + len(some) - 1}"
        rows.append(f"{place:>9} {bar:{BAR}} {nbytes:>11,}{' ' + 'x' * exchanges if exchanges else ''}")
    limit = [] if run.limit_nbytes is None else [f"    limit {'-' * round(BAR * run.limit_nbytes / run.top_nbytes)}>"]
    return "\n".join([_summary(run), *rows, *limit, _pointed(run)])


def _summary(run: Run) -> str:
    line = run.line
    exchanges = sum(m.communicates for m in line.steps)
    told = f"{run.name}: {len(line.steps)} steps, {exchanges} of them exchanges; at most {line.peak_nbytes:,} bytes"
    told += f", in step {line.peak_step}" if line.steps else ""
    if run.limit_nbytes is not None:
        told += f" (limit {run.limit_nbytes:,})"
    return told


def _pointed(run: Run) -> str:
    if not run.line.steps:
        return "no steps"
    moment = run.line.steps[run.step]
    return f"step {run.step}: {moment.result} = {moment.op}    # {moment.nbytes:,} bytes held"


def _legend(run: Run) -> Piece:
    parts, x = [], 0.0
    kinds = [("computes", COMPUTE, 10), ("exchanges", EXCHANGE, 20)]
    for word, colour, height in kinds:
        parts.append(f'<rect x="{number(x)}" y="{number(22 - height)}" width="12" height="{height}" fill="{colour}"/>')
        parts.append(text(word, x + 18, 12, 13, fill=MUTED, anchor="start"))
        x += 18 + 8 * len(word) + 20
    if run.limit_nbytes is not None:
        parts.append(_dashed(x, 12, x + 26))
        parts.append(text("limit", x + 32, 12, 13, fill=MUTED, anchor="start"))
        x += 90
    return Piece("".join(parts), x, 24)


def _strip(run: Run) -> Piece:
    moments = run.line.steps
    each = WIDTH / max(len(moments), 1)
    parts = []
    for k, moment in enumerate(moments):
        height = STRIP if moment.communicates else STRIP / 2
        colour = EXCHANGE if moment.communicates else COMPUTE
        parts.append(
            f'<rect x="{number(LEFT + k * each)}" y="{number(STRIP - height)}" width="{number(max(each - 0.6, 0.8))}" '
            f'height="{number(height)}" fill="{colour}"><title>step {k}: {moment.op}</title></rect>'
        )
    return Piece("".join(parts), LEFT + WIDTH, STRIP)


def _line(run: Run) -> Piece:
    moments = run.line.steps
    each = WIDTH / max(len(moments), 1)

    def y(nbytes: int) -> float:
        return HEIGHT * (1 - nbytes / run.top_nbytes)

    points = [(float(LEFT), float(HEIGHT))]
    for k, moment in enumerate(moments):
        points += [(LEFT + k * each, y(moment.nbytes)), (LEFT + (k + 1) * each, y(moment.nbytes))]
    points.append((float(LEFT + WIDTH), float(HEIGHT)))
    drawn = " ".join(f"{number(a)},{number(b)}" for a, b in points)
    parts = [f'<polygon points="{drawn}" fill="{COMPUTE}" fill-opacity="0.35" stroke="{INK}" stroke-width="1"/>']
    if run.limit_nbytes is not None:
        parts.append(_dashed(LEFT, y(run.limit_nbytes), LEFT + WIDTH))
    if moments:
        x = LEFT + (run.step + 0.5) * each
        parts.append(f'<line x1="{number(x)}" y1="0" x2="{number(x)}" y2="{HEIGHT}" stroke="{INK}" stroke-width="2"/>')
        parts.append(f'<circle cx="{number(x)}" cy="{number(y(moments[run.step].nbytes))}" r="4" fill="{INK}"/>')
    parts += [
        text(f"{run.line.peak_nbytes:,} bytes", *_beside_the_peak(run, each, y(run.line.peak_nbytes))),
        text("0", LEFT + WIDTH + 5, HEIGHT - 5, 12, fill=INK, anchor="start"),
    ]
    lines = f'<g transform="translate(0 {ABOVE})">{"".join(parts)}</g>'
    return Piece(lines, LEFT + WIDTH + RIGHT, HEIGHT + 4 + ABOVE)


def _beside_the_peak(run: Run, each: float, y: float) -> tuple[float, float, int, str, str]:
    """Where the number of the peak is: x and y, above the first step that is as high; its size, colour and anchor."""
    x = LEFT + (max(run.line.peak_step, 0) + 0.5) * each
    side = "start" if x < WIDTH / 4 else "end" if x > WIDTH * 3 / 4 else "middle"
    return x, y - 9, 12, INK, side


def _dashed(x: float, y: float, end: float) -> str:
    return (
        f'<line x1="{number(x)}" y1="{number(y)}" x2="{number(end)}" y2="{number(y)}" '
        f'stroke="{LIMIT}" stroke-width="2" stroke-dasharray="6 4"/>'
    )
