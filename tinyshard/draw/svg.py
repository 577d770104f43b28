"""The blocks of an array, and the devices of a mesh, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinyshard.core.layout import Layout
from tinyshard.draw.blocks import Block, Ids, heading, ids_text, slice_text
from tinyshard.draw.picture import EDGE, MOST, Style, picture

LONG_SIDE = 240  # px, of a panel alone
SMALL_SIDE = 100  # px, of each of several panels
MAX_SIDE = 320
LEAST_ASPECT = 0.25  # a longer array is drawn at this aspect
ROW_HEIGHT = 40  # px, of a 1-d array
MIN_CELL = (20, 20)  # px: two digits, one line; in an abbreviated run there is room for four digits
MIN_CELL_OF_MANY = (28, 20)


def sharding_svg(layout: Layout, shape: Sequence[int] | None) -> str:
    """Draw the blocks of an array and the devices that hold them.

    Args:
        layout: where the blocks are.
        shape: the global shape, of any rank: 1-d is a row, above 2 each block of the leading dims is a panel.
            None draws a sharding without an array: square blocks, no sizes.

    Returns:
        One `<svg>` element, at most about 450 px wide; the same for the same input.

    Communication: none.

    Example:
        >>> sharding_svg(Layout((0, 1), (2,), ((0,),)), (8,))[:4]
        '<svg'
    """
    if shape is not None and layout.ndim != len(shape):
        raise ValueError(f"the layout is for {layout.ndim} dims, the shape {shape} has {len(shape)}")
    sizes = layout.parts if shape is None else tuple(shape)
    platform = layout.platform.upper()

    def tip(block: Block, ids: Ids) -> str:
        return f"x[{slice_text(layout, shape, block) or '()'}] on {platform} {ids_text(ids)}"

    style = Style(
        sides=_sides([] if shape is None else [str(size) for size in sizes]),
        caption=lambda leading: heading(layout, shape, leading),
        tip=tip,
        cell=_cell_size(layout.parts, sizes, has_many=math.prod(layout.parts[:-2]) > 1),
        inset=0,
    )
    copies = len(layout.devices) // math.prod(layout.parts)
    words = f"array of shape {sizes}" if shape is not None else "sharding"
    parts = " by ".join(map(str, layout.parts)) or "1"
    where = f"{len(layout.devices)} {platform} devices, copies of each block: {copies}"
    title = f"{words} in {parts} blocks on {where}"
    return picture(layout, style, title)


def mesh_svg(shape: Sequence[int], ids: Sequence[int], axis_names: Sequence[str], platform: str) -> str:
    """Draw the devices of a mesh in their places.

    Args:
        shape: sizes of the axes; the last two are the rows and columns of a panel.
        ids: device ids, row-major over `shape`.
        axis_names: one name for each axis.
        platform: "cpu" or "gpu".

    Returns:
        One `<svg>` element; the same for the same input.

    Communication: none.

    Example:
        >>> mesh_svg((2, 2), (0, 1, 3, 2), ("a", "b"), "cpu")[:4]
        '<svg'
    """
    names = tuple(axis_names)
    layout = Layout(tuple(ids), tuple(shape), tuple((a,) for a in range(len(shape))), platform)

    def place(block: Block) -> str:
        return ", ".join(f"{name}={number}" for name, number in zip(names, block, strict=False))

    axes = [f"{name}: {size}" for name, size in zip(names, shape, strict=True)]
    style = Style(
        sides=_sides(axes),
        caption=place,
        tip=lambda block, owner: f"{platform.upper()} {owner[0]} at {place(block) or 'the only place'}",
        cell=(54, 36) if len(shape) < 3 and max(shape, default=1) <= 6 else (32, 26),
        inset=2,
    )
    title = f"mesh of {len(layout.devices)} {platform.upper()} devices, axes ({', '.join(axes)})"
    return picture(layout, style, title)


def _sides(words: list[str]) -> tuple[str, str]:
    """The words below and beside a panel: those of the last dim and of the one before it."""
    beside, below = ["", "", *words][-2:]
    return below, beside


def _cell_size(parts: Sequence[int], sizes: Sequence[int], has_many: bool) -> tuple[float, float]:
    """Give a panel the aspect of its two dims, within limits, and each cell the room of a short name."""
    n_rows, n_columns = (1, 1, *parts)[-2:]
    least = MIN_CELL_OF_MANY if max(n_rows, n_columns) > MOST else MIN_CELL
    n_rows, n_columns = (n if n <= MOST else 2 * EDGE for n in (n_rows, n_columns))
    long_side = SMALL_SIDE if has_many else LONG_SIDE
    if len(parts) == 0:
        return 160, ROW_HEIGHT
    if len(parts) == 1:
        width, height = float(long_side), float(ROW_HEIGHT)
    else:
        rows, columns = (max(size, 1) for size in sizes[-2:])
        width = long_side * min(1.0, max(columns / rows, LEAST_ASPECT))
        height = long_side * min(1.0, max(rows / columns, LEAST_ASPECT))
    width = min(max(width, n_columns * least[0]), MAX_SIDE)
    height = min(max(height, n_rows * least[1]), MAX_SIDE)
    return round(width / n_columns, 2), round(height / n_rows, 2)
