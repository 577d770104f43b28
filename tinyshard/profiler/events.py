"""The events of a trace: plain data. Times are in ns since the trace began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.core.activity import Span


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program on one device.

    Attributes:
        device: its id.
        call: the number of the call.
        op: as the program's text names it.
        start_ns, end_ns: when.
        is_exchange: whether devices exchange data in it.
        wait_ns: for an exchange, the time from its start until the last device of its group had started.
        held_up_ns: for the last device of an exchange, how long its group waited for it, on average; else 0.
        flops: by torch's formulas, as `cost_analysis` counts them.
        nbytes: for an exchange, the bytes that the busiest device sends, as `cost_analysis` counts them; for an op, the
            bytes of its operands and results; 0 for a view.
        line: the user's line that called the op.
    """

    device: int
    call: int
    op: str
    start_ns: int
    end_ns: int
    is_exchange: bool
    wait_ns: int
    held_up_ns: int
    flops: int
    nbytes: int
    line: str

    @property
    def busy_ns(self) -> int:
        """Its time without the wait."""
        return self.end_ns - self.start_ns - self.wait_ns


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a program on one device.

    Attributes:
        device: its id.
        number: of the call.
        name: the op of a program of one step, or the number of its steps.
        start_ns, end_ns: when.
        line: the user's line that called it.
    """

    device: int
    number: int
    name: str
    start_ns: int
    end_ns: int
    line: str


@dataclass(frozen=True, slots=True)
class Events:
    """The records of a trace.

    Attributes:
        devices: ids.
        platform: of the devices.
        wall_ns: from the beginning of the trace to its end.
        steps, calls: by device, in the order of their start.
        spans: of the controller, in the order of their start.
        notes: about missing records, as text.
    """

    devices: tuple[int, ...]
    platform: str
    wall_ns: int
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()

    def name(self, device: int) -> str:
        """The name of a device: "CPU 0"."""
        return f"{self.platform.upper()} {device}"


@dataclass(frozen=True, slots=True)
class Shares:
    """How a device spent the time of a trace, in ns.

    Attributes:
        compute: in calls, without exchanges and waits; Python's overhead between steps is included.
        exchange: in exchanges, after the last device of the group had started.
        wait: in exchanges, until then.
        idle: between calls; in the local runtime also while another device runs.
    """

    compute: int
    exchange: int
    wait: int
    idle: int

    @property
    def total(self) -> int:
        """The sum: the time of the trace."""
        return self.compute + self.exchange + self.wait + self.idle


def shares_of(events: Events, device: int) -> Shares:
    """How a device spent the time of the trace."""
    steps = [s for s in events.steps if s.device == device and s.is_exchange]
    wait, exchange = sum(s.wait_ns for s in steps), sum(s.busy_ns for s in steps)
    busy, idle = _busy_and_idle(events, device)
    return Shares(busy - wait - exchange, exchange, wait, idle)


def _busy_and_idle(events: Events, device: int) -> tuple[int, int]:
    """The time of a device inside and outside of calls. In the local runtime it is outside between its steps."""
    both: list[Call | Step] = [*events.calls, *events.steps]
    busy = idle = at = 0
    for start, end in sorted((x.start_ns, x.end_ns) for x in both if x.device == device):
        idle += max(0, start - at)
        busy += max(0, end - max(start, at))
        at = max(at, end)
    return busy, idle + max(0, events.wall_ns - at)


def own_times(spans: Sequence[Span]) -> list[int]:
    """For each span of the controller its time without the spans inside of it. They are in the order of their start.

    Example:
        >>> own_times([Span("wait", "", 0, 10, None), Span("plan", "", 2, 5, None)])
        [7, 3]
    """
    own = [s.end_ns - s.start_ns for s in spans]
    around: list[int] = []
    for i, span in enumerate(spans):
        while around and spans[around[-1]].end_ns <= span.start_ns:
            around.pop()
        if around:
            own[around[-1]] -= span.end_ns - span.start_ns
        around.append(i)
    return own
