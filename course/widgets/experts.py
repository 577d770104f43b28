"""Lesson 17: tokens on four devices, and the boxes in which they travel to four experts; choose the room in a box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from course.experts import Load, load_of
from course.widgets.base import Choice, Explorer, Step
from course.widgets.card import INK, MUTED, PAPER, WIDEST, Piece, Sheet, paragraph, stack
from tinyshard.draw.cell import BORDER, number, text
from tinyshard.draw.colours import device_colour, ink

__all__ = ["Sent", "describe", "draw", "look", "token_routing"]

HEADING = "Tokens, and their places at the experts"
DEVICES, TOKENS = 4, 8
CHANCES = {
    "all alike": (1.0, 1.0, 1.0, 1.0),
    "one is popular": (3.0, 1.0, 1.0, 1.0),
    "nearly all to one": (12.0, 1.0, 1.0, 1.0),
}
CELL, GAP, LEFT = 24, 4, 84  # px
ROOM = WIDEST - LEFT  # px, of all boxes of an expert
WIDTH_BYTES = 64  # of a token: 16 numbers


@dataclass(frozen=True)
class Sent:
    """What a router chose, and what found room.

    Attributes:
        chosen: the expert of each token, int64[devices, tokens].
        load: what is sent and dropped.
    """

    chosen: torch.Tensor
    load: Load

    @property
    def nbytes(self) -> int:
        """Bytes that one device sends to the experts and back, full places or empty ones."""
        return 2 * (DEVICES - 1) * self.load.capacity * WIDTH_BYTES


def token_routing() -> Explorer[Sent]:
    """Choose how a router chooses, and the capacity; see which tokens are dropped, and what the boxes hold.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none.

    Example:
        >>> token_routing().choose(router="all alike", capacity=8).text.splitlines()[-2]
        'dropped 0 of 32 tokens; the busiest expert gets 12'
    """
    routers = [(words, words) for words in CHANCES]
    return Explorer(
        HEADING,
        [
            Choice("router", "the router's choice", routers, start="one is popular"),
            Step("capacity", "capacity", most=TOKENS, start=2),
        ],
        look,
        draw,
        describe,
    )


def look(router: str, capacity: int) -> Sent:
    """Let a router choose, and count.

    Args:
        router: of CHANCES.
        capacity: places of a box.
    """
    weights = torch.tensor(CHANCES[router]).expand(DEVICES, -1)
    chosen = torch.multinomial(weights, TOKENS, replacement=True, generator=torch.Generator().manual_seed(5))
    return Sent(chosen, load_of(chosen, DEVICES, capacity))


def draw(sent: Sent) -> Sheet:
    """Tokens in a row each device, in the colour of their expert, dropped ones struck out; below them the boxes."""
    rows = [paragraph(["tokens: number and colour say which expert; struck out: dropped"], fill=MUTED)]
    rows += [_tokens(sent, device) for device in range(DEVICES)]
    rows.append(paragraph(["boxes at each expert: number and colour say which sender; hollow: empty"], fill=MUTED))
    rows += [_boxes(sent, expert) for expert in range(DEVICES)]
    rows.append(paragraph(_numbers(sent)))
    return Sheet(_numbers(sent)[0], stack(rows, 6))


def describe(sent: Sent) -> str:
    """The same in words."""
    lines = [f"capacity {sent.load.capacity}"]
    for device in range(DEVICES):
        told = " ".join(f"{expert}" if kept else f"({expert})" for expert, kept in _kept(sent, device))
        lines.append(f"device {device}: experts {told}")
    places = DEVICES * sent.load.capacity
    lines += [f"expert {k}: {n} of {places} places taken" for k, n in enumerate(sent.load.arrived)]
    return "\n".join([*lines, *_numbers(sent)])


def _kept(sent: Sent, device: int) -> Iterator[tuple[int, bool]]:
    """The expert of each token, and whether it finds room."""
    counts = [0] * DEVICES
    for expert in sent.chosen[device].tolist():
        counts[expert] += 1
        yield expert, counts[expert] <= sent.load.capacity


def _numbers(sent: Sent) -> list[str]:
    dropped, arrived = sum(sent.load.dropped), sent.load.arrived
    room = DEVICES**2 * sent.load.capacity
    return [
        f"dropped {dropped} of {DEVICES * TOKENS} tokens; the busiest expert gets {max(arrived)}",
        f"each device sends {sent.nbytes:,} bytes; {sum(arrived)} of {room} places are taken",
    ]


def _tokens(sent: Sent, device: int) -> Piece:
    cells = []
    for k, (expert, is_kept) in enumerate(_kept(sent, device)):
        cells.append(_cell(LEFT + k * (CELL + GAP), CELL, expert, is_hollow=not is_kept))
    return _line(f"device {device}", cells, TOKENS * (CELL + GAP))


def _boxes(sent: Sent, expert: int) -> Piece:
    cells, capacity = [], sent.load.capacity
    size = min(CELL, (ROOM / DEVICES - 2 * GAP) / max(1, capacity))
    for sender in range(DEVICES):
        for place in range(capacity):
            x = LEFT + (sender * capacity + place) * size + sender * 2 * GAP
            cells.append(_cell(x, size, sender if place < sent.load.sent[sender][expert] else None))
    return _line(f"expert {expert}", cells, DEVICES * (capacity * size + 2 * GAP))


def _cell(x: float, width: float, device: int | None, *, is_hollow: bool = False) -> str:
    """A place in the colour of a device; a token that is dropped is a struck one without the colour; None is empty."""
    fill = PAPER if device is None or is_hollow else device_colour(device)
    edge = MUTED if device is None else device_colour(device) if is_hollow else BORDER
    place = f'x="{number(x + 1)}" y="1" width="{number(width - 2)}" height="{CELL - 2}"'
    drawn = f'<rect {place} style="fill:{fill};stroke:{edge}"/>'
    if device is not None:
        colour = INK if is_hollow else ink(fill)
        drawn += text(str(device), x + width / 2, CELL / 2, 12, fill=colour)
    if is_hollow:
        drawn += f'<path d="M{number(x + 2)} {CELL - 2}L{number(x + width - 2)} 2" stroke="{INK}" stroke-width="1.5"/>'
    return drawn


def _line(name: str, cells: list[str], width: float) -> Piece:
    label = text(name, 0, CELL / 2, 12, fill=INK, anchor="start")
    return Piece(label + "".join(cells), LEFT + width, CELL)
