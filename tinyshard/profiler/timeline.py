"""The picture of a trace: a row for each device and one for the controller, with time from left to right.

The picture is an SVG, which every viewer shows. Where scripts run, as in a trusted notebook, a canvas replaces it,
which zooms and describes each step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from tinyshard.profiler.events import Events
from tinyshard.profiler.script import SCRIPT

# kind -> (fill, its description); each is visible on a light and on a dark page
KINDS = {
    "compute": ("#56b4e9", "compute"),
    "exchange": ("#e69f00", "exchange"),
    "wait": ("#9a9a9a", "wait"),
    "trace": ("#cc79a7", "trace"),
    "plan": ("#009e73", "plan"),
    "dispatch": ("#4c8edb", "dispatch"),
    "put": ("#d55e00", "put"),
    "call": ("rgba(128,128,128,.28)", "call: Python between steps"),
}
_NAMES = list(KINDS)
# the largest number of bars that are drawn: the shortest are left out
_MOST_DRAWN = 20_000
_WIDTH, _LEFT, _ROW, _BAR, _TOP = 960, 86, 26, 18, 6


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the picture.

    Attributes:
        row: 0 for the controller, then the devices.
        start_ns, end_ns: when.
        kind: one of `KINDS`.
        name: of the step or span.
        line: the user's line.
    """

    row: int
    start_ns: int
    end_ns: int
    kind: str
    name: str
    line: str


def bars_of(events: Events) -> list[Bar]:
    """The bars to draw, from back to front."""
    row = {device: i + 1 for i, device in enumerate(events.devices)}
    bars = [Bar(0, s.start_ns, s.end_ns, s.kind, s.name, str(s.where)) for s in events.spans]
    bars += [Bar(row[c.device], c.start_ns, c.end_ns, "call", c.name, c.line) for c in events.calls]
    for s in events.steps:
        middle = s.start_ns + s.wait_ns
        if s.wait_ns:
            bars.append(Bar(row[s.device], s.start_ns, middle, "wait", f"wait in {s.op}", s.line))
        kind = "exchange" if s.is_exchange else "compute"
        bars.append(Bar(row[s.device], middle, s.end_ns, kind, s.op, s.line))
    return bars


def timeline_html(events: Events) -> str:
    """The picture, as one `<div>` that needs nothing from the network; the same for the same trace."""
    bars = bars_of(events)
    shown = bars
    if len(bars) > _MOST_DRAWN:
        least = sorted((b.end_ns - b.start_ns for b in bars), reverse=True)[_MOST_DRAWN]
        shown = [b for b in bars if b.end_ns - b.start_ns > least]
    names = ["controller", *map(events.name, events.devices)]
    data = _data(events, shown, names)
    number = hashlib.sha256(data.encode()).hexdigest()[:12]
    notes = list(events.notes)
    if len(shown) < len(bars):
        notes.append(f"drawn are the longest {len(shown):,} of {len(bars):,} bars")
    said = "".join(f'<div style="opacity:.75">{escape(note)}</div>' for note in notes)
    script = SCRIPT.replace("__ID__", f"tinyshard-{number}")
    return (
        f'<div id="tinyshard-{number}" style="max-width:{_WIDTH}px;font:12px system-ui,sans-serif;color:inherit">'
        f'<div class="picture">{_svg(events, shown, names)}</div>{_legend(shown)}{said}'
        f'<script type="application/json">{data}</script><script>{script}</script></div>'
    )


def _data(events: Events, bars: Sequence[Bar], names: Sequence[str]) -> str:
    """The script's data, as JSON that is safe in HTML."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    drawn = [
        [b.row, b.start_ns, b.end_ns - b.start_ns, _NAMES.index(b.kind), number(b.name), number(b.line)] for b in bars
    ]
    kinds = [[kind, *KINDS[kind]] for kind in _NAMES]
    data: dict[str, Any] = {"wall": events.wall_ns, "rows": names, "kinds": kinds, "bars": drawn}
    data |= {"texts": list(texts), "left": _LEFT, "row": _ROW, "bar": _BAR, "top": _TOP}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _legend(bars: Sequence[Bar]) -> str:
    there = {b.kind for b in bars}
    entries = [
        f'<span style="margin-right:14px;white-space:nowrap"><span style="display:inline-block;width:11px;height:11px;'
        f'border-radius:2px;margin-right:5px;vertical-align:-1px;background:{fill}"></span>{escape(name)}</span>'
        for kind, (fill, name) in KINDS.items()
        if kind in there
    ]
    return f'<div style="margin:4px 0 2px {_LEFT}px;line-height:1.7">{"".join(entries)}</div>'


def _svg(events: Events, bars: Sequence[Bar], names: Sequence[str]) -> str:
    scale = (_WIDTH - _LEFT - 8) / max(1, events.wall_ns)
    height = _TOP + _ROW * len(names) + 22
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" aria-label="timeline" '
        'font-family="system-ui,sans-serif" font-size="12" fill="currentColor">'
    ]
    for i, name in enumerate(names):
        y = _TOP + i * _ROW
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - 8}" height="{_BAR}" opacity=".06" rx="2"/>')
    for bar in _visible(bars, 1 / scale):
        x, y = _LEFT + bar.start_ns * scale, _TOP + bar.row * _ROW
        width = max(0.4, (bar.end_ns - bar.start_ns) * scale)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{KINDS[bar.kind][0]}">'
            f"<title>{escape(bar.name)} {(bar.end_ns - bar.start_ns) / 1e6:.3f} ms</title></rect>"
        )
    bottom = height - 6
    for at in ticks(events.wall_ns):
        x = _LEFT + at * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom - 13}" stroke="currentColor" opacity=".15"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom}" text-anchor="middle" opacity=".7">{at / 1e6:g} ms</text>')
    return "".join([*parts, "</svg>"])


def _visible(bars: Iterable[Bar], least_ns: float) -> list[Bar]:
    """The bars; consecutive ones of a kind that are narrower than a pixel are merged."""
    visible: list[Bar] = []
    last: dict[tuple[int, str], int] = {}  # by row and kind, the number of the last bar
    for bar in bars:
        at = last.get((bar.row, bar.kind))
        if at is not None and bar.kind != "call" and bar.end_ns - visible[at].end_ns < least_ns:
            before = visible[at]
            visible[at] = replace(before, end_ns=max(before.end_ns, bar.end_ns))
            continue
        last[bar.row, bar.kind] = len(visible)
        visible.append(bar)
    return visible


def ticks(wall_ns: int, most: int = 8) -> list[int]:
    """Round times for the axis.

    Example:
        >>> ticks(42_000_000)
        [0, 10000000, 20000000, 30000000, 40000000]
    """
    step = 1
    while wall_ns / step > most:
        step *= 5 if str(step)[0] == "2" else 2
        step = 10 ** len(str(step - 1)) if str(step)[0] == "4" else step
    return list(range(0, wall_ns + 1, step))
