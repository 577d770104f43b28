"""Tables of a trace: the time by device, by op, by collective and by line, measured and modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from tinyshard.core.page import page, table
from tinyshard.profiler.events import Events, Step, own_times, shares_of

# rows of one table
_MOST_ROWS = 12
# of the wall time: a device that is waited for less is not named
_LEAST_HELD_UP = 0.01
_LONGEST = 60  # characters of a line


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        title: of the table.
        head: the names of its columns; the first has words, the rest numbers.
        rows: as text.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The tables of a trace; printed as text, and in a notebook as HTML.

    Attributes:
        heading: one line about the trace.
        remarks: which devices delayed the rest, and which records are missing.
        tables: by device, by the controller's work, op, collective and line, without empty ones.
    """

    heading: str
    remarks: tuple[str, ...]
    tables: tuple[Table, ...]

    def __str__(self) -> str:
        parts = ["\n".join([self.heading, *self.remarks]), *map(_text, self.tables)]
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        said = "".join(f"<div>{escape(line)}</div>" for line in self.remarks)
        heading = f'<div class="ts-head">{escape(self.heading)}</div>'
        tables = (table(one.title, ["", *(f">{name}" for name in one.head[1:])], one.rows) for one in self.tables)
        return page(f"{heading}{said}{''.join(tables)}", "ts-program")


def summary_of(events: Events) -> Summary:
    """The tables of a trace."""
    ops = [s for s in events.steps if not s.is_exchange]
    exchanges = [s for s in events.steps if s.is_exchange]
    calls = len({step.call for step in events.steps})
    heading = (
        f"{_time(events.wall_ns)} on {len(events.devices)} devices: {_counted(calls, 'call')}, "
        f"{_counted(len(events.steps), 'step')}"
    )
    tables = [
        _by_device(events),
        _of_controller(events),
        _of_steps(events, "by op", ops, lambda s: s.op, _COMPUTED),
        _of_steps(events, "by collective", exchanges, lambda s: s.op, _EXCHANGED),
        _of_steps(events, "by line", events.steps, lambda s: s.line, _ON_A_LINE),
    ]
    return Summary(heading, (*held_up(events), *events.notes), tuple(t for t in tables if t.rows))


def held_up(events: Events) -> list[str]:
    """The devices that delayed the rest, as text, the longest wait first."""
    said = []
    for device in events.devices:
        late = [s for s in events.steps if s.device == device and s.held_up_ns]
        total = sum(s.held_up_ns for s in late)
        if total > _LEAST_HELD_UP * events.wall_ns:
            times = _counted(len(late), "exchange")
            said.append(
                (total, f"{events.name(device)} was waited for {_time(total)}, in {times} that it came to last")
            )
    return [words for _, words in sorted(said, reverse=True)]


def _by_device(events: Events) -> Table:
    rows = []
    for device in events.devices:
        shares = shares_of(events, device)
        times = (shares.compute, shares.exchange, shares.wait, shares.idle)
        rows.append((events.name(device), *map(_time, times), *(_percent(t, events.wall_ns) for t in times)))
    return Table(
        "by device", ("", "compute", "exchange", "wait", "idle", "compute", "exch.", "wait", "idle"), tuple(rows)
    )


def _of_controller(events: Events) -> Table:
    total: dict[str, list[int]] = {}
    for span, own in zip(events.spans, own_times(events.spans), strict=True):
        found = total.setdefault(span.kind, [0, 0])
        found[0] += 1
        found[1] += own
    rows = [
        (kind, f"{count:,}", _time(own), _percent(own, events.wall_ns))
        for kind, (count, own) in sorted(total.items(), key=lambda item: -item[1][1])
    ]
    return Table("controller", ("", "times", "time", "share"), tuple(rows))


Cells = Callable[[Sequence[Step], Events], tuple[str, ...]]

# times are of one device, on average over all devices
_COMPUTED: tuple[tuple[str, ...], Cells] = (
    ("times", "time a device", "share", "flops a device", "GFLOP/s", "bytes a device", "GB/s"),
    lambda steps, events: (
        *_measured(steps, events),
        _scaled(_mean(events, (s.flops for s in steps))),
        _rate(sum(s.flops for s in steps), steps),
        _scaled(_mean(events, (s.nbytes for s in steps))),
        _rate(sum(s.nbytes for s in steps), steps),
    ),
)
_EXCHANGED: tuple[tuple[str, ...], Cells] = (
    ("times", "exchange a device", "share", "wait a device", "bytes sent", "GB/s"),
    lambda steps, events: (
        *_measured(steps, events),
        _time(_mean(events, (s.wait_ns for s in steps))),
        _scaled(_mean(events, (s.nbytes for s in steps))),
        _rate(sum(s.nbytes for s in steps), steps),
    ),
)
_ON_A_LINE: tuple[tuple[str, ...], Cells] = (
    ("times", "time a device", "share", "wait a device"),
    lambda steps, events: (*_measured(steps, events), _time(_mean(events, (s.wait_ns for s in steps)))),
)


def _of_steps(
    events: Events,
    title: str,
    steps: Sequence[Step],
    key: Callable[[Step], str],
    columns: tuple[tuple[str, ...], Cells],
) -> Table:
    """A table of steps, those with the same key in one row, the longest first; the last row has the rest."""
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(key(step), []).append(step)
    ordered = sorted(groups.items(), key=lambda item: -sum(s.busy_ns for s in item[1]))
    shown, rest = ordered[:_MOST_ROWS], ordered[_MOST_ROWS:]
    if rest:
        shown.append((f"and {len(rest)} more", [s for _, several in rest for s in several]))
    head, cells = columns
    return Table(title, ("", *head), tuple((_short(name), *cells(several, events)) for name, several in shown))


def _measured(steps: Sequence[Step], events: Events) -> tuple[str, str, str]:
    busy = _mean(events, (s.busy_ns for s in steps))
    return f"{round(len(steps) / len(events.devices)) or 1:,}", _time(busy), _percent(busy, events.wall_ns)


def _mean(events: Events, numbers: Iterable[int]) -> float:
    return sum(numbers) / len(events.devices)


def _rate(total: int, steps: Sequence[Step]) -> str:
    """Billions per second, while a device was busy with it."""
    busy = sum(s.busy_ns for s in steps)
    return f"{total / busy:,.2f}" if total and busy else ""


def _time(ns: float) -> str:
    """A time in the unit that makes it shortest.

    Example:
        >>> _time(512), _time(52_100_000), _time(1_500)
        ('0.5 µs', '52.1 ms', '1.5 µs')
    """
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:,.1f} {unit}"
    return f"{ns / 1e3:,.1f} µs"


def _scaled(number: float) -> str:
    """A count with a prefix.

    Example:
        >>> _scaled(0), _scaled(1500), _scaled(2_000_000)
        ('', '1.5 k', '2.0 M')
    """
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {prefix}"
    return f"{number:,.0f}" if number else ""


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST else "…" + words[1 - _LONGEST :]


def _text(table: Table) -> str:
    head = (table.title, *table.head[1:])
    widths = [max(map(len, column)) for column in zip(head, *table.rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            f"{c:{'<' if i == 0 else '>'}{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(head), "─" * (sum(widths) + 2 * len(widths) - 2), *map(line, table.rows)])
