"""A program as a notebook shows it: a table of steps, each with small pictures of what it takes and makes.

    x @ y, in line 3 of a cell        the user's line; below it the steps that it became
    mm          x  up      %3         what it takes, what it makes, a picture of the layout of each
    all_reduce  %3         %4         in the colour of its kind: along which axes, and the bytes that a device sends
                                      beside it a bar: what a device holds while the step runs

The records below are all that it needs; `compile.drawn` fills them in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from tinyshard.core.layout import Layout
from tinyshard.core.page import Cell, Content, bar, html_of, marked, page, scrolled
from tinyshard.draw.html import human_bytes
from tinyshard.draw.small import Pictures, legend
from tinyshard.draw.tables import chip

MOST_OPEN, FIRST, LAST = 120, 60, 40  # steps that are shown unfolded; of more the first and the last ones
MOST_FOLDED = 400


@dataclass(frozen=True, slots=True)
class Variable:
    """A value of a program.

    Attributes:
        name: "%3", or the name of an argument.
        type: what one device has of it, "f32[4, 8]".
        whole: the whole tensor with the axes that cut it, "f32[8@data, 8]"; "" where it has none.
        layout: how that is cut; None where each device has a value of its own.
        partial: the reductions that its parts still need.
        origin: of an input, where it comes from.
    """

    name: str
    type: str
    whole: str = ""
    layout: Layout | None = None
    partial: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program, or an op on whole tensors.

    Attributes:
        op: its short name, "mm".
        name: its whole name.
        takes: its arguments in order: values, and words for what is no value.
        makes: its results.
        kind: of a collective, its kind; else "".
        over: of a collective, the axes.
        sent: bytes that the busiest device sends; None for an op that exchanges nothing.
        why: for what it gathers an operand.
        held: bytes that a device holds while it runs; None where that is not known.
        line: the user's line, "" where it is not known.
        place: where that line is.
        bodies: what control flow runs.
    """

    op: str
    name: str
    takes: tuple[Variable | str, ...]
    makes: tuple[Variable, ...]
    kind: str = ""
    over: str = ""
    sent: int | None = None
    why: str = ""
    held: int | None = None
    line: str = ""
    place: str = ""
    bodies: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A program, or the body of a loop or a branch in one.

    Attributes:
        heading: what it is, in a few words.
        inputs: the values that it is given.
        steps: in order.
        returns: the values that it returns.
    """

    heading: str
    inputs: tuple[Variable, ...]
    steps: tuple[Step, ...]
    returns: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A program with what stands above its table.

    Attributes:
        section: the program.
        remarks: what it costs, in words.
        devices: ids of the devices, in the order of the mesh; () for a program on whole tensors.
        axes: names and sizes of the axes.
        peak: the most bytes that a device holds.
    """

    section: Section
    remarks: tuple[str, ...]
    devices: tuple[int, ...] = ()
    axes: tuple[tuple[str, int], ...] = ()
    peak: int = 0


def program_html(drawn: Drawn) -> str:
    """One `<div>` with the program; the same for the same program.

    Communication: none.
    """
    return _Page(drawn).html()


