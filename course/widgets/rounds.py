"""Lesson 08: the rounds of three all-reduces, and their costs with links between any two devices or neighbours only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from course.widgets.base import Choice, Explorer
from course.widgets.card import INK, MUTED, Piece, Sheet, beside, paragraph, stack
from tinyshard.draw.cell import BORDER, number, text
from tinyshard.draw.colours import device_colour, ink

__all__ = ["WAYS", "Round", "Scene", "busiest_link", "describe", "draw", "exchange_rounds", "look", "rounds_of"]

HEADING = "Eight devices, each round of an all-reduce: an arrow is as wide as its bytes"
DEVICES = 8
LATENCY_S, BYTES_PER_S = 10e-6, 100e9
RADIUS, DOT, SIZE = 43, 10, 108  # px; of the circle, of a device, and of the whole

ANY, NEIGHBOURS = "any two devices", "neighbours on the circle only"
ROWS = {"4 KiB": 2**12, "256 KiB": 2**18, "4 MiB": 2**22, "64 MiB": 2**26}


@dataclass(frozen=True)
class Round:
    """One round, in which all devices send at the same time.

    Args:
        pairs: (sender, receiver).
        share: of the row's k bytes, how many each message has.
    """

    pairs: tuple[tuple[int, int], ...]
    share: Fraction


def _next(share: Fraction) -> Round:
    return Round(tuple((j, (j + 1) % DEVICES) for j in range(DEVICES)), share)


def _partners(distance: int, share: Fraction) -> Round:
    return Round(tuple((j, j ^ distance) for j in range(DEVICES)), share)


def rounds_of(way: str) -> tuple[Round, ...]:
    """All rounds of one of WAYS, in order.

    Example:
        >>> [str(each.share) for each in rounds_of("halving, then doubling")]
        ['1/2', '1/4', '1/8', '1/8', '1/4', '1/2']
    """
    return WAYS[way]


_HALVING = [_partners(distance, Fraction(1, 2 * distance)) for distance in (1, 2, 4)]
WAYS: dict[str, tuple[Round, ...]] = {
    "ring of pieces": (_next(Fraction(1, DEVICES)),) * (2 * (DEVICES - 1)),
    "doubling": tuple(_partners(distance, Fraction(1)) for distance in (1, 2, 4)),
    "halving, then doubling": (*_HALVING, *reversed(_HALVING)),
}


def busiest_link(one: Round) -> Fraction:
    """What the busiest link carries, one way, where links join neighbours on the circle; in rows.

    A message takes the shorter way around; one to the opposite device is sent half this way, half the other.

    Example:
        >>> str(busiest_link(rounds_of("doubling")[1])), str(busiest_link(rounds_of("ring of pieces")[0]))
        ('2', '1/8')
    """
    carried: dict[tuple[int, int], Fraction] = {}
    for source, target in one.pairs:
        ahead = (target - source) % DEVICES
        ways = [(1, ahead)] * (2 * ahead <= DEVICES) + [(-1, DEVICES - ahead)] * (2 * ahead >= DEVICES)
        for step, hops in ways:
            for hop in range(hops):
                link = (source + step * hop) % DEVICES, step
                carried[link] = carried.get(link, Fraction(0)) + one.share / len(ways)
    return max(carried.values())


@dataclass(frozen=True)
class Cost:
    """What a way costs.

    Args:
        rounds: how many there are.
        rows: what the busiest device or link sends in all, in rows of k bytes.
        seconds: by the model, rounds x latency + bytes / rate.
    """

    rounds: int
    rows: Fraction
    seconds: float


@dataclass(frozen=True)
class Scene:
    """The costs of all ways, for one row size and one kind of links."""

    links: str
    row: str
    costs: dict[str, Cost]

    @property
    def fastest(self) -> str:
        """The way with the least seconds."""
        return min(self.costs, key=lambda way: self.costs[way].seconds)


def look(links: str, row: str) -> Scene:
    """Add up all rounds of all ways."""
    costs = {}
    for way, rounds in WAYS.items():
        rows = sum((each.share if links == ANY else busiest_link(each) for each in rounds), Fraction(0))
        costs[way] = Cost(len(rounds), rows, len(rounds) * LATENCY_S + float(rows) * ROWS[row] / BYTES_PER_S)
    return Scene(links, row, costs)


def exchange_rounds() -> Explorer[Scene]:
    """Three ways to all-reduce a row of k bytes over eight devices, every round of them.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; the picture is arithmetic.

    Example:
        >>> exchange_rounds().choose(links=NEIGHBOURS, row="64 MiB").text.splitlines()[-1]
        'the fastest: ring of pieces'
    """
    controls = [
        Choice("links", "links between", [(each, each) for each in (ANY, NEIGHBOURS)]),
        Choice("row", "k", [(each, each) for each in ROWS], start="256 KiB"),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def describe(scene: Scene) -> str:
    """A line for each way."""
    lines = [f"links between {scene.links}; rows of k = {scene.row}"]
    for way, cost in scene.costs.items():
        shares = ", ".join(f"{_times(each.share)}" for each in WAYS[way])
        lines += [f"{way}: {_totals(cost)}", f"  rounds of {_shortened(shares)}"]
    return "\n".join([*lines, f"the fastest: {scene.fastest}"])


def draw(scene: Scene) -> Sheet:
    """For each way a line of circles, one for each round, and the totals below its name."""
    pieces = []
    for way, cost in scene.costs.items():
        is_fastest = way == scene.fastest
        head = f"{way}: {_totals(cost)}" + ("; the fastest" if is_fastest else "")
        different = list(dict.fromkeys(WAYS[way]))
        drawn = WAYS[way] if len(different) > 1 else different
        circles = beside([_circle(each, _below(each, scene, len(WAYS[way]) // len(drawn))) for each in drawn], 8)
        pieces.append(stack([paragraph([head]), circles], 2))
    busiest = "device" if scene.links == ANY else "link"
    rule = f"time = rounds × 10 µs + bytes of the busiest {busiest} / 100 GB/s"
    legend = paragraph([f"{rule}; rows of k = {scene.row}"], size=11, fill=MUTED)
    return Sheet(f"{scene.fastest} is the fastest for rows of {scene.row}", stack([*pieces, legend], 12))


def _below(one: Round, scene: Scene, times: int) -> str:
    told = _times(one.share) if scene.links == ANY else f"{_times(one.share)}, link {_times(busiest_link(one))}"
    return told if times == 1 else f"{times} × {told}"


def _times(share: Fraction) -> str:
    """A number of rows in terms of k."""
    whole = "" if share.numerator == 1 else f"{share.numerator} "
    return f"{whole}k" + (f"/{share.denominator}" if share.denominator > 1 else "")


def _totals(cost: Cost) -> str:
    return f"{cost.rounds} rounds, {float(cost.rows):g} k, {cost.seconds * 1e6:,.1f} µs"


def _shortened(shares: str) -> str:
    parts = shares.split(", ")
    return f"{parts[0]} each" if len(set(parts)) == 1 else shares


def _place(device: int, radius: float = RADIUS) -> tuple[float, float]:
    """Device 0 at the top, then clockwise."""
    angle = 2 * math.pi * device / DEVICES
    return SIZE / 2 + radius * math.sin(angle), SIZE / 2 - radius * math.cos(angle)


def _circle(one: Round, words: str) -> Piece:
    """The devices on a circle, the messages between them, and what each message has."""
    dots = []
    for device in range(DEVICES):
        x, y = _place(device)
        fill = device_colour(device)
        dots.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="{DOT}" fill="{fill}" stroke="{BORDER}"/>')
        dots.append(text(str(device), x, y, 12, fill=ink(fill)))
    label = text(words, SIZE / 2, SIZE + 10, 11, fill=INK)
    return Piece("".join([*_arrows(one), *dots, label]), max(SIZE, 5.6 * len(words)), SIZE + 18)


def _arrows(one: Round) -> Sequence[str]:
    width = 1 + 3 * float(one.share)
    drawn = []
    for source, target in one.pairs:
        (x1, y1), (x2, y2) = _place(source), _place(target)
        length = math.hypot(x2 - x1, y2 - y1)
        along = (x2 - x1) / length, (y2 - y1) / length
        tip = x2 - along[0] * (DOT + 1), y2 - along[1] * (DOT + 1)
        back = tip[0] - along[0] * 5, tip[1] - along[1] * 5
        corners = [tip, *((back[0] - side * along[1] * 3.5, back[1] + side * along[0] * 3.5) for side in (1, -1))]
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        line = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(back[0])}" y2="{number(back[1])}"'
        drawn.append(f'<line {line} stroke="{MUTED}" stroke-width="{number(width)}"/>')
        drawn.append(f'<polygon points="{points}" fill="{INK}"/>')
    return drawn
