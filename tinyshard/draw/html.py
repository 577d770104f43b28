"""A notebook's view of an array, a sharding or a mesh: a small table beside its SVG, as in dask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tinyshard.core.layout import Layout
from tinyshard.core.page import Drawing, page
from tinyshard.draw.blocks import ids_text
from tinyshard.draw.svg import mesh_svg, sharding_svg
from tinyshard.draw.text import sharding_text

LONGEST_LINE = 44  # characters that stay on one line
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def array_html(
    layout: Layout,
    shape: Sequence[int],
    dtype: str,
    nbytes_total: int,
    shard_nbytes: int,
    sharding: str,
    committed: bool,
) -> str:
    """The table and picture of an array.

    Args:
        layout: where the blocks are.
        shape: the global shape, of any rank.
        dtype: the name of the dtype, as "float32".
        nbytes_total: bytes of the array, copies not counted.
        shard_nbytes: bytes of the shard on one device.
        sharding: the repr of the sharding.
        committed: whether the user placed the array.

    Returns:
        One `<div>` without ids or scripts; the same for the same input.

    Communication: none.

    Example:
        >>> rows = Layout((0, 1), (2,), ((0,), ()))
        >>> html = array_html(rows, (4, 3), "float32", 48, 24, "P('x')", committed=True)
        >>> "float32[4, 3]" in html, "float32[2, 3]" in html, "24 B" in html
        (True, True, True)
    """
    shard = layout.shard_shape(shape)
    rows = [
        ("Array", f"{dtype}{_brackets(shape)}", human_bytes(nbytes_total)),
        ("Shard", f"{dtype}{_brackets(shard)}", f"{human_bytes(shard_nbytes)} per device"),
        ("Devices", _devices(layout), _copies(layout)),
        ("Sharding", sharding, ""),
        ("Committed", "yes" if committed else "no, it moves to meet committed operands", ""),
    ]
    return _beside(_table(rows), sharding_svg(layout, shape))


def sharding_html(layout: Layout, sharding: str, shape: Sequence[int] | None = None) -> str:
    """The table and picture of a sharding, for an array of `shape` or for any.

    Args:
        layout: where the blocks are.
        sharding: the repr of the sharding.
        shape: the global shape; None draws square blocks.

    Returns:
        One `<div>`; the same for the same input.

    Communication: none.

    Example:
        >>> "2 × 1" in sharding_html(Layout((0, 1), (2,), ((0,), ())), "P('x')")
        True
    """
    rows = [
        ("Sharding", sharding, ""),
        ("Blocks", " × ".join(map(str, layout.parts)) or "1", _copies(layout)),
        ("Devices", _devices(layout), ""),
    ]
    return _beside(_table(rows), sharding_svg(layout, shape))


def sharding_drawing(layout: Layout, shape: tuple[int, ...]) -> Drawing:
    """Which device holds which block of an array of this shape: boxes of text, and their picture.

    Communication: none.

    Example:
        >>> sharding_drawing(Layout((0, 1), (2,), ((0,),)), (8,))
        ┌───────┬───────┐
        │ CPU 0 │ CPU 1 │
        └───────┴───────┘
    """
    return Drawing(sharding_text(layout, shape), page(f'<div class="ts-wide">{sharding_svg(layout, shape)}</div>'))


def mesh_html(shape: Sequence[int], ids: Sequence[int], axis_names: Sequence[str], platform: str) -> str:
    """The table and picture of a mesh.

    Args:
        shape: sizes of the axes.
        ids: device ids, row-major over `shape`.
        axis_names: one name for each axis.
        platform: "cpu" or "gpu".

    Returns:
        One `<div>`; the same for the same input.

    Communication: none.

    Example:
        >>> "4 CPU" in mesh_html((2, 2), (0, 1, 2, 3), ("a", "b"), "cpu")
        True
    """
    rows = [(f"Axis {name}", str(size), "") for name, size in zip(axis_names, shape, strict=True)]
    rows.append(("Devices", f"{len(ids)} {platform.upper()}: {ids_text(tuple(ids))}", ""))
    return _beside(_table(rows), mesh_svg(shape, ids, axis_names, platform))


def human_bytes(nbytes: int) -> str:
    """A number of bytes in the unit that makes it shortest.

    Example:
        >>> human_bytes(24), human_bytes(268435456), human_bytes(1500)
        ('24 B', '256 MiB', '1.46 KiB')
    """
    power = 0
    while nbytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    words = f"{nbytes / 1024**power:.2f}".rstrip("0").rstrip(".")
    return f"{words} {_UNITS[power]}"


def _brackets(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _devices(layout: Layout) -> str:
    return f"{len(layout.devices)} {layout.platform.upper()}: {ids_text(layout.devices)}"


def _copies(layout: Layout) -> str:
    copies = len(layout.devices) // math.prod(layout.parts)
    return "1 copy" if copies == 1 else f"{copies} copies of each block"


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    lines = []
    for name, value, note in rows:
        of = ' class="ts-short"' if len(value) <= LONGEST_LINE else ""
        second = f'<td class="ts-short">{escape(note)}</td>' if note else ""
        span = "" if note else ' colspan="2"'
        lines.append(
            f'<tr><th scope="row">{escape(name)}</th><td{span}><code{of}>{escape(value)}</code></td>{second}</tr>'
        )
    return f'<table class="ts-facts"><tbody>{"".join(lines)}</tbody></table>'


def _beside(table: str, svg: str) -> str:
    return page(f'<div>{table}</div><div class="ts-wide">{svg}</div>', "ts-beside")
