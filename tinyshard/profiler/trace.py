"""Records a trace: from the traced block to its events."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from tinyshard.core.activity import MOST_SPANS, Log, current_log, open_log
from tinyshard.core.errors import RemoteError, RuntimeStateError
from tinyshard.core.users_line import users_line
from tinyshard.profiler.events import Events
from tinyshard.profiler.joining import joined
from tinyshard.profiler.perfetto import trace_events, written
from tinyshard.profiler.summary import Summary, summary_of
from tinyshard.profiler.timeline import timeline_html
from tinyshard.runtime import lifecycle

# the timeout for devices at the end of a block that raised an error
_WITHIN_S = 5.0


class Trace:
    """The record of a block of `trace()`. A notebook draws it; `summary()` has tables, `to_perfetto` writes a file.

    It has its events after the block.

    Raises:
        RuntimeStateError: it is read before the block is over.

    Communication: none; the devices have sent their records.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> with trace() as found:
        ...     y = ts.array([1.0, 2.0]).sin()
        >>> [table.title for table in found.summary().tables]
        ['by device', 'controller', 'by op', 'by line']
    """

    def __init__(self) -> None:
        self._events: Events | None = None

    @property
    def events(self) -> Events:
        """Steps, calls and spans as plain data.

        Raises:
            RuntimeStateError: the block is not over.
        """
        if self._events is None:
            raise RuntimeStateError(
                "the trace is not over",
                rule="devices send what they have recorded at the end of the block",
                try_="with ts.profiler.trace() as trace: ...; and then trace.summary()",
            )
        return self._events

    def summary(self) -> Summary:
        """Tables of the time by device, op, collective and line, measured and modelled; as text, and as HTML.

        Raises:
            RuntimeStateError: the block is not over.
        """
        return summary_of(self.events)

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file that https://ui.perfetto.dev opens: Chrome's trace events, as JSON.

        Args:
            path: of the file; an existing one is replaced.

        Raises:
            RuntimeStateError: the block is not over. OSError: the file cannot be written.
        """
        written(trace_events(self.events), path)

    def __repr__(self) -> str:
        if self._events is None:
            return "<a trace that is not over>"
        return self.summary().heading

    def _repr_html_(self) -> str | None:
        return None if self._events is None else timeline_html(self._events)


@contextlib.contextmanager
def trace() -> Iterator[Trace]:
    """Record what runs in a block: each step on each device, and the activities of the controller.

    For a device it records computation, exchanges and waits, step by step; for the controller, traces, plans,
    dispatches and waits. It begins when the devices have finished all earlier calls, and ends when they have finished
    the calls of the block. If the block ends with an error, as Ctrl-C or the death of a device, the trace has the
    records up to then.

    A device keeps its last 131,072 steps; the trace's `events.notes` say what is missing. Clocks of other machines are
    aligned by one round trip, with an error of at most half of its time. While it is on, a step takes about a
    microsecond longer; on a GPU each step is waited for, so that steps do not overlap.

    Returns:
        A context manager that returns a `Trace`, which has its events after the block. In a notebook it is shown as
        a timeline: drag to move, Ctrl and the wheel to zoom, and hover over a step for its description.

    Raises:
        RuntimeStateError: another trace is on.
        DeviceLostError: a device is gone as it begins.

    Communication: two messages to each device, at the beginning and at the end.

    In JAX: `jax.profiler.trace(log_dir)` writes files for TensorBoard and Perfetto.

    Example:
        >>> import torch, tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> x = ts.array([1.0, 2.0])
        >>> with trace() as found:
        ...     y = torch.sin(x)
        >>> [step.op for step in found.events.steps]
        ['aten.sin.default']
    """
    if current_log() is not None:
        raise RuntimeStateError("another trace is on", rule="one at a time", try_="one trace around both blocks")
    runtime = lifecycle.current()
    ahead_ns = runtime.record()
    found, log, start_ns = Trace(), Log(users_line), time.monotonic_ns()
    within_s = _WITHIN_S
    open_log(log)
    try:
        yield found
        within_s = -1
    finally:
        open_log(None)
        end_ns, records = time.monotonic_ns(), {}
        try:
            records = _recorded(runtime, within_s)
        except KeyboardInterrupt:  # the calls that it waited for are now cancelled
            records = _recorded(runtime, _WITHIN_S)
            raise
        finally:
            ids = [device.id for device in runtime.devices]
            kept = {device: taken for device, taken in records.items() if taken is not None}
            platform = runtime.devices[0].platform
            notes = _notes(log, kept, ids)
            rows = {device: taken[0] for device, taken in kept.items()}
            found._events = joined(log, rows, ahead_ns, start_ns, end_ns, ids, platform, notes)


def _recorded(runtime: Any, within_s: float) -> dict[int, tuple[bytes, int] | None]:
    """The records of each device; empty if the pool is gone."""
    try:
        found: dict[int, tuple[bytes, int] | None] = runtime.recorded(within_s)
    except (RemoteError, RuntimeStateError):
        return {}
    return found


def _notes(log: Log, kept: dict[int, tuple[bytes, int]], ids: list[int]) -> list[str]:
    notes = [
        f"device {device} has recorded more than it keeps: its first {dropped:,} records are gone"
        for device, (_, dropped) in kept.items()
        if dropped
    ]
    silent = [device for device in ids if device not in kept]
    if silent:
        notes.append(f"no records of device {', '.join(map(str, silent))}: gone, or busy when the trace ended")
    if log.dropped:
        notes.append(f"the controller did more than {MOST_SPANS:,} things: the last {log.dropped:,} are left out")
    return notes
