"""Lesson 14: choose a machine; see for each layout two bounds for the time of a step, the memory and the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.network import LAYOUTS, NEIGHBOURS, WIDTH, step_on
from course.planner import MACHINES, ROUNDS, Estimate, Machine, estimate
from course.widgets.bars import bar, legend
from course.widgets.base import Choice, Explorer
from course.widgets.card import Piece, Sheet, paragraph, stack
from tinyshard.draw.colours import OKABE_ITO

__all__ = ["Planned", "describe", "draw", "look", "machine_planner", "seconds", "sized"]

HEADING = "The time of one training step on a machine, by the model"

DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
WHOLE_BATCH, EACH_BATCH = 65_536, 1_024
TITLES = {
    "data": "data parallel",
    "tensor": f"data x tensor ({NEIGHBOURS})",
    "fsdp": "FSDP, gathered twice",
    "fsdp_kept": "FSDP, gathered once",
}
# sky blue, orange, vermilion: distinct for any kind of colour vision; each bar also has its own height
KINDS = (("compute", OKABE_ITO[0], 22), ("inside hosts", OKABE_ITO[1], 16), ("between hosts", OKABE_ITO[6], 10))
BAR_WIDTH = 300  # px
NONE, PERFECT = "none", "perfect"


@dataclass(frozen=True)
class Planned:
    """The layouts on one machine.

    Args:
        machine: with its numbers.
        devices: how many.
        examples: of the whole batch.
        estimates: layout → what a step costs.
        is_overlapped: whether all communication happens while a device computes, as far as there is time.
    """

    machine: Machine
    devices: int
    examples: int
    estimates: dict[str, Estimate]
    is_overlapped: bool = False

    @property
    def best(self) -> str:
        """The fastest of the layouts that fit; of all, where none does."""
        fitting = [name for name, total in self.estimates.items() if total.fits] or list(self.estimates)
        return min(fitting, key=lambda name: self.step_s(self.estimates[name]))

    def step_s(self, total: Estimate) -> float:
        """Seconds of a step: the maximum of its two parts with perfect overlap, else their sum."""
        return total.overlapped_s if self.is_overlapped else total.step_s


def machine_planner() -> Explorer[Planned]:
    """Choose machine, devices and batch; see for each layout where the time of a training step goes.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; programs are made and counted, not run.

    Example:
        >>> print(machine_planner().choose(devices=4096).text.splitlines()[0])
        4096 devices of GPU boxes (512 hosts), 65,536 examples, 4 layers of 8192 x 8192
    """
    batches = [(f"{WHOLE_BATCH:,} in all", "all"), (f"{EACH_BATCH:,} each", "each")]
    return Explorer(
        HEADING,
        [
            Choice("machine", "machine", [(machine.name, machine) for machine in MACHINES], start=MACHINES[-1]),
            Choice("devices", "devices", [(f"{count:,}", count) for count in DEVICES], start=64),
            Choice("batch", "examples", batches, start="all"),
            Choice("rounds", "all-reduce by", [(way, way) for way in ROUNDS], start="ring"),
            Choice("overlap", "overlap", [(NONE, NONE), (PERFECT, PERFECT)]),
        ],
        look,
        draw,
        describe,
    )


def look(machine: Machine, devices: int, batch: str, rounds: str, overlap: str = NONE) -> Planned:
    """Make the programs of the layouts, and count.

    Args:
        machine: with its numbers.
        devices: how many; a multiple of 8.
        batch: "all": the batch is of one size; "each": every device adds examples of its own.
        rounds: "ring" or "halving and doubling".
        overlap: "none" or "perfect".

    Communication: none.

    Example:
        >>> look(MACHINES[-1], 64, "all", "ring").best
        'tensor'
    """
    examples = WHOLE_BATCH if batch == "all" else EACH_BATCH * devices
    made = {name: estimate(step_on(name, devices, examples), machine, rounds=rounds) for name in LAYOUTS}
    return Planned(machine, devices, examples, made, overlap == PERFECT)


def draw(planned: Planned) -> Sheet:
    """A bar for each layout: compute, collectives inside the hosts, and between; with overlap these are beneath."""
    longest = max(map(planned.step_s, planned.estimates.values()))
    rows = [_row(planned, name, BAR_WIDTH / longest) for name in planned.estimates]
    heading = paragraph([_heading(planned)])
    numbers = paragraph(_table(planned), size=11, is_code=True)
    title = f"{_heading(planned)}: a step takes {', '.join(_told(planned, name) for name in planned.estimates)}"
    return Sheet(title, stack([heading, legend(KINDS, size=13, height=24), *rows, numbers], 6))


def describe(planned: Planned) -> str:
    """The same as a table."""
    return "\n".join([_heading(planned), *_table(planned)])


def seconds(value: float) -> str:
    """A time in a unit that suits it.

    Example:
        >>> seconds(0.00213), seconds(4.2), seconds(1511.0)
        ('2.1 ms', '4.2 s', '25 min')
    """
    if value < 1:
        return f"{value * 1000:.1f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def sized(nbytes: float) -> str:
    """Bytes in MB or GB, a thousand thousand to the MB.

    Example:
        >>> sized(2_113_929_223), sized(917_504)
        ('2.11 GB', '0.92 MB')
    """
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


def _heading(planned: Planned) -> str:
    hosts = planned.devices // planned.machine.devices_per_host
    return (
        f"{planned.devices} devices of {planned.machine.name} ({hosts} host{'s' if hosts > 1 else ''}), "
        f"{planned.examples:,} examples, 4 layers of {WIDTH} x {WIDTH}"
    )


def _told(planned: Planned, name: str) -> str:
    return f"{_bounds(planned.estimates[name])} {TITLES[name]}"


def _bounds(total: Estimate) -> str:
    return f"{seconds(total.overlapped_s)} to {seconds(total.step_s)}"


def _table(planned: Planned) -> list[str]:
    heads = ("compute", "inside", "between", "sum", "max", "memory", "sent")
    lines = [f"{'':20} " + _row_of_table(heads)]
    for name, total in planned.estimates.items():
        times = (total.compute_s, total.inside_s, total.between_s, total.step_s, total.overlapped_s)
        cells = [
            *(seconds(value) if value else "-" for value in times),
            sized(total.memory_nbytes),
            sized(total.nbytes),
        ]
        note = "" if total.fits else "  does not fit"
        least = "max" if planned.is_overlapped else "sum"
        note = f"  <- least {least}" if name == planned.best and total.fits else note
        lines.append(f"{TITLES[name]:20} " + _row_of_table(cells) + note)
    lines.append("sum: no overlap, the model's upper bound; max: perfect overlap, its lower bound")
    lines.append(f"memory of a device: {sized(planned.machine.memory_nbytes)}")
    return lines


def _row_of_table(cells: Sequence[str]) -> str:
    """Five times, then memory and bytes, which take more room."""
    return " ".join(f"{cell:>{8 if k < 5 else 10}}" for k, cell in enumerate(cells))


def _row(planned: Planned, name: str, px_per_s: float) -> Piece:
    total = planned.estimates[name]
    times = (total.compute_s, total.inside_s, total.between_s)
    parts = [(kind, value, colour, height) for (kind, colour, height), value in zip(KINDS, times, strict=True)]
    words = _bounds(total) + ("" if total.fits else ", does not fit")
    if planned.is_overlapped:  # both begin at the same time; the longer one is the step
        above = bar(TITLES[name], parts[:1], "", seconds, px_per_unit=px_per_s, row=22, width=BAR_WIDTH + 240)
        below = bar("", parts[1:], words, seconds, px_per_unit=px_per_s, row=18, width=BAR_WIDTH + 240)
        return stack([above, below], 0)
    return bar(TITLES[name], parts, words, seconds, px_per_unit=px_per_s, row=34, width=BAR_WIDTH + 240)
