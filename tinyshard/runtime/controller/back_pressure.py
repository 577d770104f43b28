"""Back-pressure: a thread that dispatches faster than the devices compute is blocked instead of filling the memory."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

from tinyshard.runtime.controller.calls import Calls
from tinyshard.runtime.controller.items import Item, Latch

# for each device: unfinished calls, and bytes on their way to it
MAX_RUNS_AHEAD = 1024
MAX_NBYTES_AHEAD = 128 << 20
FEW_RUNS = 16


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
        """Block while one of these devices has too much before it.

        Args:
            devices: their ids.
            wait: waits for a latch.
        """
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
                if link.nbytes + link.lent_nbytes + nbytes > MAX_NBYTES_AHEAD:
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
