"""A row of bars, end to end behind a name, and their legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from course.widgets.card import CHARACTER, INK, MUTED, WIDEST, Piece
from tinyshard.draw.cell import BORDER, number, text

__all__ = ["NAMES_WIDTH", "bar", "legend"]

NAMES_WIDTH = 150.0  # px: of the names before the bars
SWATCH_WIDTH = 22


def bar(
    name: str,
    parts: Sequence[tuple[str, float, str, float]],
    words: str,
    say: Callable[[Any], str],
    *,
    px_per_unit: float,
    row: float,
    width: float,
) -> Piece:
    """One row: a name, its parts end to end, and words behind them.

    Args:
        name: of the row.
        parts: what each part is, its amount, its colour, and its height in px; one of nothing is left out.
        words: behind the bar.
        say: an amount in words, for a resting mouse.
        px_per_unit: of an amount.
        row: height of the row, in px.
        width: room behind the name, in px.

    Communication: none.

    Example:
        >>> bar("a", [("x", 2, "#fff", 10), ("y", 0, "#000", 10)], "2", str, px_per_unit=5, row=20, width=100).width
        250.0
    """
    drawn = [text(name, 0, row / 2, 13, fill=INK, anchor="start")]
    x = NAMES_WIDTH
    for part, amount, colour, height in parts:
        long = amount * px_per_unit
        if long > 0:
            drawn.append(
                f"<g><title>{part}: {say(amount)}</title>"
                f'<rect x="{number(x)}" y="{number((row - height) / 2)}" width="{number(long)}" height="{height}" '
                f'fill="{colour}" stroke="{BORDER}" stroke-width="0.5"/></g>'
            )
        x += long
    drawn.append(text(words, x + 8, row / 2, 13, fill=INK, anchor="start"))
    return Piece("".join(drawn), NAMES_WIDTH + width, row)


def legend(kinds: Sequence[tuple[str, str, float]], *, size: int, height: float) -> Piece:
    """A swatch and a word for each kind, side by side, in as many lines as that takes.

    Args:
        kinds: word, colour, and height of the swatch in px.
        size: of the words, in px.
        height: of a line, in px.

    Communication: none.

    Example:
        >>> legend([("memory", "#fff", 10)], size=13, height=24).svg.count("<rect")
        1
    """
    drawn, x, y, widest = [], 0.0, 0.0, 0.0
    for word, colour, tall in kinds:
        width = SWATCH_WIDTH + 6 + size * CHARACTER * len(word)
        if x and x + width > WIDEST:
            x, y = 0.0, y + height
        drawn.append(
            f'<rect x="{number(x)}" y="{number(y + (height - tall) / 2)}" width="{SWATCH_WIDTH}" height="{tall}" '
            f'fill="{colour}" stroke="{BORDER}" stroke-width="0.5"/>'
        )
        drawn.append(text(word, x + SWATCH_WIDTH + 6, y + height / 2, size, fill=MUTED, anchor="start"))
        widest = max(widest, x + width)
        x += width + 18
    return Piece("".join(drawn), widest, y + height)
