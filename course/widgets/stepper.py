"""Lesson 07: step through a collective: the messages between devices, and what each holds before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from course.widgets.base import Choice, Control, Explorer, Options, Press, Step
from course.widgets.card import INK, MUTED, Piece, Sheet, beside, paragraph, stack
from course.widgets.grid import Entry, band
from course.widgets.moves import MOVES, ends_of
from course.widgets.pattern_times import times_of_function, times_of_move
from course.widgets.timed import OnPress, Timed, table, table_piece
from course.widgets.traffic import Held, Message, Moment, Recording, record
from tinyshard import lax
from tinyshard.draw.cell import BORDER, number, text
from tinyshard.draw.colours import device_colour
from tinyshard.runtime.lifecycle import device_count

__all__ = ["PATTERNS", "Scene", "collective_stepper", "describe", "draw"]

HEADING = "Which device sends what to which, exchange by exchange"

Function = Callable[[Tensor], Tensor]

MOST_DEVICES = 8
ROW, CELL, WIDE_CELL = 30, 30, 38  # px: height for a device, width of a number, width of a run of numbers
ARROWS, NARROW_ARROWS = 190, 120  # px between what is held before and after; beside runs of numbers there is less


def _to_the_right(row: Tensor) -> Tensor:
    return lax.ppermute(row, "i", [(i, i + 1) for i in range(int(lax.axis_size("i")) - 1)])


def _from_the_left(row: Tensor) -> Tensor:
    count = int(lax.axis_size("i"))
    return lax.pshuffle(row, "i", [(i - 1) % count for i in range(count)])


# words → (code, function)
PATTERNS: dict[str, tuple[str, Function]] = {
    "all-reduce": ('psum(row, "i")', lambda row: lax.psum(row, "i")),
    "reduce-scatter": ('psum_scatter(row, "i")', lambda row: lax.psum_scatter(row, "i")),
    "all-gather": ('all_gather(row, "i")', lambda row: lax.all_gather(row, "i")),
    "all-to-all": (
        'all_to_all(row, "i", split_axis=0, concat_axis=0)',
        lambda row: lax.all_to_all(row, "i", split_axis=0, concat_axis=0),
    ),
    "swapaxes": ('pswapaxes(row, "i", 0)', lambda row: lax.pswapaxes(row, "i", 0)),
    "permute to the right": ('ppermute(row, "i", [(0, 1), (1, 2), …])', _to_the_right),
    "shuffle around the ring": ('pshuffle(row, "i", [7, 0, 1, …])', _from_the_left),
}


@dataclass(frozen=True)
class Scene:
    """One moment of a recording.

    Args:
        pattern: what was recorded, in words.
        code: the call.
        recording: all of it.
        moment: the number of the exchange; the count of exchanges means the results.
        follow: the device whose messages stand out; None for all.
        times: what was measured for this pattern.
    """

    pattern: str
    code: str
    recording: Recording
    moment: int
    follow: int | None
    times: tuple[Timed, ...] = ()

    @property
    def now(self) -> Moment | None:
        """The exchange; None for the results."""
        moments = self.recording.moments
        return moments[self.moment] if self.moment < len(moments) else None


def collective_stepper(**functions: Function) -> Explorer[Scene]:
    """Step through a collective on a small table of numbers, a row on each device.

    Args:
        **functions: functions of your own, by name: each takes a row, float32[n] for n devices, and communicates along
            the axis "i". They come before the built-in ones in the list of patterns. The origins of the numbers are
            shown for functions that copy, cut and add.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; the programs are made for the devices and run in this process. The button runs the pattern
    on the devices, several times.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> print(collective_stepper().choose(pattern="all-to-all", step=0).text.splitlines()[3])
        CPU 0: 0 1 2 3 → 0 4 8 12
    """
    mapped = {**{name: (f"{name}(row)", function) for name, function in functions.items()}, **PATTERNS}
    codes = {name: f'ts.pmap(lambda row: {code}, axis_name="i")(table)' for name, (code, _) in mapped.items()}
    codes |= {name: f"ts.{code}" for name, (code, _) in MOVES.items()}
    count = min(device_count(), MOST_DEVICES)
    recordings: dict[str, Recording] = {}

    def recorded(pattern: str) -> Recording:
        if pattern not in recordings:
            recordings[pattern] = record(mapped[pattern][1], count) if pattern in mapped else MOVES[pattern][1](count)
        return recordings[pattern]

    def measure(pattern: str) -> tuple[Timed, ...]:
        if pattern in mapped:
            return times_of_function(mapped[pattern][1], count)
        return times_of_move(*ends_of(pattern, count))

    known = OnPress(measure)

    def look(pattern: str, step: int, follow: int | None, measured: int) -> Scene:
        return Scene(pattern, codes[pattern], recorded(pattern), step, follow, known(measured, pattern) or ())

    def last(chosen: Mapping[str, Any]) -> int:
        return len(recorded(chosen["pattern"]).moments)

    followed: Options = [("all", None), *((f"CPU {device}", device) for device in range(count))]
    controls: list[Control] = [
        Choice("pattern", "pattern", [(name, name) for name in codes]),
        Step("step", "step", last),
        Choice("follow", "follow", followed, start=0),
        Press("measured", "measure here"),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def draw(scene: Scene) -> Sheet:
    """Before, arrows, after: a row for each device."""
    devices = Piece(
        "".join(text(f"CPU {d}", 0, ROW * (d + 0.5), 12, anchor="start") for d in range(scene.recording.count)),
        40,
        ROW * scene.recording.count,
    )
    if scene.now is None:
        body = beside([devices, _all_held(scene.recording.result)], 10)
    else:
        room = NARROW_ARROWS if _has_runs(scene.now.before) or _has_runs(scene.now.after) else ARROWS
        arrows = _arrows(scene.now.messages, scene.recording.count, scene.follow, room)
        body = beside([devices, _all_held(scene.now.before), arrows, devices, _all_held(scene.now.after)], 10)
    sent = paragraph(_sent(scene))
    heading = stack([paragraph([scene.code], is_code=True), paragraph([_headline(scene)])], 2)
    legend = paragraph(["the colours in a cell are those of the devices whose numbers are in it"], size=11, fill=MUTED)
    pieces = [heading, body, sent, *([table_piece(scene.times)] if scene.times else []), legend]
    return Sheet(f"{scene.pattern}, {_headline(scene)}", stack(pieces))


def describe(scene: Scene) -> str:
    """The headline, for each device what it holds before and after, and the bytes."""
    lines = [scene.code, _headline(scene), ""]
    if scene.now is None:
        lines += [f"CPU {d}: {_row(held)}" for d, held in enumerate(scene.recording.result)]
    else:
        pairs = enumerate(zip(scene.now.before, scene.now.after, strict=True))
        lines += [f"CPU {d}: {_row(before)} → {_row(after)}" for d, (before, after) in pairs]
    return "\n".join([*lines, "", *_sent(scene), *table(scene.times)])


def _headline(scene: Scene) -> str:
    last = len(scene.recording.moments)
    if scene.now is None:
        return f"after {last} of {last} exchanges: the result"
    return f"exchange {scene.moment + 1} of {last}: {scene.now.op}; {scene.now.what}"


def _sent(scene: Scene) -> list[str]:
    """What the followed device sends, and what one device sends in the whole call."""
    sent = scene.recording.sent()
    least, most = (f"{nbytes:g}" for nbytes in (min(sent), max(sent)))
    fewest = "" if least == most else f" (another one {least})"
    each = f"{most} bytes sent by the busiest device{fewest}"
    total = f"the whole call: {each}"
    if scene.now is None:
        return [total]
    if scene.follow is None:
        return [f"{len(scene.now.messages)} messages, {_bytes(scene.now.messages)} bytes in all", total]
    out = [message for message in scene.now.messages if message.source == scene.follow]
    targets = ", ".join(str(message.target) for message in out)
    to = f"sends {out[0].nbytes:g} bytes to {targets}: {_bytes(tuple(out))} bytes" if out else "sends nothing"
    sources = ", ".join(str(message.source) for message in scene.now.messages if message.target == scene.follow)
    return [f"CPU {scene.follow} {to}; it gets from {sources or 'no device'}", total]


def _bytes(messages: tuple[Message, ...]) -> str:
    return f"{sum(message.nbytes for message in messages):g}"


def _row(held: tuple[Held, ...]) -> str:
    has_runs = any("…" in one.words for one in held)
    return (", " if has_runs else " ").join(one.words for one in held) or "nothing"


def _has_runs(every: tuple[tuple[Held, ...], ...]) -> bool:
    return any("…" in one.words for held in every for one in held)


def _all_held(every: tuple[tuple[Held, ...], ...]) -> Piece:
    """A row of cells for each device."""
    size = WIDE_CELL if _has_runs(every) else CELL
    drawn = []
    for device, held in enumerate(every):
        for k, one in enumerate(held):
            names = ", ".join(map(str, one.origins))
            tip = f"{one.words}, from CPU {names}" if names else f"{one.words}, sent by no device"
            words = one.words.replace(" … ", "…")
            drawn.append(band((k * size, device * ROW + 3, size, ROW - 6), Entry(words, one.origins, tip)))
    return Piece("".join(drawn), max(map(len, every)) * size, ROW * len(every))


def _arrows(messages: tuple[Message, ...], count: int, follow: int | None, room: float) -> Piece:
    """An arrow from the left, at the sender's row, to the right, at the receiver's; the followed ones stand out."""
    drawn = []
    for message in sorted(messages, key=lambda message: message.source == follow):
        is_followed = follow is None or message.source == follow
        drawn.append(_arrow(message, is_followed, room))
    return Piece("".join(drawn), room, ROW * count)


def _arrow(message: Message, stands_out: bool, room: float) -> str:
    """A dark line under a coloured one, so that light colours are seen on light pages."""
    start, end = ROW * (message.source + 0.5), ROW * (message.target + 0.5)
    slope = (end - start) / (room - 14)
    tip = room - 8, end - slope * 2
    line = f'x1="4" y1="{number(start)}" x2="{number(tip[0] - 6)}" y2="{number(tip[1] - 6 * slope)}"'
    if not stands_out:
        return f'<line {line} stroke="{INK}" stroke-opacity="0.12"/>'
    colour = device_colour(message.source)
    length = (1 + slope * slope) ** 0.5
    along, across = (1 / length, slope / length), (-slope / length, 1 / length)
    corners = [(tip[0], tip[1])]
    corners += [
        (tip[0] - 10 * along[0] + side * 5 * across[0], tip[1] - 10 * along[1] + side * 5 * across[1])
        for side in (1, -1)
    ]
    points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
    words = f"CPU {message.source} sends {message.nbytes:g} bytes to CPU {message.target}"
    return (
        f'<g><title>{words}</title><line {line} stroke="{BORDER}" stroke-width="4"/>'
        f'<line {line} stroke="{colour}" stroke-width="2.5"/>'
        f'<polygon points="{points}" fill="{colour}" stroke="{BORDER}"/></g>'
    )
