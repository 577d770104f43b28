"""Lesson 03: choose the present and the new sharding of an array; see every step of the move on every device."""

from __future__ import annotations

from course.widgets.base import Choice, Control, Explorer, Options
from course.widgets.card import INK, MUTED, Piece, Sheet, beside, paragraph, stack
from course.widgets.grid import rectangle
from course.widgets.journey import NAMES, NBYTES, SHAPE, Entry, Journey, Part, Place, Stage, record_journey, spec_text
from tinyshard.draw.cell import BORDER, text
from tinyshard.draw.colours import device_colour

__all__ = ["array_moves", "describe", "draw"]

HEADING = "What each device holds after every step of a move"

MESHES = ((8,), (4, 2), (2, 4))
ELEMENT, GAP, LABELS = 7, 4, 212  # px: side of an element, between devices, room for the words before a row


def array_moves() -> Explorer[Journey]:
    """Choose a mesh, where a table of 8 × 8 is, and where it goes; see each step of the move on every device.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; the program runs in this process.

    Example:
        >>> print(array_moves().choose(have=("a",), want=()).text.splitlines()[2])
        start: a device holds 64 of 256 bytes
    """
    controls: list[Control] = [
        Choice("mesh", "mesh", [(" × ".join(map(str, mesh)), mesh) for mesh in MESHES], start=(4, 2)),
        Choice("have", "from", lambda chosen: _places(chosen["mesh"]), start=("a", "b")),
        Choice("want", "to", lambda chosen: _places(chosen["mesh"]), start=("b", "a")),
    ]
    return Explorer(HEADING, controls, record_journey, draw, describe)


def draw(journey: Journey) -> Sheet:
    """A row for each stage: on each device the table, and in it the part that the device holds."""
    count = len(journey.stages[0].parts)
    side = SHAPE[1] * ELEMENT
    heads = "".join(text(f"CPU {d}", d * (side + GAP) + side / 2, 8, 12) for d in range(count))
    width = count * (side + GAP)
    rows = [beside([Piece("", LABELS, 16), Piece(heads, width, 16)], 0)]
    for stage in journey.stages:
        words = paragraph(_words(stage), size=12)
        maps = "".join(_map(part, d, d * (side + GAP)) for d, part in enumerate(stage.parts))
        label = Piece(words.svg, LABELS, words.height)
        rows.append(beside([label, Piece(maps, width, side + 4)], 0))
    legend = (
        "a square is the array of 8 × 8; what a device holds has the colours of the devices that had it at the start"
    )
    lines = [paragraph([_total(journey)]), paragraph([legend], size=11, fill=MUTED)]
    title = stack([paragraph([_heading(journey)]), paragraph([_code(journey.want)], is_code=True)], 2)
    return Sheet(f"{_heading(journey)}: what each device holds after each step", stack([title, stack(rows, 6), *lines]))


def describe(journey: Journey) -> str:
    """For each stage the bytes, and for each device its part and where that came from."""
    lines = [_heading(journey), _code(journey.want)]
    for stage in journey.stages:
        lines.append(": ".join([stage.op, ", ".join(_words(stage)[1:])]))
        lines += [f"  CPU {device}: {_part(part)}" for device, part in enumerate(stage.parts)]
    return "\n".join([*lines, _total(journey)])


def _map(part: Part | None, device: int, x: float) -> str:
    """The table's outline, and in it the elements that the device holds."""
    side = SHAPE[1] * ELEMENT
    drawn = [f"<g><title>CPU {device}: {_part(part)}</title>"]
    if part:
        for i, row in zip(part.rows, part.sources, strict=True):
            for j, source in zip(part.columns, row, strict=True):
                box = (x + j * ELEMENT, 2 + i * ELEMENT, ELEMENT, ELEMENT)
                drawn.append(rectangle(box, f'fill="{device_colour(source)}" stroke="{BORDER}" stroke-width="0.4"'))
    drawn.append(rectangle((x, 2, side, side), f'fill="none" stroke="{INK}"'))
    return "".join([*drawn, "</g>"])


def _part(part: Part | None) -> str:
    if part is None:
        return "nothing"
    cuts = ", ".join(f"{cut.start}:{cut.stop}" for cut in (part.rows, part.columns))
    devices = sorted({source for row in part.sources for source in row})
    return f"x[{cuts}], from CPU {', '.join(map(str, devices))}"


def _words(stage: Stage) -> list[str]:
    holds = f"a device holds {stage.most_held} of {NBYTES} bytes"
    return [stage.op, holds] if stage.op == "start" else [stage.op, f"the busiest sends {stage.nbytes} bytes", holds]


def _total(journey: Journey) -> str:
    most = max(stage.most_held for stage in journey.stages)
    return f"the whole move: the busiest device sends {journey.nbytes} bytes, and holds up to {most}"


def _places(mesh: tuple[int, ...]) -> Options:
    """CPU 0 alone, and every spec for two dims."""
    names = NAMES[: len(mesh)]
    cuts: list[tuple[str, ...]] = [(), *((name,) for name in names), *((a, b) for a in names for b in names if a != b)]
    specs = [(rows, columns) for rows in cuts for columns in cuts if not set(rows) & set(columns)]
    entries = [tuple(_entry(cut) for cut in spec) for spec in specs]
    trimmed = [place[:1] if place[1] is None else place for place in entries]
    offered: list[Place] = ["one"]
    offered += [() if place == (None,) else place for place in trimmed]
    return [(spec_text(place), place) for place in offered]


def _entry(cut: tuple[str, ...]) -> Entry:
    if not cut:
        return None
    return cut[0] if len(cut) == 1 else cut


def _code(want: Place) -> str:
    place = "ts.devices()[0]" if isinstance(want, str) else f"ts.NamedSharding(mesh, ts.{spec_text(want)})"
    return f"ts.device_put(x, {place})"


def _heading(journey: Journey) -> str:
    mesh = " × ".join(map(str, journey.mesh))
    return f"from {spec_text(journey.have)} to {spec_text(journey.want)}, on a mesh of {mesh} devices"
