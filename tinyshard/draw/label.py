"""The names inside SVG cells: the largest size at which all names of a picture fit, or no names.

All cells of a picture have names in the same form. A name may break after a comma; if it fits at no size, the ids are
cut to the first and the last, and if that does not fit either, the cells have no names:

    "CPU 0,2,4,6"    ("CPU 0,", "2,4,6")    ("0,2,", "4,6")    ("0…6",)    ()
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinyshard.draw.blocks import Ids, ids_text

FONT_SIZES = (13, 11, 9, 8)
CHARACTER_WIDTH = 0.62  # of the font size; digits of common sans-serif fonts have 0.55 to 0.64
LINE_HEIGHT = 1.15
MARGIN = 2


@dataclass(frozen=True, slots=True)
class Labels:
    """The lines of every cell's name, and the font size in px."""

    size: int
    lines: dict[Ids, tuple[str, ...]]


def fitted(owners: Iterable[Ids], platform: str, width: float, height: float) -> Labels:
    """Choose names for cells of `width` times `height` px; one entry of `lines` for each of `owners`.

    Example:
        >>> fitted([(0,), (1,)], "cpu", width=60, height=20)
        Labels(size=13, lines={(0,): ('CPU 0',), (1,): ('CPU 1',)})
        >>> fitted([(0, 2, 4, 6)], "cpu", width=40, height=40)
        Labels(size=13, lines={(0, 2, 4, 6): ('0,2,', '4,6')})
        >>> fitted([(0,)], "cpu", width=5, height=5)
        Labels(size=8, lines={(0,): ()})
    """
    distinct = dict.fromkeys(owners)
    for texts in (ids_text, _ends):
        for size in FONT_SIZES:
            columns = int((width - 2 * MARGIN) / (CHARACTER_WIDTH * size))
            rows = int((height - MARGIN) / (LINE_HEIGHT * size))
            for prefix in (f"{platform.upper()} ", ""):
                lines = {ids: _broken(prefix + texts(ids), columns) for ids in distinct}
                if all(0 < len(x) <= rows for x in lines.values()):
                    return Labels(size, lines)
    return Labels(FONT_SIZES[-1], dict.fromkeys(distinct, ()))


def _ends(ids: Ids) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]}…{ids[-1]}"


def _broken(text: str, columns: int) -> tuple[str, ...]:
    """Break after commas so that each line has at most `columns` characters; () if that is impossible."""
    lines = [""]
    for word in text.replace(",", ",\n").split("\n"):
        if len(lines[-1]) + len(word) > columns and lines[-1]:
            lines.append("")
        lines[-1] += word
    return tuple(lines) if max(map(len, lines)) <= columns else ()
