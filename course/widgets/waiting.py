"""Lesson 12: which device waits for which. Devices, the lists that they work through, and an arrow for each wait."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from course.schedules import Moment, from_error, ring, start, steps
from course.widgets.base import Choice, Explorer, Step
from course.widgets.card import INK, MUTED, PAPER, Piece, Sheet, beside, paragraph, stack
from tinyshard.draw.cell import number, text

__all__ = ["describe", "draw", "who_waits"]

HEADING = "Which device waits for which"

BOX_WIDTH, BOX_HEIGHT, GAP = 92.0, 24.0, 8.0  # px
RADIUS, NODE = 92.0, 17.0  # px: of the circle of devices, and of a device
CIRCLE_COLOUR, WAIT_COLOUR = "#D55E00", INK  # vermilion of Okabe and Ito, and thicker

SCENES: dict[str, Moment] = {
    "the same order everywhere": start({d: ["gradients", "loss", "weights"] for d in range(4)}),
    "another order on CPU 2": start(
        {d: ["gradients", "loss"] if d != 2 else ["loss", "gradients"] for d in range(4)},
    ),
    "CPU 3 is stopped": start({d: ["all_reduce"] for d in range(8)}, still=[3]),
    "a ring, all send first": start(ring(4, ["send", "receive"])),
    "a ring, CPU 0 receives first": start(
        ring(4, {0: ["receive", "send"], **{d: ["send", "receive"] for d in (1, 2, 3)}}),
    ),
    "a ring, even ones send first": start(
        ring(4, {d: ["receive", "send"] if d % 2 else ["send", "receive"] for d in range(4)}),
    ),
    "CPU 1 leaves one out": start({0: ["sum"] * 3, 1: ["sum"] * 2, 2: ["sum"] * 3}),
}


def draw(now: Moment) -> Sheet:
    """Lists and arrows: a row for each device with what is done, what it is at and what comes; and the waits.

    Args:
        now: how far each device has come.

    Returns:
        The sheet.

    Communication: none.

    Example:
        >>> draw(start({0: ["a"], 1: ["a"]}, still=[1])).piece.svg.count("<polygon")
        1
    """
    heading = paragraph([f"after {_rounds(now.rounds)}: {_verdict(now)}"])
    legend = paragraph(
        [
            "boxes: ✓ done; bold: current; dashed: later",
            "arrow: waits for; thick: in a circle; dashed disc: done; square: does not move",
        ],
        size=11,
        fill=MUTED,
    )
    return Sheet(_verdict(now), stack([heading, beside([_lists(now), _arrows(now)], gap=40), legend], gap=14))


def describe(now: Moment) -> str:
    """The picture in words, a line for each device.

    Args:
        now: how far each device has come.

    Communication: none.

    Example:
        >>> print(describe(start({0: ["a", "b"], 1: ["b", "a"]})))
        after 0 rounds: a deadlock, CPU 0 → CPU 1 → CPU 0
        CPU 0: (a) b  waits for CPU 1
        CPU 1: (b) a  waits for CPU 0
    """
    waits_for = now.waits_for
    lines = [f"after {_rounds(now.rounds)}: {_verdict(now)}"]
    lists = {device: _list_in_words(now, device) for device in now.plans}
    width = max(map(len, lists.values())) + 2
    for device, words in lists.items():
        if device in now.still:
            state = "does not move"
        elif device in waits_for:
            state = f"waits for {_names(waits_for[device])}"
        elif now.next_of(device) is None:
            state = "is done"
        else:
            state = "goes on"
        lines.append(f"CPU {device}: {words:<{width}}{state}")
    return "\n".join(lines)


def who_waits(what: BaseException | Mapping[int, Sequence[str]] | None = None) -> Explorer[Moment]:
    """Which device waits for which: in an error that you have caught, in lists that you write, or in some examples.

    Args:
        what: a CollectiveTimeoutError; or by device id, the names of its meetings in its order; or None for examples.

    Returns:
        An Explorer: choose an example where there are some, and let round after round take place. It begins with what
        comes in the end where `what` is given, else with the beginning.

    Raises:
        ValueError: the error names no collective that somebody has not reached.

    Communication: none.

    Example:
        >>> who_waits({0: ["a"], 1: ["a"]})
        after 1 round: all are done
        CPU 0: a✓  is done
        CPU 1: a✓  is done
    """
    if what is None:
        scenes = {name: steps(moment) for name, moment in SCENES.items()}
        return Explorer(
            HEADING,
            [
                Choice("example", "example", [(name, name) for name in scenes], start="another order on CPU 2"),
                Step("rounds", "exchange", most=lambda chosen: len(scenes[chosen["example"]]) - 1),
            ],
            look=lambda example, rounds: scenes[example][min(rounds, len(scenes[example]) - 1)],
            draw=draw,
            describe=describe,
        )
    moments = steps(from_error(what) if isinstance(what, BaseException) else start(what))
    control = Step("rounds", "exchange", most=len(moments) - 1, start=len(moments) - 1)
    return Explorer(HEADING, [control], lambda rounds: moments[rounds], draw, describe)


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"


def _names(devices: Sequence[int]) -> str:
    return f"CPU {','.join(map(str, devices))}"


def _verdict(now: Moment) -> str:
    if now.circle:
        return "a deadlock, " + " → ".join(f"CPU {device}" for device in (*now.circle, now.circle[0]))
    if now.is_over:
        return "all are done"
    if now.after is not now:
        return "some devices can go on"
    if now.still:
        return f"all wait for {_names(sorted(now.still))}"
    left = sorted({other for others in now.waits_for.values() for other in others if now.next_of(other) is None})
    return f"all wait for {_names(left)}, which has left and will not come again"


def _list_in_words(now: Moment, device: int) -> str:
    """Done ones with a tick, the next one in brackets."""
    done = now.done[device]
    words = [f"{name}✓" if k < done else f"({name})" if k == done else name for k, name in enumerate(now.plans[device])]
    return " ".join(words)


def _lists(now: Moment) -> Piece:
    """A row of boxes for each device: done ones ticked, the next one framed boldly, later ones dashed."""
    rows = []
    for device, plan in now.plans.items():
        ahead = int(device in now.still) - now.done[device]  # a device that does not move has not reached the next one
        boxes = [_box(name, k + ahead) for k, name in enumerate(plan)]
        label = Piece(text(f"CPU {device}", 0, BOX_HEIGHT / 2, 13, anchor="start"), 48, BOX_HEIGHT)
        rows.append(beside([label, *boxes], gap=GAP))
    return stack(rows, gap=GAP)


def _box(name: str, ahead: int) -> Piece:
    style = {0: 'stroke-width="2.5"'}.get(ahead, 'stroke-width="1"' + (' stroke-dasharray="4 3"' if ahead > 0 else ""))
    room = f'width="{number(BOX_WIDTH)}" height="{number(BOX_HEIGHT)}"'
    frame = f'<rect {room} rx="4" fill="none" stroke="{INK}" {style}/>'
    words = f"✓ {name}" if ahead < 0 else name
    fill = INK if ahead <= 0 else MUTED
    return Piece(frame + text(words, BOX_WIDTH / 2, BOX_HEIGHT / 2, 12, fill=fill), BOX_WIDTH, BOX_HEIGHT)


def _arrows(now: Moment) -> Piece:
    """The devices on a circle, and an arrow from each that waits to each that it waits for."""
    devices = list(now.plans)
    side = 2 * (RADIUS + NODE + 4)
    places = {}
    for k, device in enumerate(devices):
        angle = 2 * math.pi * k / len(devices) - math.pi / 2
        places[device] = (side / 2 + RADIUS * math.cos(angle), side / 2 + RADIUS * math.sin(angle))
    circle = now.circle
    in_circle = set(zip(circle, (*circle[1:], *circle[:1]), strict=True))
    drawn = [
        _arrow(places[device], places[other], (device, other) in in_circle)
        for device, others in now.waits_for.items()
        for other in others
        if other != device
    ]
    drawn += [_node(now, device, *places[device]) for device in devices]
    return Piece("".join(drawn), side, side)


def _arrow(source: tuple[float, float], target: tuple[float, float], is_in_circle: bool) -> str:
    """From the rim of one node to the rim of another, a little to the right of the line so that two ways show."""
    dx, dy = target[0] - source[0], target[1] - source[1]
    length = math.hypot(dx, dy)
    ux, uy = dx / length, dy / length
    shift = 4
    x1, y1 = source[0] + ux * NODE - uy * shift, source[1] + uy * NODE + ux * shift
    x2, y2 = target[0] - ux * (NODE + 3) - uy * shift, target[1] - uy * (NODE + 3) + ux * shift
    colour, width = (CIRCLE_COLOUR, 3) if is_in_circle else (WAIT_COLOUR, 1.2)
    head = 9
    corners = [
        (x2, y2),
        (x2 - ux * head - uy * head / 2, y2 - uy * head + ux * head / 2),
        (x2 - ux * head + uy * head / 2, y2 - uy * head - ux * head / 2),
    ]
    points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
    line = f'<path d="M {number(x1)} {number(y1)} L {number(x2 - ux * head)} {number(y2 - uy * head)}" '
    return f'{line}stroke="{colour}" stroke-width="{width}"/><polygon points="{points}" fill="{colour}"/>'


def _node(now: Moment, device: int, x: float, y: float) -> str:
    """A disc with the id; dashed when the device is done, a square when it does not move."""
    dashes = ' stroke-dasharray="3 3"' if now.next_of(device) is None else ""
    if device in now.still:
        corner = f'x="{number(x - NODE)}" y="{number(y - NODE)}" width="{number(2 * NODE)}" height="{number(2 * NODE)}"'
        shape = f'<rect {corner} style="fill:{PAPER}" stroke="{CIRCLE_COLOUR}" stroke-width="3"/>'
    else:
        place = f'cx="{number(x)}" cy="{number(y)}" r="{number(NODE)}"'
        shape = f'<circle {place} style="fill:{PAPER}" stroke="{INK}"{dashes}/>'
    return shape + text(str(device), x, y, 13)
