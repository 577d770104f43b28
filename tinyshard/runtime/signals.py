"""How processes that share memory wait for each other, without a compiler and without atomic instructions.

Each ordered pair of members has a counter that only the first of the two writes: how many signals it has sent to the
second. Who waits yields the processor a few times, for the others are about to come, and then sleeps in the kernel (a
futex) until the one that it waits for has come. Who signals wakes it only if it says that it sleeps.
"""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np

YIELDS = 20
# how long to sleep before looking whether the other one still lives
LOOK_AGAIN_S = 0.1

_SYS_FUTEX, _FUTEX_WAIT, _FUTEX_WAKE = 202, 0, 1
_syscall = ctypes.CDLL(None).syscall
_EVERYONE = ctypes.c_int(2**31 - 1)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


_LOOK_AGAIN = ctypes.byref(_Timespec(0, int(LOOK_AGAIN_S * 1e9)))


class PeerLostError(RuntimeError):
    """Another device is gone, so that what was to be done together cannot be done."""


class Signals:
    """One member's end of a table of counters.

    Args:
        counters: int32, a row for each member that sends, a column for each that receives; in shared memory.
        sleeping: int32, by member: 1 + the member that it sleeps for; in shared memory.
        pids: int64, process ids by member; 0 if not yet known; in shared memory.
        member: whose end this is.
    """

    def __init__(self, counters: np.ndarray, sleeping: np.ndarray, pids: np.ndarray, member: int) -> None:
        self._row = counters[member]
        self._column = counters[:, member]
        self._due = np.zeros(len(counters), np.int32)
        self._sleeping = sleeping
        self._pids = pids
        self._member = member
        self._cells = [counters[p, member:].ctypes.data for p in range(len(counters))]
        self._heard = [counters[member, p:].ctypes.data for p in range(len(counters))]
        self._fence = threading.Lock()
        self._lost: set[int] = set()
        self._is_aborted = False

    def parity(self, others: np.ndarray) -> np.ndarray:
        """By member: 0 or 1, changing with each signal sent to it; who receives the next one finds the same."""
        return self._row[others] & 1

    def due_parity(self, others: np.ndarray) -> np.ndarray:
        """The other end's view of `parity`, to be asked before `expect`."""
        return self._due[others] & 1

    def send(self, others: np.ndarray) -> None:
        """Signal to each of these members."""
        self._row[others] += 1
        with self._fence:  # a locked instruction: the counters are seen before the next line looks
            pass
        waiting = self._sleeping[others] == self._member + 1
        if waiting.any():
            for other in others[waiting].tolist():
                _syscall(_SYS_FUTEX, ctypes.c_void_p(self._heard[other]), _FUTEX_WAKE, _EVERYONE, None, None, 0)

    def expect(self, others: np.ndarray) -> np.ndarray:
        """Count one more signal as due from each of these members; returns the counters to `wait` for."""
        self._due[others] += 1
        return self._due[others]

    def wait(self, others: np.ndarray, due: np.ndarray) -> None:
        """Wait until each of these members has sent what is due.

        Raises:
            PeerLostError: one of them is gone.
        """
        for _ in range(YIELDS):
            if not (self._column[others] - due < 0).any():  # differences, for the counters may wrap around
                return
            os.sched_yield()
        for other, number in zip(others.tolist(), due, strict=True):
            self._wait_for(other, number)

    def abort(self) -> None:
        """From another thread: let each wait, now and later, end with an error."""
        self._is_aborted = True

    def _wait_for(self, other: int, due: np.int32) -> None:
        while True:
            seen = self._column[other : other + 1]
            value = int(seen[0])
            if not (seen - due < 0).any():
                return
            if other in self._lost or self._is_aborted:
                raise PeerLostError(f"device {other} does not come: it, or one that it waits for, is gone")
            self._sleeping[self._member] = other + 1
            with self._fence:
                pass
            if int(self._column[other]) == value:
                where, number = ctypes.c_void_p(self._cells[other]), ctypes.c_int(value)
                _syscall(_SYS_FUTEX, where, _FUTEX_WAIT, number, _LOOK_AGAIN, None, 0)
            self._sleeping[self._member] = 0
            if int(self._column[other]) == value:
                self._look_after(other)

    def _look_after(self, other: int) -> None:
        pid = int(self._pids[other])
        try:
            if pid:
                os.kill(pid, 0)
        except ProcessLookupError:
            self._lost.add(other)
