"""Arranges panels of cells in one SVG: positions, captions, sizes at the sides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from tinyshard.core.layout import Layout
from tinyshard.draw.blocks import Block, Ids, Panel, panels
from tinyshard.draw.cell import cell, number, text
from tinyshard.draw.label import CHARACTER_WIDTH, Labels, fitted

MOST, EDGE = 16, 5  # rows or columns that are all shown; beyond that, how many are shown at each end
MOST_PANELS = 9
WIDEST = 420  # px, for several panels side by side
LEFT_OUT = 18  # px, for the row or column in place of those left out
GAP = 14
CAPTION = 11  # px, the font size of captions and sizes


@dataclass(frozen=True, slots=True)
class Style:
    """The differences between the picture of an array and that of a mesh.

    Args:
        sides: labels for the bottom and the right side.
        caption: text above a panel, from its leading block.
        tip: the tooltip of a cell.
        cell: width and height of a cell in px.
        inset: px left free around a cell.
    """

    sides: tuple[str, str]
    caption: Callable[[Block], str]
    tip: Callable[[Block, Ids], str]
    cell: tuple[float, float]
    inset: float


def picture(layout: Layout, style: Style, title: str) -> str:
    """Draw the panels side by side, in as many rows as they need; `title` is for screen readers."""
    owners = layout.owners()
    every = panels(layout, MOST, EDGE, MOST_PANELS)
    labels = fitted(
        [owners[block] for panel in every if panel for block in panel.blocks.values()],
        layout.platform,
        style.cell[0] - 2 * style.inset,
        style.cell[1] - 2 * style.inset,
    )
    body: list[str] = []
    x = y = GAP / 2
    rightmost = lowest = 0.0
    for panel in every:
        if panel and x > GAP and x + _width(panel, style) > WIDEST:
            x, y = GAP / 2, lowest + GAP
        if panel is None:
            body.append(text("…", x + LEFT_OUT, y + 50, 18))
            x += 2 * LEFT_OUT + GAP
        else:
            elements, right, lowest_here = _panel(panel, style, owners, labels, x, y)
            body.extend(elements)
            lowest, x = max(lowest, lowest_here), right + GAP
        rightmost = max(rightmost, x)
    width, height = math.ceil(rightmost - GAP / 2), math.ceil(lowest + GAP / 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(title)} '
        'style="color:var(--jp-ui-font-color1,currentColor);font-family:sans-serif">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def _panel(
    panel: Panel, style: Style, owners: dict[Block, Ids], labels: Labels, left: float, top: float
) -> tuple[list[str], float, float]:
    """The elements of one panel whose corner is at (left, top), and its right and lower ends."""
    elements: list[str] = []
    whole_width = _width(panel, style)
    caption = style.caption(panel.leading)
    if caption:
        elements.append(text(caption, left, top + CAPTION / 2, CAPTION, anchor="start"))
        top += CAPTION + 6
    columns, right = _ticks(panel.columns, style.cell[0], left)
    rows, bottom = _ticks(panel.rows, style.cell[1], top)
    for i, (y, height) in zip(panel.rows, rows, strict=True):
        for j, (x, width) in zip(panel.columns, columns, strict=True):
            if i is None or j is None:
                mark = "⋮" if j is not None else "⋱" if i is None else "…"
                elements.append(text(mark, x + width / 2, y + height / 2, CAPTION))
                continue
            block = panel.blocks[i, j]
            ids, inset = owners[block], style.inset
            box = (x + inset, y + inset, width - 2 * inset, height - 2 * inset)
            elements.append(cell(box, ids, labels.lines[ids], labels.size, style.tip(block, ids), radius=2 * inset))
    below, beside = style.sides
    # centred, but words that are longer than the cells are left-aligned with them
    x = max((left + right) / 2, left + _length(below) / 2)
    y = max((top + bottom) / 2, top + _length(beside) / 2)
    bottom = max(bottom, top + _length(beside))
    if below:
        bottom += CAPTION + 5
        elements.append(text(below, x, bottom - CAPTION / 2, CAPTION))
    if beside:
        right += CAPTION + 5
        turned = f' transform="rotate(-90 {number(right - CAPTION / 2)} {number(y)})"'
        elements.append(text(beside, right - CAPTION / 2, y, CAPTION, rest=turned))
    return elements, left + whole_width, bottom


def _width(panel: Panel, style: Style) -> float:
    """The width of a panel with its caption, the words beside it, and those below it."""
    beside = CAPTION + 5 if style.sides[1] else 0
    cells = _ticks(panel.columns, style.cell[0], 0)[1]
    return max(cells + beside, _length(style.caption(panel.leading)), _length(style.sides[0]))


def _length(words: str) -> float:
    """The width of a caption or of the words at a side, in px."""
    return CHARACTER_WIDTH * CAPTION * len(words)


def _ticks(numbers: tuple[int | None, ...], size: float, start: float) -> tuple[list[tuple[float, float]], float]:
    """The start and size of each row or column, and the end of the last one."""
    found = []
    for n in numbers:
        extent = LEFT_OUT if n is None else size
        found.append((start, extent))
        start += extent
    return found, start
