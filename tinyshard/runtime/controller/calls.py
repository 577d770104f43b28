"""The calls that were sent to devices, which of them each device has finished, and back-pressure.

A thread that dispatches faster than the devices compute is blocked instead of filling the memory.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence

from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.items import Item, Latch
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.shm.completion import Seen

# for each device: unfinished calls, and bytes on their way to it
MAX_RUNS_AHEAD = 1024
MAX_NBYTES_AHEAD = 128 << 20
FEW_RUNS = 16


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


class BackPressure:
    """How much work each device has before it, and the threads that are blocked until it is less.

    Args:
        calls: the calls that were sent, and the links to the devices.
        queue: the items that are not sent yet.
        look_at_progress: reads how far the devices are.
        wake: wakes the I/O thread, which calls `release`.
    """

    def __init__(
        self,
        calls: Calls,
        queue: collections.deque[Item],
        look_at_progress: Callable[[], object],
        wake: Callable[[], object],
    ) -> None:
        self._calls = calls
        self._queue = queue
        self._look_at_progress = look_at_progress
        self._wake = wake
        self._held: collections.deque[tuple[Sequence[int], Latch]] = collections.deque()
        self._is_over = False

    @property
    def is_blocking(self) -> bool:
        """Whether a thread is blocked."""
        return bool(self._held)

    @property
    def has_few_calls(self) -> bool:
        """Whether so few calls are unfinished that no thread needs to be blocked for one more, which is a few bytes."""
        return len(self._queue) + len(self._calls.unsettled) < FEW_RUNS

    def throttle(self, devices: Sequence[int], wait: Callable[[Latch], object]) -> None:
        """Block while one of these devices has too much before it; `wait` waits for a latch."""
        if self._calls.is_mine:  # a finalizer or signal handler: the call that it interrupted must finish first
            return
        if self.is_full(devices):
            self._look_at_progress()
        while self.is_full(devices):
            latch = Latch()
            self._held.append((devices, latch))
            if self._is_over:
                return
            self._wake()  # the I/O thread opens the latch when devices have made progress
            wait(latch)

    def is_full(self, devices: Sequence[int]) -> bool:
        """Whether one of these devices has so much before it that a new call must wait."""
        queued = list(self._queue)  # one atomic step
        nbytes = sum(item.nbytes for item in queued)
        if len(queued) > MAX_RUNS_AHEAD or nbytes > MAX_NBYTES_AHEAD:
            return True
        # read after the queue: an item that is sent meanwhile is counted twice, not never
        most = MAX_RUNS_AHEAD - len(queued)
        is_long = len(self._calls.unsettled) > most
        for link in self._calls.links:  # those that have been started
            if link.device in devices and not link.lost:
                if link.channel.nbytes + link.lent_nbytes + nbytes > MAX_NBYTES_AHEAD:
                    return True
                if is_long and self._calls.has_more_unfinished(link, most):
                    return True
        return False

    def release(self) -> bool:
        """Wake the threads whose devices have room again; whether some are still blocked. Runs in the I/O thread."""
        if not self._held:
            return False
        self._look_at_progress()
        for _ in range(len(self._held)):
            devices, latch = self._held.popleft()
            if self.is_full(devices):
                self._held.append((devices, latch))
            else:
                latch.open()
        return bool(self._held)

    def end(self) -> None:
        """At shutdown: wake all blocked threads, and block none from now on."""
        self._is_over = True
        while self._held:
            self._held.popleft()[1].open()
