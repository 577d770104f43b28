"""The calls that were handed out, and how far the devices are with them."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence

from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.shm.completion import Finished


class Calls:
    """What the threads of the controller share about the devices. It is changed with `lock` held.

    Attributes:
        lock: guards all of this. Its own thread may take it again.
        links: to all devices; those that have been started.
        unsettled: the calls that were handed out and are not known to be over, the oldest first.
        newest: number of the last call that was handed out.
        has_lost: some device is gone.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.links: list[Link] = []
        self.unsettled: collections.deque[Run] = collections.deque()
        self.newest = 0
        self.has_lost = False

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def has_ahead(self, link: Link, most: int) -> bool:
        """Whether more calls than that are before a device."""
        if len(self.unsettled) <= most:
            return False
        calls = list(self.unsettled)  # one step, in C
        return sum(run.number > link.done and link.device in run.devices for run in calls) > most

    def has_all_failures(self, seen: Sequence[Finished | None]) -> bool:
        """Whether all failures that devices have sent, up to what was seen of them, have come."""
        return all(one is None or one.failures == link.failures for one, link in zip(seen, self.links, strict=True))

    def note_progress(self, seen: Sequence[Finished | None]) -> None:
        """Note how far devices are, where all failures that they have sent before have come."""
        with self.lock:
            for link, one in zip(self.links, seen, strict=True):
                if one is not None and one.failures == link.failures:
                    link.done = max(link.done, one.number)
            self.settle()

    def settle(self) -> None:
        """Settle the calls that are over on all their devices, in order."""
        with self.lock:
            while self.unsettled:
                run = self.unsettled[0]
                for device in run.devices:
                    link = self.links[device]
                    if link.done < run.number and not link.lost:
                        return
                settle(run)
                self.unsettled.popleft()