class _Page:
    """The tables of one program: their pictures are drawn once, their columns are those that any step fills."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._pictures = Pictures()
        steps = list(_all(drawn.section))
        self._sends = any(step.sent is not None for step in steps)
        self._holds = any(step.held is not None for step in steps)

    def html(self) -> str:
        drawn = self._drawn
        said = "".join(f'<div class="ts-soft">{escape(remark)}</div>' for remark in drawn.remarks)
        body = self._section(drawn.section)
        devices = ""
        if drawn.axes:
            words = "devices " + ", ".join(map(str, drawn.devices)) + " in their colours"
            grid = legend([size for _, size in drawn.axes], drawn.devices, words)
            devices = f'<div class="ts-mesh"><span class="ts-soft">devices</span>{grid}</div>' if grid else ""
        heading = f'<div class="ts-head">{escape(drawn.section.heading)}</div>'
        return page(f"{heading}{said}{devices}{self._pictures.drawn()}{body}", "ts-program")

    # ---- tables -----------------------------------------------------------------------------------------------

    def _section(self, section: Section) -> str:
        steps = section.steps
        if len(steps) <= MOST_OPEN:
            return self._table(section, steps, first=True, last=True)
        folded = steps[FIRST:-LAST]
        kept, left = folded[:MOST_FOLDED], len(folded) - MOST_FOLDED
        more = f"<p>{left:,} more steps stand in the text: print(program)</p>" if left > 0 else ""
        return (
            self._table(section, steps[:FIRST], first=True, last=False)
            + f"<details><summary>{len(folded):,} more steps{_in_words(folded)}</summary>"
            + self._table(section, kept, first=False, last=False)
            + f"{more}</details>"
            + self._table(section, steps[-LAST:], first=False, last=True)
        )

    def _table(self, section: Section, steps: Sequence[Step], *, first: bool, last: bool) -> str:
        head = ["step", "takes", "makes"]
        head += [">bytes sent"] if self._sends else []
        head += [">memory of a device"] if self._holds else []
        parts = []
        if first and section.inputs:
            shown = _flow(self._variable(x, is_result=True) for x in section.inputs)
            parts.append(f'<tr><th scope="row">inputs</th><td colspan="{len(head) - 1}">{shown}</td></tr>')
        for (line, place), several in itertools.groupby(steps, key=lambda step: (step.line, step.place)):
            if line:
                where = f' <span class="ts-soft ts-small">{escape(place)}</span>' if place else ""
                parts.append(
                    f'<tr class="ts-line"><th colspan="{len(head)}" scope="rowgroup"><code>{escape(line)}</code>'
                    f"{where}</th></tr>"
                )
            for step in several:
                parts.append(self._row(step))
                parts += (self._nested(body, len(head)) for body in step.bodies)
        if last:
            returned = _flow(map(self._variable, section.returns))
            parts.append(f'<tr><th scope="row">returns</th><td colspan="{len(head) - 1}">{returned}</td></tr>')
        names = "".join(f'<th scope="col"{_number(name)}>{escape(name.lstrip(">"))}</th>' for name in head)
        body = f'<table class="ts-table"><thead><tr>{names}</tr></thead><tbody>{"".join(parts)}</tbody></table>'
        return scrolled(body, section.heading)

    def _nested(self, body: Section, columns: int) -> str:
        inner = f"<details open><summary>{escape(body.heading)}</summary>{self._section(body)}</details>"
        return f'<tr><td class="ts-body" colspan="{columns}">{inner}</td></tr>'

    def _row(self, step: Step) -> str:
        said = "\n".join(filter(None, [step.name, f"{step.place}: {step.line}" if step.line else "", step.why]))
        cells: list[Content] = [
            Cell(_flow(map(self._taken, step.takes))),
            Cell(_flow(self._variable(x, is_result=True) for x in step.makes) or "nothing"),
        ]
        if self._sends:
            cells.append("" if step.sent is None else step.sent)
        if self._holds:
            held = step.held or 0
            is_top = held == self._drawn.peak
            words = human_bytes(held)
            cells.append("" if step.held is None else bar(held, self._drawn.peak, words, is_top=is_top))
        numbers = ["", "", ' class="ts-n"', ' class="ts-n"']
        inner = "".join(f"<td{of}>{html_of(cell)}</td>" for of, cell in zip(numbers, cells, strict=False))
        return f'<tr title="{escape(said)}"><th scope="row" class="ts-op">{_op(step)}</th>{inner}</tr>'

    # ---- values -----------------------------------------------------------------------------------------------

    def _taken(self, x: Variable | str) -> str:
        return f'<span class="ts-soft ts-arg">{escape(x)}</span>' if isinstance(x, str) else self._variable(x)

    def _variable(self, x: Variable, *, is_result: bool = False) -> str:
        words = ", ".join(filter(None, [x.type, x.whole and f"of {x.whole}", *(_part(op) for op in x.partial)]))
        picture = ""
        if x.layout is not None:
            picture = self._pictures.of(x.layout, x.partial, words)
        elif self._drawn.devices:
            picture = self._pictures.of_own(self._drawn.devices, words)
        if not is_result:
            return f'<span class="ts-value" title="{escape(words)}">{picture}<code>{escape(x.name)}</code></span>'
        whole = f"of {x.whole}" if x.whole != x.type and x.whole else ""
        below = ", ".join(filter(None, [whole, *map(_part, x.partial), x.origin]))
        second = f'<br><span class="ts-soft ts-small">{escape(below)}</span>' if below else ""
        named = f"<code>{escape(x.name)} {escape(x.type)}</code>{second}"
        return f'<span class="ts-value">{picture}<span>{named}</span></span>'


def _all(section: Section) -> list[Step]:
    return [one for step in section.steps for one in (step, *(s for body in step.bodies for s in _all(body)))]


def _flow(parts: Iterable[str]) -> str:
    """Values side by side, in as many rows as they need."""
    inner = "".join(parts)
    return inner and f'<div class="ts-flow">{inner}</div>'


def _number(name: str) -> str:
    return ' class="ts-n"' if name.startswith(">") else ""


def _part(op: str) -> str:
    return {"sum": "part of a sum", "avg": "part of a mean"}.get(op, f"part of a {op}")


def _op(step: Step) -> str:
    """The name of an op; a collective in its colour, with the axes that it goes along."""
    if not step.kind:
        return f"<code>{escape(step.op)}</code>"
    why = f'<div class="ts-soft ts-small ts-why">gathered for {marked(step.why)}</div>' if step.why else ""
    over = f'<div class="ts-soft ts-small">over {escape(step.over)}</div>' if step.over else ""
    return f"{chip(step.op)}{over}{why}"


def _in_words(steps: Sequence[Step]) -> str:
    """What is in steps that are folded."""
    kinds: dict[str, int] = {}
    for step in steps:
        if step.sent is not None:
            kinds[step.kind] = kinds.get(step.kind, 0) + 1
    return "".join(f", {count} {kind}" for kind, count in kinds.items())
