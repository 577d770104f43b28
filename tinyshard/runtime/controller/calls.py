"""The calls that were sent to devices, and which of them each device has finished."""

from __future__ import annotations

import collections
import threading

from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.shm.completion import Seen


class Calls:
    """What the threads of the controller share about the devices. It is changed with `lock` held.

    Attributes:
        lock: guards all of this; reentrant.
        links: the links to all devices that have been started.
        unsettled: the calls that were sent and are not known to be finished, the oldest first.
        newest: number of the last call that was sent.
        has_lost: a device is lost.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.links: list[Link] = []
        self.unsettled: collections.deque[Run] = collections.deque()
        self.newest = 0
        self.has_lost = False

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def has_more_unfinished(self, link: Link, most: int) -> bool:
        """Whether a device has more than `most` unfinished calls."""
        calls = list(self.unsettled)  # one step, in C
        return sum(run.number > link.done and link.device in run.devices for run in calls) > most

    def has_all_failures(self, seen: Seen) -> bool:
        """Whether all failures that the devices had sent when they were `seen` have been received."""
        received = [link.failures for link in self.links]
        return seen.failures == received or all(s in (-1, r) for s, r in zip(seen.failures, received, strict=True))

    def record_progress(self, seen: Seen) -> None:
        """Note what devices have finished, for each device all of whose failures have been received."""
        with self.lock:
            for link, number, failures in zip(self.links, *seen, strict=True):
                if failures == link.failures and number > link.done:
                    link.done = number
            self.settle()

    def settle(self) -> None:
        """Settle the calls that all their devices have finished, in order."""
        with self.lock:
            while self.unsettled:
                run = self.unsettled[0]
                for device in run.devices:
                    link = self.links[device]
                    if link.done < run.number and not link.lost:
                        return
                settle(run)
                self.unsettled.popleft()
