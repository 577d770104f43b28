"""The boxes of `visualize_array_sharding`, in plain text without colour.

The sizes are JAX's, so a picture has the same lines as in JAX. A square array is about 10 high and
25 wide; a cell gets its share of that, and at least the room of its name:

    ┌──────────┬──────────┐
    │  CPU 0   │  CPU 1   │
    ├──────────┼──────────┤
    │  CPU 2   │  CPU 3   │
    └──────────┴──────────┘

In JAX: a picture of more than 80 columns omits the names; here columns become as narrow as the names allow, and
the picture may then be wider. Ranks above 2 are an error in JAX; here they are several pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.core.layout import Layout
from tinyshard.draw.blocks import Block, Ids, Panel, heading, ids_text, panels

BASE_HEIGHT = 10
WIDTH_PER_HEIGHT = 2.5  # about the aspect of a character
MIN_CELL_WIDTH = 9
MAX_WIDTH = 80


@dataclass(frozen=True, slots=True)
class _Cell:
    """A name and the blanks left and right of it."""

    entry: str
    left: int
    right: int

    @property
    def width(self) -> int:
        return self.left + len(self.entry) + self.right

    def line(self, width: int) -> str:
        """The name in the middle of `width` columns, an odd blank on the right."""
        spare = width - self.width
        before = self.left + spare // 2
        return " " * before + self.entry + " " * (width - before - len(self.entry))


def sharding_text(layout: Layout, shape: tuple[int, ...]) -> str:
    """Draw which device holds which block, as `jax.debug.visualize_sharding` prints it.

    Args:
        layout: where the blocks are; `layout.ndim` must be `len(shape)`.
        shape: the global shape, of any rank. Above 2, each block of the leading dims is a separate picture.

    Returns:
        Lines without a final newline. More than 64 rows or columns of blocks are abbreviated in the middle, and
        more than 16 ids in a cell too.

    Raises:
        ValueError: the layout has another rank than the shape.

    Communication: none.

    In JAX: rank 1 and 2 only, no dim of size 0.

    Example:
        >>> print(sharding_text(Layout((0, 1, 2, 3), (2, 2), ((0,), (1,))), (12, 12)))
        ┌──────────┬──────────┐
        │          │          │
        │  CPU 0   │  CPU 1   │
        │          │          │
        │          │          │
        ├──────────┼──────────┤
        │          │          │
        │  CPU 2   │  CPU 3   │
        │          │          │
        │          │          │
        └──────────┴──────────┘
    """
    if layout.ndim != len(shape):
        raise ValueError(f"the layout is for {layout.ndim} dims, the shape {shape} has {len(shape)}")
    owners = layout.owners()
    pieces = []
    for panel in panels(layout, most=64, edge=8, most_panels=16):
        if panel is None:
            pieces.append("…")
            continue
        if panel.leading:
            pieces.append(heading(layout, shape, panel.leading))
        pieces.append(_panel_text(panel, layout, shape, owners))
    return "\n".join(pieces)


def _panel_text(panel: Panel, layout: Layout, shape: Sequence[int], owners: dict[Block, Ids]) -> str:
    aspect = _aspect(shape)
    n_rows, n_columns = (1, 1, *layout.parts)[-2:]
    cell_height = int((1 / n_rows) * BASE_HEIGHT) if len(shape) >= 2 else 1
    cell_width = int((1 / n_columns) * int(BASE_HEIGHT * aspect) * WIDTH_PER_HEIGHT)
    cell_width = min(max(cell_width, MIN_CELL_WIDTH), MAX_WIDTH)
    above, odd = divmod(cell_height - 2, 2)
    below = max(above + odd, 0)
    above = max(above, 0)

    platform = layout.platform.upper()
    columns: list[list[_Cell]] = []
    for j in panel.columns:
        column = []
        for i in panel.rows:
            if i is None or j is None:
                column.append(_Cell("⋮" if j is not None else "⋱" if i is None else "…", 1, 1))
            else:
                entry = f"{platform} {ids_text(owners[panel.blocks[i, j]])}"
                column.append(_padded(entry, cell_width))
        columns.append(column)
    widths = [max(cell.width for cell in column) for column in columns]
    if sum(widths) + len(widths) + 1 > MAX_WIDTH:
        columns = [[_Cell(cell.entry, 0, 0) for cell in column] for column in columns]
        widths = _narrowed(widths, columns)

    rule = ["─" * width for width in widths]
    blank = [" " * width for width in widths]
    rows = []
    for k, i in enumerate(panel.rows):
        names = [column[k].line(width) for column, width in zip(columns, widths, strict=True)]
        room = (above, below) if i is not None else (0, 0)
        rows.append("\n".join("│" + "│".join(x) + "│" for x in [blank] * room[0] + [names] + [blank] * room[1]))
    between = "\n├" + "┼".join(rule) + "┤\n"
    return "┌" + "┬".join(rule) + "┐\n" + between.join(rows) + "\n└" + "┴".join(rule) + "┘"


def _aspect(shape: Sequence[int]) -> float:
    """Columns for each row. A dim of size 0 is drawn as one of size 1."""
    rows, columns = (max(size, 1) for size in (1, 1, *shape)[-2:])
    return columns / rows if len(shape) != 1 else 1 / columns


def _padded(entry: str, width: int) -> _Cell:
    left, odd = divmod(width - len(entry) - 2, 2)
    return _Cell(entry, max(left, 0), max(left + odd, 0))


def _narrowed(widths: list[int], columns: list[list[_Cell]]) -> list[int]:
    """Share the 80 columns evenly, with the remainder for the first ones, but keep a blank around each name."""
    share, over = divmod(MAX_WIDTH - len(widths) - 1, len(widths))
    fair = [share + (k < over) for k in range(len(widths))]
    needed = [max(len(cell.entry) for cell in column) + 2 for column in columns]
    return [min(width, max(f, n)) for width, f, n in zip(widths, fair, needed, strict=True)]
