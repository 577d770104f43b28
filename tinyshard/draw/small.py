"""Small pictures of layouts, for tables: the blocks of a tensor in the colours of the devices that hold them.

    ▦  a cell for each block, in the colour of its device; a strip for 1-d, a smaller one for a number
    ∷  a grey cell with spots where several devices hold a copy of the block
    +  a badge where each device has a part of a sum, or of another reduction
    ▪▪ squares apart where each device has a value of its own, as in a mapped function

A picture that is shown twice stands in the page once: `Pictures` gives a reference to it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import quoteattr

from tinyshard.core.layout import Layout
from tinyshard.draw.blocks import Ids, shown
from tinyshard.draw.cell import BORDER, number
from tinyshard.draw.colours import device_colour, ink

WIDTH, HEIGHT, LINE = 40, 26, 13  # px of a matrix; of a vector's height
MOST, EDGE = 8, 2  # rows or columns that are shown whole; how many stay at each end of more
GAP, MOST_GAPS = 3, 0.3  # px between blocks of the leading dims, and for those left out; of a side all gaps together
BADGES = {"sum": "+", "avg": "÷", "max": "↑", "min": "↓", "product": "×"}


class Pictures:
    """The pictures of one page; each is drawn once.

    Example:
        >>> pictures = Pictures()
        >>> first = pictures.of(Layout((0, 1), (2,), ((0,),)), (), "rows in two")
        >>> first == pictures.of(Layout((0, 1), (2,), ((0,),)), (), "rows in two"), pictures.drawn().count("<symbol")
        (True, 1)
    """

    def __init__(self) -> None:
        self._drawn: dict[str, str] = {}  # id -> symbol

    def of(self, layout: Layout, partial: Sequence[str], words: str) -> str:
        """A picture of a tensor under a layout, whose devices have parts that these reductions combine."""
        cells, width, height = _cells(layout)
        if partial:
            cells += _badge(BADGES.get(partial[0], "?"), width, height)
        return self._reference(cells, width, height, words)

    def of_own(self, devices: Sequence[int], words: str) -> str:
        """A picture of a value that each device has for itself."""
        numbers, side, left = shown(len(devices), MOST, EDGE), 6, 0.0
        cells = ""
        for i in numbers:
            if i is not None:
                cells += _rect(left + 0.5, 3.5, side, side, devices[i])
            left += side + 1.5 if i is not None else GAP
        return self._reference(cells, left, LINE, words)

    def drawn(self) -> str:
        """What the references refer to, to be put into the page."""
        if not self._drawn:
            return ""
        hidden = "position:absolute;width:0;height:0"
        return f'<svg style="{hidden}" aria-hidden="true">{"".join(self._drawn.values())}</svg>'

    def _reference(self, cells: str, width: float, height: float, words: str) -> str:
        # the same picture has the same id in every output: whichever of them a browser finds is right
        id = "ts-" + hashlib.sha256(cells.encode()).hexdigest()[:8]
        size = f"{number(width)} {number(height)}"
        self._drawn.setdefault(id, f'<symbol id="{id}" viewBox="0 0 {size}">{cells}</symbol>')
        return (
            f'<svg class="ts-pic" width="{number(width)}" height="{number(height)}" role="img" '
            f'aria-label={quoteattr(words)}><use href="#{id}"/></svg>'
        )


def _cells(layout: Layout) -> tuple[str, float, float]:
    """The cells of a layout, and the width and height that they take."""
    parts, owners = layout.parts, layout.owners()
    width = WIDTH if layout.ndim else 2 * LINE
    height = HEIGHT if layout.ndim > 1 else LINE
    leading, n_columns = list(itertools.product(*map(range, parts[:-1]))), (*parts, 1)[layout.ndim - 1] if parts else 1
    group = parts[-2] if layout.ndim > 1 else 1  # rows that belong together
    rows, columns = _ticks(len(leading), height, group), _ticks(n_columns, width, n_columns)
    drawn = ""
    for (i, top, tall), (j, left, wide) in itertools.product(rows, columns):
        block = (*leading[i], j) if parts else ()
        drawn += _held_by(owners[block], left, top, wide, tall)
    return drawn, width, height


def _held_by(ids: Ids, left: float, top: float, wide: float, tall: float) -> str:
    """A block: all of the colour of its device, or with a spot for each device that has a copy."""
    if len(ids) == 1:
        return _rect(left, top, wide, tall, ids[0])
    kept = [device for device in shown(len(ids), MOST, EDGE) if device is not None]
    columns = max(range(1, len(kept) + 1), key=lambda n: min(wide / n, tall / math.ceil(len(kept) / n)))
    rows = math.ceil(len(kept) / columns)
    step_x, step_y = wide / columns, tall / rows
    width, height = 0.76 * step_x, 0.66 * step_y
    drawn = f'<path d="M{number(left)} {number(top)}h{number(wide)}v{number(tall)}h-{number(wide)}z" '
    drawn += 'fill="#888" fill-opacity=".16" stroke="#888"/>'
    for k, i in enumerate(kept):
        x, y = left + (k % columns + 0.5) * step_x - width / 2, top + (k // columns + 0.5) * step_y - height / 2
        drawn += f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        drawn += f'rx="{number(min(width, height, 6) / 2)}" fill="{device_colour(ids[i])}"/>'
    return drawn


def _ticks(count: int, size: float, group: int) -> list[tuple[int, float, float]]:
    """Number, beginning and length of each row or column that is shown."""
    numbers = shown(count, MOST, EDGE)
    gaps = [
        float(before is None or i is None or (i % group == 0 and group < count))
        for before, i in itertools.pairwise(numbers)
    ]
    gaps = [gap * min(GAP, MOST_GAPS * size / max(1, sum(gaps))) for gap in gaps]
    cells = sum(i is not None for i in numbers)
    each, at, found = (size - 1 - sum(gaps)) / cells, 0.5, []
    for i, gap in zip(numbers, [0, *gaps], strict=True):
        at += gap
        if i is not None:
            found.append((i, round(at, 2), round(each, 2)))
            at += each
    return found


def _rect(x: float, y: float, width: float, height: float, device: int) -> str:
    return (
        f'<path d="M{number(x)} {number(y)}h{number(width)}v{number(height)}h-{number(width)}z" '
        f'fill="{device_colour(device)}" stroke="{BORDER}"/>'
    )


def _badge(sign: str, width: float, height: float) -> str:
    x, y = width / 2, height / 2
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="5.5" fill="#fff" stroke="{BORDER}"/>'
        f'<text x="{number(x)}" y="{number(y + 4)}" font-size="12" font-weight="700" text-anchor="middle" '
        f'fill="#111" font-family="sans-serif">{sign}</text>'
    )


def devices_of(sizes: Sequence[int], ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Row, column and id of each device of a mesh, as a flat grid: the last axis from left to right."""
    columns = sizes[-1] if sizes else 1
    for position, device in enumerate(ids):
        yield *divmod(position, columns), device


def legend(sizes: Sequence[int], ids: Sequence[int], words: str) -> str:
    """The colour of each device, at its place of the mesh; "" for more than can be told apart.

    Example:
        >>> legend((2,), (0, 1), "two devices").count("<rect")
        2
    """
    if len(ids) > 4 * MOST:
        return ""
    columns = sizes[-1] if sizes else 1
    width, height = 24 * columns + 1, 17 * math.ceil(len(ids) / columns) + 1
    cells = "".join(_numbered(column, row, device) for row, column, device in devices_of(sizes, ids))
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label={quoteattr(words)} '
        f'style="max-width:100%;vertical-align:middle">{cells}</svg>'
    )


def _numbered(column: int, row: int, device: int) -> str:
    fill = device_colour(device)
    return (
        f'<rect x="{24 * column + 0.5}" y="{17 * row + 0.5}" width="22" height="15" rx="2" fill="{fill}" '
        f'stroke="{BORDER}"/><text x="{24 * column + 11.5}" y="{17 * row + 12}" font-size="11" text-anchor="middle" '
        f'font-family="sans-serif" fill="{ink(fill)}">{device}</text>'
    )
