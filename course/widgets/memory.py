"""Lesson 15: the memory of a training step by kind, counted and by a formula, under four layouts and a limit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course.widgets.bars import NAMES_WIDTH
from course.widgets.base import Choice, Explorer
from course.widgets.card import INK, MUTED, Piece, Sheet, paragraph, stack
from course.widgets.kind_bars import BAR_WIDTH, THICK_AND_THIN, WORDS_WIDTH, kind_legend, kind_rows
from course.zero import LAYOUTS, SAVED, Plan, compiled, held_by_kind, modelled
from tinyshard.draw.cell import number, text
from tinyshard.draw.html import human_bytes

__all__ = ["Held", "Limited", "describe", "draw", "look", "memory_by_kind"]

HEADING = "What a device holds at the peak of a training step, by kind"

MIB = 1 << 20
LIMITS = (32, 24, 16, 14, 12, 8, 6, 4)  # MiB
RECOMPUTED = {"nothing": SAVED, "gelu": SAVED[:1], "the layer": ()}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Held:
    """What a device holds under one layout.

    Attributes:
        layout: its name.
        counted: of the program, at its peak: kind → bytes.
        modelled: by the formula.
        sent_nbytes: what the busiest device sends in a step.
        flops: operations of one device in matrix products.
    """

    layout: str
    counted: dict[str, int]
    modelled: dict[str, int]
    sent_nbytes: int
    flops: int

    @property
    def peak_nbytes(self) -> int:
        """Of all kinds together."""
        return sum(self.counted.values())


@dataclass(frozen=True)
class Limited:
    """The layouts beside one limit.

    Attributes:
        plan: what they have in common.
        limit_nbytes: what a device may hold.
        held: of each layout.
    """

    plan: Plan
    limit_nbytes: int
    held: tuple[Held, ...]


def memory_by_kind() -> Explorer[Limited]:
    """Choose batch, precision, recomputation, donation, devices and limit; see which layout fits.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; programs are made and counted, not run.

    Example:
        >>> print(memory_by_kind().text.splitlines()[0])
        8 devices, 64 examples, float32, nothing recomputed, donated; limit 14 MiB
    """
    controls = [
        Choice("limit", "limit", [(f"{mib} MiB", mib) for mib in LIMITS], start=14),
        Choice("examples", "examples", [(f"{count:,}", count) for count in (64, 512, 4096)]),
        Choice("recomputed", "recomputed", [(name, name) for name in RECOMPUTED]),
        Choice("dtype", "computes in", [(name, name) for name in DTYPES]),
        Choice("is_donated", "donated", [("yes", True), ("no", False)]),
        Choice("devices", "devices", [("8", 8), ("64", 64)]),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(limit: int, examples: int, recomputed: str, dtype: str, is_donated: bool, devices: int) -> Limited:
    """Make the programs of the layouts, and count.

    Args:
        limit: MiB of a device.
        examples: of the whole batch.
        recomputed: one of RECOMPUTED.
        dtype: one of DTYPES.
        is_donated: whether old parameters and old state are donated.
        devices: how many.

    Communication: none.
    """
    plans = {
        name: Plan(layout, devices, examples, RECOMPUTED[recomputed], DTYPES[dtype], is_donated)
        for name, layout in LAYOUTS.items()
    }
    held = tuple(_held(name, plan) for name, plan in plans.items())
    return Limited(plans["data parallel"], limit * MIB, held)


def _held(name: str, plan: Plan) -> Held:
    program = compiled(plan)
    cost = program.cost_analysis()
    return Held(name, held_by_kind(plan, program), modelled(plan), cost.nbytes, cost.flops)


def draw(limited: Limited) -> Sheet:
    """For each layout a bar of what is counted, below it a thin one by the formula; a dashed line at the limit."""
    longest = max(limited.limit_nbytes, *(max(h.peak_nbytes, sum(h.modelled.values())) for h in limited.held))
    px = BAR_WIDTH / longest
    rows = [row for held in limited.held for row in _rows(limited, held, px)]
    bars = stack([*rows, Piece("", NAMES_WIDTH + BAR_WIDTH + WORDS_WIDTH, 16)], 4)  # room for the words of the line
    x = number(NAMES_WIDTH + limited.limit_nbytes * px)
    line = f'<path d="M{x} 0V{number(bars.height - 14)}" stroke="{INK}" stroke-width="1.5" stroke-dasharray="5 3"/>'
    words = text(f"limit {limited.limit_nbytes // MIB} MiB", float(x), bars.height - 5, 11, fill=INK)
    pieces = [
        paragraph([_heading(limited)]),
        kind_legend(),
        Piece(bars.svg + line + words, bars.width, bars.height),
        paragraph([THICK_AND_THIN], fill=MUTED, size=12),
    ]
    fitting = [held.layout for held in limited.held if held.peak_nbytes <= limited.limit_nbytes]
    return Sheet(f"{_heading(limited)}: {', '.join(fitting) or 'nothing'} fits", stack(pieces, 8))


def describe(limited: Limited) -> str:
    """A table, in MiB."""
    columns = ("parameters", "state", "gradients", "gathered", "activations", "at the peak", "by formula", "sent")
    lines = [_heading(limited), f"{'MiB':14}" + "".join(f"{name:>12}" for name in columns)]
    for held in limited.held:
        numbers = (*held.counted.values(), held.peak_nbytes, sum(held.modelled.values()), held.sent_nbytes)
        fits = "" if held.peak_nbytes <= limited.limit_nbytes else "  does not fit"
        lines.append(f"{held.layout:14}" + "".join(f"{x / MIB:>12.2f}" for x in numbers) + fits)
    return "\n".join(lines)


def _heading(limited: Limited) -> str:
    plan = limited.plan
    recomputed = next(name for name, saved in RECOMPUTED.items() if saved == plan.saved)
    return (
        f"{plan.devices} devices, {plan.examples:,} examples, {str(plan.dtype).removeprefix('torch.')}, "
        f"{recomputed} recomputed, {'donated' if plan.is_donated else 'not donated'}; "
        f"limit {limited.limit_nbytes // MIB} MiB"
    )


def _rows(limited: Limited, held: Held, px_per_byte: float) -> list[Piece]:
    fits = "" if held.peak_nbytes <= limited.limit_nbytes else ": does not fit"
    words = f"{human_bytes(held.peak_nbytes)}, sends {human_bytes(held.sent_nbytes)}{fits}"
    return kind_rows(held.layout, held.counted, held.modelled, words, px_per_byte)
