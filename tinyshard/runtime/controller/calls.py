"""The calls that were sent to devices, and which of them each device has finished."""

from __future__ import annotations

import collections
import select
import threading
from collections.abc import Sequence

from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run, settle


class Calls:
    """What the threads of the controller share about the devices. It is changed with `lock` held.

    Attributes:
        lock: guards all of this; reentrant.
        links: the links to all devices that have been started.
        unsettled: the calls that were sent and are not known to be finished, the oldest first.
        newest: number of the last call that was sent.
        has_lost: a device is lost.
        incoming: polls the sockets and pipes by which devices send failures and answers, and print.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.links: list[Link] = []
        self.unsettled: collections.deque[Run] = collections.deque()
        self.newest = 0
        self.has_lost = False
        self.incoming = select.poll()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def is_all_received(self) -> bool:
        """Whether all that the devices have sent and printed has been received."""
        with self.lock:  # the I/O thread has it from when it reads a message until it has handled it
            return not self.incoming.poll(0)

    def record_progress(self, finished: Sequence[int]) -> None:
        """Note what devices have finished, for each device all of whose failures have been received."""
        with self.lock:
            unread = {descriptor for descriptor, _ in self.incoming.poll(0)}
            for link, number in zip(self.links, finished, strict=True):
                if number > link.done and link.channel.sock.fileno() not in unread:
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
