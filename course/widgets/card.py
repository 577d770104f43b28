"""The sheet on which a picture is drawn: a card that reads well on light and on dark pages.

Within JupyterLab's page the colours of its theme are used. A stored picture is shown apart from the page, as an
image: there the fallbacks apply, dark ink on a white card, whatever surrounds it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from tinyshard.draw.cell import number, text

__all__ = [
    "CHARACTER",
    "INK",
    "MUTED",
    "PAPER",
    "WIDEST",
    "Piece",
    "Sheet",
    "beside",
    "card",
    "error_sheet",
    "folded",
    "inset",
    "paragraph",
    "size_of",
    "stack",
]

INK = "currentColor"
PAPER = "var(--jp-layout-color1,#ffffff)"
MUTED = "var(--jp-content-font-color2,#595959)"
_COLOUR = "var(--jp-content-font-color1,#1a1a1a)"
_BORDER = "var(--jp-border-color1,#bdbdbd)"

FONT_SIZE = 13  # px
LINE = 18  # px from one line to the next
MARGIN = 12  # px around what is on the card
WIDEST = 692  # px of a sheet that JupyterLab shows in full size in a window of 900 px; wider ones are scaled down
# of the font size: the average of mixed words in common sans-serif fonts; a fixed-width one has 0.6
CHARACTER, FIXED_CHARACTER, BOLD_CHARACTER = 0.56, 0.61, 0.6


@dataclass(frozen=True, slots=True)
class Piece:
    """SVG elements drawn from (0, 0), and the room in px that they take."""

    svg: str
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a picture shows at this moment.

    Args:
        title: it in one sentence, for screen readers and for a resting mouse.
        piece: what is drawn.
    """

    title: str
    piece: Piece


def paragraph(lines: Sequence[str], size: int = FONT_SIZE, is_code: bool = False, fill: str = INK) -> Piece:
    """Lines of words, one below the other, from the left.

    Args:
        lines: the words; blanks at the beginning of a line are kept.
        size: font size in px.
        is_code: in a font of fixed width.
        fill: the colour of the letters.

    Returns:
        The lines as a piece; its width is an estimate that real fonts stay within.

    Communication: none.

    Example:
        >>> paragraph(["one", "two"]).height
        36.0
    """
    step = LINE * size / FONT_SIZE
    rest = ' xml:space="preserve"' + (' font-family="monospace"' if is_code else "")
    drawn = [
        text(line, 0, (k + 0.5) * step, size, fill=fill, anchor="start", rest=rest) for k, line in enumerate(lines)
    ]
    width = max(map(len, lines), default=0) * size * (FIXED_CHARACTER if is_code else CHARACTER)
    return Piece("".join(drawn), width, len(lines) * step)


def inset(svg: str, scale: float = 1) -> Piece:
    """A whole `<svg>`, as tinyshard.draw makes it, as a piece of another one.

    Args:
        svg: with its width and height at its beginning.
        scale: how large it is drawn.

    Communication: none.

    Example:
        >>> inset('<svg width="20" height="10"></svg>')
        Piece(svg='<svg width="20" height="10"></svg>', width=20.0, height=10.0)
    """
    width, height = size_of(svg)
    drawn = svg if scale == 1 else f'<g transform="scale({number(scale)})">{svg}</g>'
    return Piece(drawn, width * scale, height * scale)


def size_of(svg: str) -> tuple[float, float]:
    """Width and height in px that an `<svg>` states at its beginning.

    Communication: none.

    Example:
        >>> size_of('<svg xmlns="…" width="20" height="10">')
        (20.0, 10.0)
    """
    found = re.match(r'<svg\b[^>]*?\bwidth="([\d.]+)" height="([\d.]+)"', svg)
    if found is None:
        raise ValueError(f"no width and height at the beginning of {svg[:60]!r}")
    return float(found[1]), float(found[2])


def stack(pieces: Sequence[Piece], gap: float = 10) -> Piece:
    """Pieces one below the other, with `gap` px between them.

    Communication: none.

    Example:
        >>> two = stack([Piece("<a/>", 10, 5), Piece("<b/>", 20, 5)])
        >>> two.width, two.height
        (20, 20.0)
    """
    drawn, y = [], 0.0
    for piece in pieces:
        drawn.append(_moved(piece, 0, y))
        y += piece.height + gap
    return Piece("".join(drawn), max(piece.width for piece in pieces), y - gap)


def beside(pieces: Sequence[Piece], gap: float = 24) -> Piece:
    """Pieces side by side, their tops level, with `gap` px between them.

    Communication: none.

    Example:
        >>> two = beside([Piece("<a/>", 10, 5), Piece("<b/>", 20, 8)])
        >>> two.width, two.height
        (54.0, 8)
    """
    drawn, x = [], 0.0
    for piece in pieces:
        drawn.append(_moved(piece, x, 0))
        x += piece.width + gap
    return Piece("".join(drawn), x - gap, max(piece.height for piece in pieces))


def card(heading: str, sheet: Sheet) -> str:
    """The finished picture: a sheet under its heading, on a card of its size.

    Args:
        heading: what the picture shows; written in bold above it.
        sheet: what is drawn.

    Returns:
        One `<svg>` without ids, scripts or style sheets; the same for the same input.

    Communication: none.

    Example:
        >>> size_of(card("nothing", Sheet("nothing is seen", Piece("", 100, 20))))
        (124.0, 72.0)
    """
    piece = stack([_bold(heading), sheet.piece])
    width, height = math.ceil(piece.width + 2 * MARGIN), math.ceil(piece.height + 2 * MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label={quoteattr(sheet.title)} '
        f'style="color:{_COLOUR};font-family:sans-serif;max-width:100%;height:auto">'
        f"<title>{escape(sheet.title)}</title>"
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" '
        f'style="fill:{PAPER};stroke:{_BORDER}"/>{_moved(piece, MARGIN, MARGIN)}</svg>'
    )


def error_sheet(heading: str, words: str) -> Sheet:
    """An error as a picture: its lines as they are printed.

    Communication: none.

    Example:
        >>> error_sheet("a picture", "it does not fit\\n  rule: 10 must be a multiple of 4").title
        'a picture: it does not fit'
    """
    lines = [part for line in words.splitlines() for part in folded(line)]
    refused = paragraph(["The library refuses this:"], fill=MUTED)
    return Sheet(f"{heading}: {words.splitlines()[0]}", stack([refused, paragraph(lines, is_code=True)]))


def folded(line: str, most: int = 84) -> list[str]:
    """Break a long line at blanks, and indent what follows under its first word.

    Args:
        line: one line, with the blanks at its beginning.
        most: characters that a line may have.

    Returns:
        The line, or the lines that it becomes; a word that is longer stays whole.

    Communication: none.

    Example:
        >>> folded("  got:  one two three", most=16)
        ['  got:  one two', '        three']
    """
    indent = " " * (len(line) - len(line.lstrip()) + 6)
    found = []
    while len(line) > most:
        cut = line.rfind(" ", len(indent), most)
        if cut < 0:
            break
        found.append(line[:cut])
        line = indent + line[cut + 1 :]
    return [*found, line]


def _bold(words: str) -> Piece:
    line = text(words, 0, LINE / 2, FONT_SIZE + 1, fill=INK, anchor="start", rest=' font-weight="bold"')
    return Piece(line, len(words) * (FONT_SIZE + 1) * BOLD_CHARACTER, LINE)


def _moved(piece: Piece, x: float, y: float) -> str:
    return f'<g transform="translate({number(x)} {number(y)})">{piece.svg}</g>'
