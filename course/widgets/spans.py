"""Lesson 01: dispatch, queue, compute and wait, drawn from the times of real calls, recorded or measured here."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from course.widgets.base import Choice, Control, Explorer, Press, Step
from course.widgets.card import INK, MUTED, Piece, Sheet, paragraph, stack
from course.widgets.recorded_spans import CORES, RECORDED
from tinyshard.arrays.placement import block_until_ready, device_put
from tinyshard.draw.cell import BORDER, number, text
from tinyshard.draw.colours import OKABE_ITO, ink
from tinyshard.runtime.lifecycle import devices

__all__ = ["Call", "TimeLine", "describe", "draw", "look", "measure", "time_line"]

HEADING = "When the call returns, when a device computes, when the result is there"

MOST_CALLS = 4
SIZES = (200, 2000)
WIDTH, ROW, QUEUE_ROW, NAMES_WIDTH = 560, 34, 60, 90
_RECORDED = f"recorded on a machine of {CORES} cores: press the button to measure on yours"
# orange, grey, sky blue, vermilion: distinct for any kind of colour vision; the words are beside them too
KINDS = {
    "dispatch": OKABE_ITO[1],
    "queue": OKABE_ITO[7],
    "compute": OKABE_ITO[0],
    "wait": OKABE_ITO[6],
}


@dataclass(frozen=True, slots=True)
class Call:
    """The times of one product, in ms after the first line began.

    Args:
        dispatched_ms: when its line began.
        returned_ms: when the line came back with a future.
        ready_ms: when the result was there.
    """

    dispatched_ms: float
    returned_ms: float
    ready_ms: float


@dataclass(frozen=True)
class TimeLine:
    """Products one after the other on CPU 0.

    Args:
        size: rows and columns of the matrices.
        waits_each: whether the cell waits after each product, or once at the end.
        calls: their times.
        origin: where the times come from, in words.
    """

    size: int
    waits_each: bool
    calls: tuple[Call, ...]
    origin: str

    def spans(self) -> list[tuple[str, str, int, float, float]]:
        """Each part as (lane, kind, number of the call, from, to); the times in ms."""
        found = []
        free_ms = 0.0
        for k, call in enumerate(self.calls, 1):
            started_ms = max(call.returned_ms, free_ms)
            found.append(("your cell", "dispatch", k, call.dispatched_ms, call.returned_ms))
            if started_ms > call.returned_ms:
                found.append(("queue", "queue", k, call.returned_ms, started_ms))
            found.append(("CPU 0", "compute", k, started_ms, call.ready_ms))
            if self.waits_each or k == len(self.calls):
                found.append(("your cell", "wait", k, call.returned_ms, call.ready_ms))
            free_ms = call.ready_ms
        return found


def time_line() -> Explorer[TimeLine]:
    """Choose how many products, how large, and when to wait; see where the time goes.

    Until the button is pressed the picture shows times that were recorded elsewhere, and says so. The button measures
    here and now.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none until the button is pressed; then CPU 0 computes the products.

    Example:
        >>> print(time_line().choose(calls=2).text.splitlines()[0])
        2 products of 2000 × 2000, then one wait
    """
    controls: list[Control] = [
        Step("calls", "products", most=MOST_CALLS, start=3),
        Choice("size", "size", [(f"{size} × {size}", size) for size in SIZES], start=2000),
        Choice("waits_each", "wait", [("once, at the end", False), ("after each product", True)]),
        Press("measured", "measure here"),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(calls: int, size: int, waits_each: bool, measured: int) -> TimeLine:
    """Take the recorded times, or measure.

    Args:
        calls: how many products; 0 counts as 1.
        size: rows and columns of the matrices.
        waits_each: whether to wait after each product.
        measured: 0 for the recorded times.

    Communication: none; CPU 0 computes the products, if `measured`.
    """
    count = max(calls, 1)
    if measured:
        return TimeLine(size, waits_each, measure(count, size, waits_each), "measured here")
    times = RECORDED[count, size, waits_each]
    return TimeLine(size, waits_each, tuple(Call(*call) for call in times), _RECORDED)


def measure(count: int, size: int, waits_each: bool) -> tuple[Call, ...]:
    """Dispatch products on CPU 0, wait for them, and look at the clock.

    If the cell waits only once, it sees only when the last product is ready. A run of two shows when the second of four
    is ready: a check in between would take the processor from the device.

    Args:
        count: how many.
        size: rows and columns of the matrices.
        waits_each: whether to wait after each one, or after the last.

    Returns:
        The times.

    Communication: none.
    """
    x = device_put(torch.ones(size, size), devices()[0])
    block_until_ready(x @ x)  # what happens only once is not part of the picture
    if waits_each:
        lines, ready = _run(x, count, waits_each=True)
    else:
        runs = [_run(x, shorter, waits_each=False) for shorter in range(1, count + 1)]
        lines, (last,) = runs[-1]
        # one queue, so the first of four is there before the last of them, however slow its own run was
        ready = [min(at, last) for _, (at,) in runs]
    found: list[Call] = []
    for (dispatched, returned), at in zip(lines, ready, strict=True):
        found.append(Call(dispatched, returned, max(at, returned, found[-1].ready_ms if found else 0.0)))
    return tuple(found)


def _run(x: torch.Tensor, count: int, *, waits_each: bool) -> tuple[list[tuple[float, float]], list[float]]:
    """When each line began and came back, and when each wait, or the only one, was over; in ms."""
    begin = time.perf_counter()

    def now_ms() -> float:
        return (time.perf_counter() - begin) * 1000

    lines, ready = [], []
    for place in range(1, count + 1):
        dispatched = now_ms()
        product = x @ x
        lines.append((dispatched, now_ms()))
        if waits_each or place == count:
            block_until_ready(product)
            ready.append(now_ms())
    return lines, ready


def draw(line: TimeLine) -> Sheet:
    """Three lanes: your cell, the queue, CPU 0; to scale, time runs to the right."""
    whole_ms, digits = line.calls[-1].ready_ms, _digits(line)
    tops = {"your cell": 0.0, "queue": ROW, "CPU 0": ROW + QUEUE_ROW}
    middles = {lane: top + (QUEUE_ROW if lane == "queue" else ROW) / 2 for lane, top in tops.items()}
    parts = [text(lane, 0, middle, 13, fill=INK, anchor="start") for lane, middle in middles.items()]
    for lane, kind, call, start_ms, end_ms in line.spans():
        x, width = (ms / whole_ms * WIDTH for ms in (start_ms, end_ms - start_ms))
        # several calls may be in the queue at once: each has its own line there
        height = ROW - 10 if lane != "queue" else (QUEUE_ROW - 8) / MOST_CALLS
        y = tops[lane] + (5 if lane != "queue" else 4 + (call - 1) * height)
        tip = f"{kind} of product {call}: from {start_ms:.{digits}f} to {end_ms:.{digits}f} ms"
        parts.append(
            f'<g><title>{tip}</title><rect x="{number(NAMES_WIDTH + x)}" y="{number(y)}" '
            f'width="{number(max(width, 1))}" height="{number(height)}" fill="{KINDS[kind]}" stroke="{BORDER}" '
            'stroke-width="0.5"/>'
        )
        words = f"{kind} {call}"
        size = 12 if lane != "queue" else 10
        if width > 7 * len(words):
            parts.append(text(words, NAMES_WIDTH + x + width / 2, y + height / 2, size, fill=ink(KINDS[kind])))
        parts.append("</g>")
    lanes_piece = Piece("".join(parts), NAMES_WIDTH + WIDTH, tops["CPU 0"] + ROW)
    pieces = [paragraph([_heading(line)]), lanes_piece, _scale(whole_ms), _legend(), paragraph(_told(line))]
    return Sheet(f"{_heading(line)}: {_told(line)[0]}", stack([*pieces, paragraph([line.origin], size=11, fill=MUTED)]))


def describe(line: TimeLine) -> str:
    """Each part with its times."""
    digits = _digits(line)
    parts = [
        f"{lane:9}  {kind:8} {call}  {start_ms:7.{digits}f} to {end_ms:7.{digits}f} ms"
        for lane, kind, call, start_ms, end_ms in line.spans()
    ]
    return "\n".join([_heading(line), *parts, *_told(line), line.origin])


def _heading(line: TimeLine) -> str:
    count = len(line.calls)
    wait = "a wait after each" if line.waits_each else "then one wait"
    return f"{count} product{'s' if count > 1 else ''} of {line.size} × {line.size}, {wait}"


def _told(line: TimeLine) -> list[str]:
    dispatch, wait = (
        sum(end - start for _, kind, _, start, end in line.spans() if kind == wanted) for wanted in ("dispatch", "wait")
    )
    ready, dispatches, waits = (f"{ms:.{_digits(line)}f} ms" for ms in (line.calls[-1].ready_ms, dispatch, wait))
    return [f"all ready after {ready}; your cell dispatches for {dispatches} and waits for {waits}"]


def _digits(line: TimeLine) -> int:
    """Decimals of a ms: small products take so little that one would hide the dispatch."""
    return 1 if line.calls[-1].ready_ms >= 10 else 2


def _scale(whole_ms: float) -> Piece:
    drawn = [f'<line x1="{NAMES_WIDTH}" y1="2" x2="{NAMES_WIDTH + WIDTH}" y2="2" stroke="{INK}"/>']
    for k in range(5):
        x = NAMES_WIDTH + WIDTH * k / 4
        drawn.append(f'<line x1="{number(x)}" y1="2" x2="{number(x)}" y2="7" stroke="{INK}"/>')
        drawn.append(text(f"{whole_ms * k / 4:.3g} ms", x, 15, 11))
    return Piece("".join(drawn), NAMES_WIDTH + WIDTH + 25, 22)


def _legend() -> Piece:
    drawn, x = [], 0.0
    for kind, colour in KINDS.items():
        drawn.append(f'<rect x="{number(x)}" y="3" width="18" height="14" fill="{colour}" stroke="{BORDER}"/>')
        drawn.append(text(kind, x + 24, 10, 12, fill=MUTED, anchor="start"))
        x += 24 + 7 * len(kind) + 20
    return Piece("".join(drawn), x, 20)
