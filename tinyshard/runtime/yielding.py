"""Letting others run before one sleeps.

Whom one waits for is often about to come, on this very processor once others may have it. And a processor that has
something to do need not be woken, which takes longer than most of what comes. But who gives way to what computes for
long gets the processor back late; then it is better to sleep, for who is woken comes before those.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

# a device that has come to an exchange: for what the others still compute before
YIELD_IN_EXCHANGE_FOR_NS = 3_000_000
# one that has nothing to do: what the controller does between two calls, such as to fetch a result of 1 MB and look at
# it, is mostly over by then
YIELD_BETWEEN_CALLS_FOR_NS = 10_000_000
# a controller that has not yet seen in shared memory that a call is over may be waiting for this very core: who has
# computed for long gets it back only when those who have slept have had as much
YIELD_UNSEEN_FOR_NS = 200_000
# the system lets who computes do so for 3 ms or more before anybody else who did not sleep
CROWDED_AFTER_NS = 2_000_000
# the controller has no core of its own: its looks take turns with the devices of one, for which it waits; and a device
# that wakes it has the core at that very moment
CONTROLLER_YIELDS_FOR_NS = 50_000
# what has been there for so long would have been found sooner by who sleeps
LATE_AFTER_NS = 1_000_000
# where others ran for so long, they may again: this long nobody yields, and longer each time that it happens again soon
CROWDED_FOR_NS = 5_000_000
MOST_CROWDED_FOR_NS = 100_000_000
# also gives the interpreter's lock to the other threads of this process
let_others_run = ctypes.CDLL(None).sched_yield


class Yielding:
    """One thread's way to wait for a short time.

    Args:
        crowded: int64, two numbers that all who wait share: until when it is better to sleep, in nanoseconds of the
            system's monotonic clock, and for how long that was said.
        for_ns: how long it goes on.
    """

    def __init__(self, crowded: memoryview, for_ns: int) -> None:
        self._crowded = crowded
        self._for_ns = for_ns

    def once(self) -> None:
        """Let others run, unless it is better to sleep."""
        if self._crowded[0] < time.monotonic_ns():
            let_others_run()

    def until(self, is_there: Callable[[], bool], is_missed: Callable[[], bool], for_ns: int | None = None) -> bool:
        """Let others run for a while.

        Args:
            is_there: whether what is waited for has come.
            is_missed: asked where others ran for long: whether that was for nothing, or too long.
            for_ns: how long it goes on, if not as long as usual.

        Returns:
            Whether it has come meanwhile.
        """
        now = time.monotonic_ns()
        end = now + (self._for_ns if for_ns is None else for_ns)
        while self._crowded[0] < now < end:
            before = now
            let_others_run()
            now = time.monotonic_ns()
            if now - before > CROWDED_AFTER_NS and is_missed():
                self._say_crowded(before, now)
            if is_there():
                return True
        return False

    def _say_crowded(self, before: int, now: int) -> None:
        """Others have run from `before` until now."""
        until, for_ns = self._crowded[0], self._crowded[1]
        if until >= now:  # another who was kept waiting as well has said so
            return
        if before - until >= for_ns:  # it went well for as long
            for_ns = CROWDED_FOR_NS
        elif before >= until:  # as soon as it was tried again
            for_ns = min(4 * for_ns, MOST_CROWDED_FOR_NS)
        self._crowded[1] = for_ns  # if it began before the word ended, it is what the word was about
        self._crowded[0] = now + for_ns
