"""Which blocks a picture shows: one panel of rows and columns for each block of the leading dims.

A picture is flat, so a tensor of any rank is shown as 2-d panels of its last two dims. A 1-d tensor is one
row, a number one cell. Long runs of blocks are abbreviated in the middle:

    shown(100, most=64, edge=2)    0, 1, None, 98, 99        None: blocks are left out here
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.core.layout import Layout

Block = tuple[int, ...]
Ids = tuple[int, ...]

COMPLETE_IDS = 16


@dataclass(frozen=True, slots=True)
class Panel:
    """The blocks of the last two dims, for one block of the leading dims.

    Args:
        leading: the block of the leading dims; () where there are none.
        rows: block numbers from top to bottom; None where some are left out.
        columns: block numbers from left to right; None where some are left out.
        blocks: for each (row, column) that is shown, its block in the layout.
    """

    leading: Block
    rows: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    blocks: dict[tuple[int, int], Block]


def shown(count: int, most: int, edge: int) -> tuple[int | None, ...]:
    """The numbers 0..count-1, or beyond `most` of them the first and last `edge` with None between.

    Example:
        >>> shown(3, most=4, edge=1), shown(9, most=4, edge=1)
        ((0, 1, 2), (0, None, 8))
    """
    if count <= most:
        return tuple(range(count))
    return (*range(edge), None, *range(count - edge, count))


def panels(layout: Layout, most: int, edge: int, most_panels: int) -> list[Panel | None]:
    """The panels of a tensor; None where some are left out.

    Args:
        layout: where the blocks are.
        most: the largest number of rows or columns that is shown whole.
        edge: how many rows and columns stay at each end of longer ones.
        most_panels: the largest number of panels that is shown whole; 2 stay at each end of more.

    Example:
        >>> cube = Layout(devices=(0, 1), axes=(2,), dims=((0,), (), ()))
        >>> [panel.blocks for panel in panels(cube, most=64, edge=8, most_panels=16)]
        [{(0, 0): (0, 0, 0)}, {(0, 0): (1, 0, 0)}]
    """
    leading, flat = layout.parts[:-2], layout.parts[-2:]
    missing = 2 - len(flat)
    n_rows, n_columns = (1,) * missing + flat
    rows, columns = shown(n_rows, most, edge), shown(n_columns, most, edge)
    cells = [(i, j) for i in rows for j in columns if i is not None and j is not None]
    every = list(itertools.product(*map(range, leading)))
    found: list[Panel | None] = []
    for number in shown(len(every), most_panels, edge=2):
        if number is None:
            found.append(None)
        else:
            blocks = {cell: every[number] + cell[missing:] for cell in cells}
            found.append(Panel(every[number], rows, columns, blocks))
    return found


def slice_text(layout: Layout, shape: Sequence[int] | None, block: Block) -> str:
    """The slices of a block as text, `0:4, :`; without a shape the block's number, `1 of 4`.

    Example:
        >>> rows = Layout(devices=(0, 1), axes=(2,), dims=((0,), ()))
        >>> slice_text(rows, (8, 3), (1, 0)), slice_text(rows, None, (1, 0))
        ('4:8, :', '2 of 2, :')
    """
    words = []
    for dim, (number, parts) in enumerate(zip(block, layout.parts, strict=False)):
        if parts == 1:
            words.append(":")
        elif shape is None:
            words.append(f"{number + 1} of {parts}")
        else:
            step = shape[dim] // parts
            words.append(f"{number * step}:{(number + 1) * step}")
    return ", ".join(words)


def heading(layout: Layout, shape: Sequence[int] | None, leading: Block) -> str:
    """The slice of the leading dims that a panel shows; "" if there are none.

    Example:
        >>> cube = Layout(devices=(0, 1), axes=(2,), dims=((0,), (), ()))
        >>> heading(cube, (8, 3, 3), leading=(1,))
        'x[4:8, ...]'
    """
    return f"x[{slice_text(layout, shape, leading)}, ...]" if leading else ""


def ids_text(ids: Ids) -> str:
    """Ids with commas, complete up to 16, else the first three, the last, and how many there are.

    Example:
        >>> ids_text((0, 2, 4)), ids_text(tuple(range(4096)))
        ('0,2,4', '0,1,2,…,4095 (4096)')
    """
    if len(ids) <= COMPLETE_IDS:
        return ",".join(map(str, ids))
    return f"{ids[0]},{ids[1]},{ids[2]},…,{ids[-1]} ({len(ids)})"
