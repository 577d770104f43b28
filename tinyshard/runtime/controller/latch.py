"""Waiting that Ctrl-C may interrupt anywhere.

threading's Condition and Event take their lock inside Python code: a KeyboardInterrupt there leaves it taken for ever.
A `with` on a plain lock is safe, for it is taken and given back in C.
"""

from __future__ import annotations

import threading


class Latch:
    """Closed until the I/O thread opens it, then open for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Let all through. Only one thread may call it."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until it is open; False if that takes longer."""
        if timeout_s < 0:
            with self._lock:
                return True
        return self.is_open or (self._lock.acquire(timeout=timeout_s) and self._pass())

    def _pass(self) -> bool:
        self._lock.release()
        return True
