"""The workers that a process has forked: starting them, ending them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable


class Children:
    """The workers that this process has forked and not reaped."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def fork(self, work: Callable[[], object]) -> int | str:
        """Fork a process that does this work and ends; returns its pid, or the error of the operating system."""
        try:
            pid = os.fork()
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(AttributeError):  # None, if one was closed when this process was started
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        self._pids.add(pid)
        return pid

    def end(self, pid: int) -> int | None:
        """Kill one, and wait until it is gone; returns the wait status of its first end, or None if it is unknown."""
        if pid not in self._pids:
            return None
        self._pids.discard(pid)
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]

    def end_all(self) -> None:
        """Kill all."""
        for pid in list(self._pids):
            self.end(pid)
