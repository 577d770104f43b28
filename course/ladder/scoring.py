"""What a learner sees of a rung: the picture of who holds what, and the score of an answer beside par."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from course.ladder.rung import Answer, Counts, Rung, counts_of
from tinyshard.compile.compiled import Compiled
from tinyshard.core.page import Cell, Content, Drawing, page, table
from tinyshard.draw.colours import device_colour, ink

__all__ = ["MEASURES", "Score", "picture", "score_of", "untouched"]

# the count, what it is called, and where it is too large
MEASURES = {
    "nbytes": "bytes sent",
    "peak_nbytes": "peak bytes",
    "rounds": "rounds",
    "flops": "operations",
}
COLUMN, NAME = 8, 22  # characters of a device, and of a value's name, in the picture as text
NEUTRAL = "rgba(128,128,128,.22)"


@dataclass(frozen=True)
class Score:
    """How an answer does on a rung.

    Attributes:
        rung: which one.
        compiled: the program that every device runs.
        wrong: what differs from the wanted values; empty where nothing does.
        unwanted: a kind of collective that the rung does not allow; empty where there is none.
        counts: what the busiest device uses.
    """

    rung: Rung
    compiled: Compiled
    wrong: str
    unwanted: str
    counts: Counts

    @property
    def is_par(self) -> bool:
        """Whether the values are right, by the means that the rung allows, and no count is above par."""
        return not (self.wrong or self.unwanted or self.rung.over_par(self.counts))

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """What is scored, what it came to, par, and a word on it."""
        found = [("values", self.wrong or "right", "right", "no" if self.wrong else "yes")]
        if self.rung.kinds:
            found.append(("collectives", self.unwanted or "ppermute", "ppermute", "no" if self.unwanted else "yes"))
        for name, most in vars(self.rung.par).items():
            if most is not None:
                got = getattr(self.counts, name)
                word = "above par" if got > most else "par" if got == most else "below par"
                found.append((MEASURES[name], f"{got:,}", f"{most:,}", word))
        return found

    def __repr__(self) -> str:
        return _text(self.rung, self.rows)

    def _repr_html_(self) -> str:
        return _html(self.rung, self.rows)


def score_of(rung: Rung, answer: Answer) -> Score:
    """Compile the answer for eight devices, run it, and count what its program uses.

    Raises:
        What the answer raises.

    Communication: what the answer sends.
    """
    compiled = rung.compile(answer)
    return Score(rung, compiled, rung.differs(compiled), rung.unwanted(compiled), counts_of(compiled))


def untouched(rung: Rung) -> Drawing:
    """The card of a rung that has no answer yet: par alone."""
    rows = [("values", "", "right", "")]
    rows += [("collectives", "", "ppermute", "")] if rung.kinds else []
    rows += [(MEASURES[name], "", f"{most:,}", "") for name, most in vars(rung.par).items() if most is not None]
    return Drawing(_text(rung, rows), _html(rung, rows))


def _text(rung: Rung, rows: Sequence[tuple[str, str, str, str]]) -> str:
    lines = [f"{rung.id} {rung.name}", f"{'':12}{'yours':>14}{'par':>14}"]
    for what, got, par, word in rows:
        shown = got if len(got) <= 14 else ""
        lines.append(f"{what:12}{shown:>14}{par:>14}  {word}".rstrip())
        if got and not shown:
            lines.append(f"  {got}")
    return "\n".join(lines)


def _html(rung: Rung, rows: Sequence[tuple[str, str, str, str]]) -> str:
    return page(table(f"{rung.id} {rung.name}", ("", ">yours", ">par", ""), rows))


def picture(rung: Rung) -> Drawing:
    """Who holds what: a column for each device, a row for each value, before and after.

    Communication: none.

    Example:
        >>> from course.ladder import RUNGS
        >>> print(picture(RUNGS["18.2"]))
        18.2 reduce-scatter
        device                0       1       2       3       4       5       6       7
        before x              0.0…0.7 1.0…1.7 2.0…2.7 3.0…3.7 4.0…4.7 5.0…5.7 6.0…6.7 7.0…7.7
        after  result         Σ.0     Σ.1     Σ.2     Σ.3     Σ.4     Σ.5     Σ.6     Σ.7
    """
    numbers = [str(device) for device in range(8)]
    rows = [("before", *row) for row in rung.given] + [("after", *row) for row in rung.wanted]
    names = [f"{when:6} {name}" for when, name, _ in rows]
    width = max(NAME, *(len(name) + 1 for name in names))
    lines = [f"{rung.id} {rung.name}", _columns("device", numbers, width)]
    lines += [_columns(name, [_short(held) for held in row[2]], width) for name, row in zip(names, rows, strict=True)]
    cells: list[tuple[Content, ...]] = [
        (when, name, *(Cell(f'<span class="ts-flow">{"".join(map(_chip, held))}</span>') for held in per_device))
        for when, name, per_device in rows
    ]
    head = ("", "", *(f"device {number}" for number in numbers))
    return Drawing("\n".join(lines), page(table(f"{rung.id} {rung.name}", head, cells)))


def _columns(name: str, cells: Sequence[str], width: int) -> str:
    return (f"{name:{width}}" + "".join(f"{cell:{COLUMN}}" for cell in cells)).rstrip()


def _short(held: Sequence[str]) -> str:
    return " ".join(held) if len(held) < 2 else f"{held[0]}{'…' if len(held) > 2 else ' '}{held[-1]}"


def _chip(word: str) -> str:
    """A value in the colour of the device, chunk or stage that its first number names; sums and runs are grey."""
    number = re.search(r"\d+", word)
    fill = NEUTRAL if number is None or word[0] in "Σ" or "…" in word else device_colour(int(number[0]))
    colour = "inherit" if fill == NEUTRAL else ink(fill)
    return f'<span class="ts-chip ts-small" style="background:{fill};color:{colour}">{escape(word)}</span>'
