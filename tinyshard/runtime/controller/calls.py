"""The calls that were handed out, and how far the devices are with them."""

from __future__ import annotations

import collections
import threading

from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.shm.completion import Seen


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
        calls = list(self.unsettled)  # one step, in C
        return sum(run.number > link.done and link.device in run.devices for run in calls) > most

    def has_all_failures(self, seen: Seen) -> bool:
        """Whether all failures that devices have sent, up to what was seen of them, have come."""
        received = [link.failures for link in self.links]
        return seen.failures == received or all(s in (-1, r) for s, r in zip(seen.failures, received, strict=True))

    def note_progress(self, seen: Seen) -> None:
        """Note how far devices are, where all failures that they have sent before have come."""
        with self.lock:
            for link, number, failures in zip(self.links, *seen, strict=True):
                if failures == link.failures and number > link.done:
                    link.done = number
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
