"""What a device holds, by kind: a thick bar of what is counted in a program, below it a thin one by a formula."""

from __future__ import annotations

from collections.abc import Mapping

from course.by_kind import KINDS
from course.widgets.bars import NAMES_WIDTH, bar, legend
from course.widgets.card import INK, Piece
from tinyshard.draw.cell import text
from tinyshard.draw.colours import OKABE_ITO
from tinyshard.draw.html import human_bytes

__all__ = ["BAR_WIDTH", "THICK_AND_THIN", "WORDS_WIDTH", "kind_legend", "kind_rows"]

# sky blue, purple, vermilion, green, orange: distinct for any kind of colour vision; each also has its own height
COLOURS = (OKABE_ITO[0], OKABE_ITO[3], OKABE_ITO[6], OKABE_ITO[2], OKABE_ITO[1])
STYLES = tuple((kind, colour, 20 - 3 * k) for k, (kind, colour) in enumerate(zip(KINDS, COLOURS, strict=True)))
BAR_WIDTH, WORDS_WIDTH = 300, 240  # px
ROW, MODEL_ROW = 24, 12
THICK_AND_THIN = "thick: counted in the program; thin: by the formula"


def kind_legend() -> Piece:
    """A swatch and a word for each kind."""
    return legend(STYLES, size=12, height=22)


def kind_rows(
    name: str, counted: Mapping[str, int], modelled: Mapping[str, int], words: str, px_per_byte: float
) -> list[Piece]:
    """Both bars of one layout.

    Args:
        name: of the layout.
        counted: kind → bytes, by the program.
        modelled: the same, by the formula.
        words: behind the thick bar.
        px_per_byte: the scale.

    Communication: none.

    Example:
        >>> thick, thin = kind_rows("a", dict.fromkeys(KINDS, 8), dict.fromkeys(KINDS, 9), "40 B", 1.0)
        >>> thick.svg.count("<rect"), thin.height < thick.height
        (5, True)
    """
    beside = text(words, NAMES_WIDTH + BAR_WIDTH + 12, ROW / 2, 13, fill=INK, anchor="start")
    parts = [(kind, counted[kind], colour, height) for kind, colour, height in STYLES]
    by_formula = [(f"{kind}, by the formula", modelled[kind], colour, 6) for kind, colour, _ in STYLES]
    thick = bar(name, parts, "", human_bytes, px_per_unit=px_per_byte, row=ROW, width=BAR_WIDTH)
    thin = bar("", by_formula, "", human_bytes, px_per_unit=px_per_byte, row=MODEL_ROW, width=BAR_WIDTH)
    return [Piece(thick.svg + beside, thick.width + WORDS_WIDTH, thick.height), thin]
