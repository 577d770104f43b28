"""Holding callers back: a loop that dispatches faster than devices compute waits instead of filling the memory."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from tinyshard.runtime.controller.calls import Calls
from tinyshard.runtime.controller.latch import Latch

# for each device
MAX_RUNS_AHEAD = 1024
MAX_NBYTES_AHEAD = 128 << 20
FEW_RUNS = 16


class BackPressure:
    """What is before each device, and the threads that wait until it is less.

    Args:
        calls: those that were handed out, and the links to the devices.
        queue: what is not handed out yet: (kind, size of its tensors, ...).
        look_at_progress: finds out how far the devices are.
        wake: lets the I/O thread call `release`.
    """

    def __init__(
        self,
        calls: Calls,
        queue: collections.deque[tuple[Any, ...]],
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
    def is_holding(self) -> bool:
        """Whether a thread is held back."""
        return bool(self._held)

    @property
    def has_few_calls(self) -> bool:
        """Whether so few are not over that nobody needs to be held back for a call, which is a few bytes."""
        return len(self._queue) + len(self._calls.unsettled) < FEW_RUNS

    def hold_back(self, devices: Sequence[int], wait: Callable[[Latch], object]) -> None:
        """Wait while too much is queued for one of these devices.

        Args:
            devices: their ids.
            wait: waits for a latch.
        """
        if self._calls.is_mine:  # the call that it interrupted goes on first
            return
        if self.has_too_much(devices):
            self._look_at_progress()
        while self.has_too_much(devices):
            latch = Latch()
            self._held.append((devices, latch))
            if self._is_over:
                return
            self._wake()  # the I/O thread opens it when devices have got on
            wait(latch)

    def has_too_much(self, devices: Sequence[int]) -> bool:
        """Whether so much is before one of these devices that a call for it is to wait."""
        queued = list(self._queue)  # one atomic step
        nbytes = sum(item[1] for item in queued)
        if len(queued) > MAX_RUNS_AHEAD or nbytes > MAX_NBYTES_AHEAD:
            return True
        # read after the queue: what moves on meanwhile counts twice, not never
        most = MAX_RUNS_AHEAD - len(queued)
        is_long = len(self._calls.unsettled) > most
        for link in self._calls.links:  # those that have been started
            if link.device in devices and not link.lost:
                if link.nbytes + link.lent_nbytes + nbytes > MAX_NBYTES_AHEAD:
                    return True
                if is_long and self._calls.has_ahead(link, most):
                    return True
        return False

    def release(self) -> bool:
        """Let go on those that need not be held back any more; whether some still are. In the I/O thread."""
        if not self._held:
            return False
        self._look_at_progress()
        for _ in range(len(self._held)):
            devices, latch = self._held.popleft()
            if self.has_too_much(devices):
                self._held.append((devices, latch))
            else:
                latch.open()
        return bool(self._held)

    def end(self) -> None:
        """Let all go on, now and later: nothing goes out any more."""
        self._is_over = True
        while self._held:
            self._held.popleft()[1].open()
