"""A latch: a one-shot event whose wait Ctrl-C may interrupt at any point.

threading's Condition and Event acquire a lock in Python code: a KeyboardInterrupt there leaves it acquired for ever.
A `with` on a plain lock is safe: it is acquired and released in C.
"""

from __future__ import annotations

import threading


class Latch:
    """Closed until it is opened, then open for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Wake all waiting threads. Only one thread may call it."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Block until it is open; False after `timeout_s`."""
        if timeout_s < 0:
            with self._lock:
                return True
        return self.is_open or (self._lock.acquire(timeout=timeout_s) and self._pass())

    def _pass(self) -> bool:
        self._lock.release()
        return True
