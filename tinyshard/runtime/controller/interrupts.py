"""Interrupts on their way to the devices, one after the other.

The devices are asked how far they are, and hold still until all have answered. Then each is told what to leave out
(`tinyshard.runtime.controller.cancellation`), and goes on.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tinyshard.runtime.controller.cancellation import left_out
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.controller.remote_errors import interrupted


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
        links: to the workers.
        unsettled: calls that are not known to be over.
        state: guards these.

    Attributes:
        now: the one on its way.
    """

    def __init__(self, links: Sequence[Link], unsettled: Iterable[Run], state: threading.Lock) -> None:
        self.now: Cancelling | None = None
        self._links = links
        self._unsettled = unsettled
        self._state = state
        self._upto = 0
        self._next: collections.deque[tuple[int, str]] = collections.deque()

    def add(self, upto: int, by: str) -> None:
        """Cancel calls up to this one, for an interrupt at this line."""
        self._next.append((upto, by))
        self._begin()

    def _begin(self) -> None:
        while self._next and self.now is None:
            upto, by = self._next.popleft()
            with self._state:
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
        with self._state:  # a thread that waits may settle runs, too
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
