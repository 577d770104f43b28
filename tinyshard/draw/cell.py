"""One cell of an SVG: a stripe for each owner, a border, a name, and a tooltip."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from tinyshard.draw.blocks import Ids
from tinyshard.draw.colours import device_colour, ink
from tinyshard.draw.label import CHARACTER_WIDTH, LINE_HEIGHT

MAX_STRIPES = 16
BORDER = "#222222"  # dark on every page: a light border between light fills would be invisible

Box = tuple[float, float, float, float]


def cell(box: Box, owners: Ids, lines: tuple[str, ...], font_size: int, tip: str, radius: float = 0) -> str:
    """Draw a block in `box` (x, y, width, height in px) with a stripe for each of its owners.

    Example:
        >>> cell((0, 0, 40, 20), (5,), ("5",), font_size=11, tip="x[0:4]").count("<text")
        1
    """
    x, y, width, height = box
    parts = [f"<g><title>{escape(tip)}</title>"]
    rectangle = f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    if radius:
        rectangle += f' rx="{number(radius)}"'
    border = f'stroke="{BORDER}"/>'
    if len(owners) == 1:
        parts.append(f'{rectangle} fill="{device_colour(owners[0])}" {border}')
    else:
        parts.extend(_stripes(box, owners))
        parts.append(f'{rectangle} fill="none" {border}')
    if lines:
        colour = ink(device_colour(owners[0])) if len(owners) == 1 else "#000000"
        if len(owners) > 1:
            parts.append(_plate(box, lines, font_size))
        first = y + height / 2 - (len(lines) - 1) * LINE_HEIGHT * font_size / 2
        for k, line in enumerate(lines):
            parts.append(text(line, x + width / 2, first + k * LINE_HEIGHT * font_size, font_size, fill=colour))
    parts.append("</g>")
    return "".join(parts)


def text(
    words: str,
    x: float,
    y: float,
    size: int,
    fill: str = "currentColor",
    anchor: str = "middle",
    rest: str = "",
) -> str:
    """Words centred on (x, y), or starting there with the anchor "start"; `rest` is more attributes."""
    # 0.35 of the size lowers the baseline so that digits are centred; viewers differ in dominant-baseline.
    return (
        f'<text x="{number(x)}" y="{number(y + 0.35 * size)}" font-size="{size}" fill="{fill}" '
        f'text-anchor="{anchor}"{rest}>{escape(words)}</text>'
    )


def number(value: float) -> str:
    """A coordinate with at most two decimals and no needless ones.

    Example:
        >>> number(3.0), number(2 / 3)
        ('3', '0.67')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _plate(box: Box, lines: tuple[str, ...], font_size: int) -> str:
    """A light background under a name, since no text colour is readable on stripes of every colour."""
    x, y, box_width, box_height = box
    width = min(max(map(len, lines)) * CHARACTER_WIDTH * font_size + 6, box_width - 1)
    height = min(len(lines) * LINE_HEIGHT * font_size + 3, box_height - 1)
    return (
        f'<rect x="{number(x + (box_width - width) / 2)}" y="{number(y + (box_height - height) / 2)}" '
        f'width="{number(width)}" height="{number(height)}" rx="3" fill="#ffffff" fill-opacity="0.85"/>'
    )


def _stripes(box: Box, owners: Ids) -> list[str]:
    """Cut the box by lines at 45 degrees into stripes of equal area, one for each owner."""
    x, y, width, height = box
    shown = owners[:MAX_STRIPES]
    found = []
    for k, device in enumerate(shown):
        low, high = (_cut(width, height, n / len(shown)) for n in (k, k + 1))
        corners = [_upper(width, low), _lower(height, low)]
        corners += [(0.0, height)] * (low < height < high) + [_lower(height, high)]
        corners += [_upper(width, high)] + [(width, 0.0)] * (low < width < high)
        points = " ".join(f"{number(x + u)},{number(y + v)}" for u, v in dict.fromkeys(corners))
        found.append(f'<polygon points="{points}" fill="{device_colour(device)}"/>')
    return found


def _cut(width: float, height: float, share: float) -> float:
    """The s for which the part u + v < s of a rectangle has `share` of its area."""
    if share > 0.5:
        return width + height - _cut(width, height, 1 - share)
    short = min(width, height)
    area = share * width * height
    # A triangle grows in the corner until it spans the short side; then a band of constant length follows.
    return math.sqrt(2 * area) if area <= short**2 / 2 else area / short + short / 2


def _upper(width: float, s: float) -> tuple[float, float]:
    """Where the line u + v = s leaves the rectangle at the top or right."""
    return (s, 0.0) if s <= width else (width, s - width)


def _lower(height: float, s: float) -> tuple[float, float]:
    """Where the line u + v = s leaves the rectangle at the left or bottom."""
    return (0.0, s) if s <= height else (s - height, height)
