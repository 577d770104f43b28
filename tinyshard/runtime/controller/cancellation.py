"""What Ctrl-C leaves out: cells that it ends, the devices that are asked to hold still, and the calls that they drop.

A call whose devices exchange data is left out by all of them or by none: one that has started it waits for the others.

    started: device 0 call 7, device 1 call 5          all of 6..9 are to be cancelled
    6 on device 1 alone        left out on 1           (on 0 it is not)
    7 on 0 and 1, exchanging   left out nowhere        0 has started it: both run it, with zeros
    8 on 0 and 1, exchanging   left out on 0 and 1
    9 on device 0 alone        left out on 0

Interrupts go one after the other: the devices are asked how far they are, and hold still until all have answered. Then
each is told what to leave out, and goes on.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyshard.runtime.controller.calls import Calls
from tinyshard.runtime.controller.lineage import Run, Where, users_line_of
from tinyshard.runtime.failure import interrupted


def left_out(runs: Iterable[Run], started: Mapping[int, int]) -> dict[int, set[int]]:
    """The numbers of the calls that each device is not to start.

    Args:
        runs: the calls to be cancelled.
        started: by device, the last call that it has started; it starts no other meanwhile.
    """
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
    """An interrupt of which the devices have heard.

    Attributes:
        upto: calls up to this one are to be cancelled.
        by: the interrupted line.
        waiting: devices that have not answered.
        started: by device, the last call that it has started.
    """

    upto: int
    by: str
    waiting: set[int]
    started: dict[int, int] = field(default_factory=dict)


class Interrupts:
    """Belongs to the I/O thread.

    Args:
        calls: those that were handed out, and the links to the devices.

    Attributes:
        now: the one on its way.
    """

    def __init__(self, calls: Calls) -> None:
        self.now: Cancelling | None = None
        self._links = calls.links
        self._unsettled = calls.unsettled
        self._lock = calls.lock
        self._upto = 0
        self._next: collections.deque[tuple[int, str]] = collections.deque()

    def add(self, upto: int, by: str) -> None:
        """Cancel calls up to this one, for an interrupt at this line."""
        self._next.append((upto, by))
        self._begin()

    def _begin(self) -> None:
        while self._next and self.now is None:
            upto, by = self._next.popleft()
            with self._lock:
                ahead = {d for run in self._unsettled for d in run.devices if run.number > self._links[d].done}
            busy = {d for d in ahead if not self._links[d].lost}
            if busy and upto > self._upto:
                self.now = Cancelling(upto, by, busy)
                for device in sorted(busy):
                    self._links[device].tell("freeze")

    def note_frozen(self, device: int, started: int) -> None:
        """A device holds still, or is gone. When all do, what each leaves out can be said.

        Args:
            device: its id.
            started: the last call that it has started.
        """
        now = self.now
        if now is None or device not in now.waiting:
            return
        now.waiting.discard(device)
        now.started[device] = started
        if now.waiting:
            return
        frozen = list(now.started)
        started_by = {link.device: now.started.get(link.device, link.done) for link in self._links}
        with self._lock:  # a thread that waits may settle runs, too
            runs = [r for r in self._unsettled if r.computes and self._upto < r.number <= now.upto]
            skip = left_out(runs, started_by)
            for run in runs:
                for d in run.devices:
                    if run.number in skip[d]:
                        run.failures.setdefault(d, (interrupted(d, now.by), run.where))
        for d in frozen:
            self._links[d].tell("cancel", now.upto, frozenset(skip[d]), now.by)
        self._upto, self.now = now.upto, None
        self._begin()


def after_interrupted_cells(call: Callable[[Where], None]) -> Callable[[], None]:
    """Call `call` with the interrupted line of every cell that Ctrl-C ended, before IPython shows the traceback.

    To show it takes processor time, half a second where it leads through libraries; and as long as nobody has cancelled
    what is queued, every device competes for the processors. IPython has no event so early: post_run_cell is after it.

    Returns:
        A function that ends this. Outside of IPython neither does anything.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return lambda: None
    show = shell.showtraceback
    is_ended = False

    def cancel_and_show(*args: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt) and not is_ended:
            # between two statements of a cell IPython compiles the next one: no line of the cell runs then
            call(users_line_of(error) or Where(f"In[{shell.execution_count}]", 0))
        show(*args, **options)

    shell.showtraceback = cancel_and_show

    def end() -> None:
        nonlocal is_ended
        is_ended = True  # somebody may have put his own around it since, and it must stay
        if shell.showtraceback is cancel_and_show:
            shell.showtraceback = show

    return end
