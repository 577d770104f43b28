"""A small table of numbers, each cell in the colours of those to whom it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.widgets.card import INK, PAPER, Piece
from tinyshard.draw.cell import Box, cell, number, text
from tinyshard.draw.colours import device_colour

__all__ = ["Entry", "band", "grid", "rectangle"]

CELL = (30, 24)  # px
SIZE = 11  # px, of the letters
BAND = 7  # px, of the coloured band at the foot of a cell
SLOTS = 8  # places in the band


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell.

    Args:
        words: its text.
        owners: the numbers of its owners, whose colours are those of devices. None: without a colour.
        tip: what a resting mouse shows.
        is_chosen: drawn with a thick border.
    """

    words: str
    owners: tuple[int, ...]
    tip: str
    is_chosen: bool = False


def grid(rows: Sequence[Sequence[Entry]], size: tuple[float, float] = CELL) -> Piece:
    """Cells in rows and columns.

    Args:
        rows: from top to bottom.
        size: width and height of a cell in px.

    Communication: none.

    Example:
        >>> grid([[Entry("1", (0,), "x[0]"), Entry("2", (1,), "x[1]")]]).width
        62
    """
    width, height = size
    drawn, chosen = [], []
    for i, row in enumerate(rows):
        for j, entry in enumerate(row):
            box = (1 + j * width, 1 + i * height, width, height)
            drawn.append(band(box, entry))
            if entry.is_chosen:
                inner = (box[0] + 1.5, box[1] + 1.5, width - 3, height - 3)
                chosen.append(rectangle(inner, f'fill="none" stroke="{INK}" stroke-width="3"'))
    return Piece("".join(drawn + chosen), 2 + width * max(map(len, rows), default=0), 2 + height * len(rows))


def band(box: Box, entry: Entry) -> str:
    """A cell in its owner's colour; for several owners on paper, above a band with a place for each owner."""
    if len(entry.owners) == 1:
        return cell(box, entry.owners, (entry.words,), SIZE, entry.tip)
    x, y, width, height = box
    dashes = "" if entry.owners else ' stroke-dasharray="3 2"'
    drawn = [f"<g><title>{entry.tip}</title>", rectangle(box, f'style="fill:{PAPER}" stroke="{INK}"{dashes}')]
    slot = (width - 2) / max(SLOTS, len(entry.owners))
    for owner in entry.owners:
        place = (x + 1 + owner % SLOTS * slot, y + height - BAND - 1, slot, BAND)
        drawn.append(rectangle(place, f'fill="{device_colour(owner)}"'))
    middle = y + height / 2 - (BAND / 2 if entry.owners else 0)
    return "".join([*drawn, text(entry.words, x + width / 2, middle, SIZE), "</g>"])


def rectangle(box: Box, rest: str) -> str:
    """A `<rect>` at `box` (x, y, width, height in px) with more attributes."""
    x, y, width, height = box
    return f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" {rest}/>'
