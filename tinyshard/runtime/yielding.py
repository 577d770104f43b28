"""Letting others run before one sleeps.

Whom one waits for is often about to come, on this very processor once others may have it. And a processor that has
something to do need not be woken, which takes longer than most of what comes. But who gives way to what computes for
long gets the processor back late; then it is better to sleep, for who is woken comes before those.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

YIELD_FOR_NS = 1_000_000
# the system lets who computes do so for 3 ms or more before anybody else who did not sleep; what the controller does
# between two calls is shorter
CROWDED_AFTER_NS = 2_000_000
# where others ran for so long, they will again: this long nobody yields
CROWDED_FOR_NS = 100_000_000
# also gives the interpreter's lock to the other threads of this process
let_others_run = ctypes.CDLL(None).sched_yield


class Yielding:
    """One thread's way to wait for a short time.

    Args:
        crowded: int64, one number that all who wait share: until when it is better to sleep, in nanoseconds of the
            system's monotonic clock.
    """

    def __init__(self, crowded: memoryview) -> None:
        self._crowded_until = crowded

    def until(self, is_there: Callable[[], bool]) -> bool:
        """Let others run for a while; whether what is waited for has come meanwhile."""
        now = time.monotonic_ns()
        end = now + YIELD_FOR_NS
        while self._crowded_until[0] < now < end:
            before = now
            let_others_run()
            if is_there():  # then whoever had the processor was waited for, as far as one can tell
                return True
            now = time.monotonic_ns()
            if now - before > CROWDED_AFTER_NS:
                self._crowded_until[0] = now + CROWDED_FOR_NS
        return False
