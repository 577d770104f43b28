"""Cancellation by Ctrl-C: the controller freezes the busy devices, and sends each the calls to skip before it resumes.

All devices of a call that communicates skip it, or none does: a device that has started it waits in it.

    started: device 0 call 7, device 1 call 5          calls 6..9 should be cancelled
    6 on device 1 alone           skipped on 1
    7 on 0 and 1, communicating   skipped nowhere      0 has started it: both run it, with zeros
    8 on 0 and 1, communicating   skipped on 0 and 1
    9 on device 0 alone           skipped on 0

One interrupt is handled at a time. A frozen device answers with the last call that it started, and does not start
another until it receives the calls to skip, after all frozen devices have answered. A device that does not answer in
time is stopped, or very busy: it may have started all these calls, so it skips none. It drops their results later.
"""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyshard.core.users_code import ipython_shell
from tinyshard.core.users_line import Where, users_line_of
from tinyshard.runtime.controller.connection import Calls
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.failure import Failure

# how long the devices that have answered stay frozen for one that has not
FREEZES_WITHIN_S = 1.0


def left_out(runs: Iterable[Run], started: Mapping[int, int]) -> dict[int, set[int]]:
    """The numbers of the calls that each frozen device should skip; `started` has the last that it has started."""
    out: dict[int, set[int]] = {device: set() for device in started}
    for run in runs:
        late = [device for device in run.devices if started[device] < run.number]
        if run.communicates and len(late) < len(run.devices):
            continue
        for device in late:
            out[device].add(run.number)
    return out


@dataclass
class Cancelling:
    """An interrupt that is being handled: the devices have been sent `freeze`.

    Attributes:
        upto: calls up to this one must be cancelled.
        by: the interrupted line.
        waiting: devices that have not answered.
        since_s: when they were sent it.
        started: by device that has answered, the last call that it has started.
    """

    upto: int
    by: str
    waiting: set[int]
    since_s: float
    started: dict[int, int] = field(default_factory=dict)


class Interrupts:
    """The queue of interrupts. Only the I/O thread uses it, with the lock of the calls held.

    Attributes:
        now: the interrupt that is being handled; None if there is none.
    """

    def __init__(self, calls: Calls) -> None:
        self.now: Cancelling | None = None
        self._links = calls.links
        self._unsettled = calls.unsettled
        self._upto = 0
        self._next: collections.deque[tuple[int, str]] = collections.deque()

    def add(self, by: str) -> None:
        """Cancel the calls that have been sent, for an interrupt at line `by`."""
        if self._unsettled:
            self._next.append((self._unsettled[-1].number, by))
            self._begin()

    def _begin(self) -> None:
        while self._next and self.now is None:
            upto, by = self._next.popleft()
            ahead = {d for run in self._unsettled for d in run.devices if run.number > self._links[d].done}
            busy = {d for d in ahead if not self._links[d].lost}
            if busy and upto > self._upto:
                self.now = Cancelling(upto, by, busy, time.monotonic())
                for device in sorted(busy):
                    self._links[device].send_control("freeze", upto)

    def note_frozen(self, device: int, started: int, upto: int | None = None) -> None:
        """Note that a device is frozen for the interrupt with this `upto`, or, with None, is lost.

        After the last one, each frozen device is sent the calls to skip.
        """
        now = self.now
        if now is not None and device in now.waiting and upto in (None, now.upto):
            now.started[device] = started
            now.waiting.discard(device)
            if not now.waiting:
                self._cancel(now)

    def check_time(self) -> None:
        """Stop waiting for devices that have not answered in time."""
        now = self.now
        if now is not None and time.monotonic() - now.since_s > FREEZES_WITHIN_S:
            now.started.update(dict.fromkeys(now.waiting, now.upto))
            self._cancel(now)

    def _cancel(self, now: Cancelling) -> None:
        """Send each frozen device the calls to skip, and begin with the next interrupt."""
        started_by = {link.device: now.started.get(link.device, link.done) for link in self._links}
        runs = [r for r in self._unsettled if r.computes and self._upto < r.number <= now.upto]
        skip = left_out(runs, started_by)
        for run in runs:
            for d in run.devices:
                if run.number in skip[d]:
                    run.failures.setdefault(d, (Failure(d, interrupt=now.by), run.where))
        for d in now.started:
            self._links[d].send_control("cancel", now.upto, frozenset(skip[d]), now.by)
        self._upto, self.now = now.upto, None
        self._begin()


def after_interrupted_cells(call: Callable[[Where], None]) -> Callable[[], None]:
    """Call `call` with the interrupted line of every cell that Ctrl-C ended, before IPython shows the traceback.

    Formatting the traceback takes up to half a second of processor time, for which every device competes until its
    queued calls are cancelled. IPython has no event so early: post_run_cell comes after the traceback.

    Returns:
        A function that removes the hook. Outside of IPython neither does anything.
    """
    shell = ipython_shell()
    if shell is None:
        return lambda: None
    show = shell.showtraceback
    is_ended = False

    def cancel_and_show(*args: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt) and not is_ended:
            # between two statements of a cell IPython compiles the next one: then no line of the cell is in the trace
            call(users_line_of(error) or Where(f"In[{shell.execution_count}]", 0))
        show(*args, **options)

    shell.showtraceback = cancel_and_show

    def end() -> None:
        nonlocal is_ended
        is_ended = True  # if another library has wrapped it since, it cannot be removed: then it does nothing
        if shell.showtraceback is cancel_and_show:
            shell.showtraceback = show

    return end
