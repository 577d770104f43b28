"""The tables of a notebook: what a program costs and what a device holds meanwhile, live Arrays, rules of ops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from tinyshard.core.page import Cell, Content, bar, page, table
from tinyshard.draw.colours import KINDS, ink
from tinyshard.draw.html import human_bytes

MOST_ROWS = 200  # of a table; what is left out is said below it


def chip(kind: str) -> str:
    """The name of a collective, in the colour of its kind.

    Example:
        >>> chip("all_reduce")
        '<span class="ts-chip" style="background:#f0e442;color:#000000">all_reduce</span>'
    """
    fill = KINDS.get(kind)
    colours = f' style="background:{fill};color:{ink(fill)}"' if fill else ""
    return f'<span class="ts-chip"{colours}>{escape(kind)}</span>'


def counts_table(counts: Sequence[tuple[str, Sequence[str], int, int]]) -> str:
    """Collectives by kind and axes: how many, and the bytes that the busiest device sends in them together."""
    if not counts:
        return '<div class="ts-soft">no collectives</div>'
    rows: list[list[Content]] = [
        [Cell(chip(kind)), "*".join(axes), count, nbytes] for kind, axes, count, nbytes in counts
    ]
    return table("collectives", ["kind", "over", ">times", ">bytes sent"], rows)


def counts_html(counts: Sequence[tuple[str, Sequence[str], int, int]]) -> str:
    """`counts_table` as a page.

    Communication: none.
    """
    return page(counts_table(counts))


def cost_html(
    heading: str,
    counts: Sequence[tuple[str, Sequence[str], int, int]],
    gathers: Sequence[tuple[str, str, int, int]],
) -> str:
    """What a program costs.

    Args:
        heading: its flops and bytes in words.
        counts: as for `counts_table`.
        gathers: op, why it gathers an operand, how often, bytes.

    Communication: none.
    """
    why = table("of these, operands that an op gathers", ["op", "why", ">times", ">bytes sent"], gathers)
    return page(f'<div class="ts-head">{escape(heading)}</div>{counts_table(counts)}{why if gathers else ""}')


def memory_html(heading: str, steps: Sequence[tuple[str, str, bool, int]]) -> str:
    """What a device holds during each step of a program.

    Args:
        heading: arguments, results and the peak in words.
        steps: op, result, whether it communicates, bytes held.

    Communication: none.
    """
    peak = max((nbytes for *_, nbytes in steps), default=0)
    shown = _in_part(steps, [nbytes for *_, nbytes in steps].index(peak) if steps else 0)
    rows: list[list[Content]] = [
        [
            Cell(chip(op)) if communicates else Cell(f'<code class="ts-short">{escape(op)}</code>'),
            Cell(", ".join(f'<code class="ts-short">{escape(one)}</code>' for one in _apart(result))),
            nbytes,
            bar(nbytes, peak, "peak" if nbytes == peak else "", is_top=nbytes == peak),
        ]
        for op, result, communicates, nbytes in shown
    ]
    left = len(steps) - len(shown)
    below = f'<div class="ts-soft">the {len(rows)} steps around the peak; {left:,} more stand in the text</div>'
    drawn = table("held by a device during each step", ["step", "makes", ">bytes", ">"], rows)
    return page(f'<div class="ts-head">{escape(heading)}</div>{drawn if rows else ""}{below if left else ""}')


def _apart(result: str) -> list[str]:
    """Each value that a step makes, by itself.

    Example:
        >>> _apart("%2: f32[4, 8], %3: f32[8]")
        ['%2: f32[4, 8]', '%3: f32[8]']
    """
    return re.split(", (?=%)", result)


def _in_part(steps: Sequence[tuple[str, str, bool, int]], peak: int) -> Sequence[tuple[str, str, bool, int]]:
    """The steps, or of many those around the peak."""
    first = max(0, min(peak - MOST_ROWS // 2, len(steps) - MOST_ROWS))
    return steps[first : first + MOST_ROWS]


def live_html(rows: Sequence[tuple[int, str, str, str]], held: Sequence[tuple[str, int]]) -> str:
    """The Arrays that are alive, and what they take on each device.

    Args:
        rows: bytes on a device, type, sharding, the line that made it; the largest first.
        held: a device, and the bytes there.

    Communication: none.
    """
    heading = f"{len(rows)} live Array{'' if len(rows) == 1 else 's'}"
    most = max((nbytes for _, nbytes in held), default=0)
    arrays: list[list[Content]] = [
        [nbytes, Cell(f'<code class="ts-short">{escape(type)}</code>'), Cell(_breakable(where)), Cell(_made(made))]
        for nbytes, type, where, made in rows[:MOST_ROWS]
    ]
    columns = [">bytes a device", "type", "sharding", "made by"]
    devices: list[list[Content]] = [[device, nbytes, bar(nbytes, most, human_bytes(nbytes))] for device, nbytes in held]
    left = len(rows) - len(arrays)
    below = f'<div class="ts-soft">{left:,} smaller ones stand in the text</div>' if left else ""
    first = table(heading, columns, arrays) if rows else f'<div class="ts-head">{heading}</div>'
    together = table("together, on each device", ["device", ">bytes", ">"], devices)
    return page(first + below + together, "ts-program")


def _breakable(words: str) -> str:
    return f'<span class="ts-any">{escape(words)}</span>'


def _made(words: str) -> str:
    """The place of a line, and the line."""
    place, _, line = words.partition(": ")
    said = f'<span class="ts-soft ts-short">{escape(place)}</span>'
    return f'<span class="ts-any">{said} <code>{escape(line)}</code></span>'


def rules_html(rules: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]) -> str:
    """The rules of ops.

    Args:
        rules: an op, its rule, and for each factor what it means.

    Communication: none.
    """
    shown = (
        table(f"{op}   {rule}", ["factor", "what may become of it"], factors)
        if factors
        else f'<div class="ts-head">{escape(op)}: {escape(rule)}</div>'
        for op, rule, factors in rules
    )
    return page("".join(shown))
