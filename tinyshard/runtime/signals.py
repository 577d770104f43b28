"""How processes that share memory wait for each other, without a compiler and without atomic instructions.

Each ordered pair of members has a counter that only the first of the two writes: how many signals it has sent to the
second. Who waits yields the processor a few times, for the others are about to come, and then sleeps in the kernel (a
futex) until the one that it waits for has come. Who signals wakes it only if it says that it sleeps.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence

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
    """One member's end of a table of counters. Plain Python on memoryviews: for a few numbers NumPy is slower.

    Args:
        counters: int64, a row for each member that sends, a column for each that receives; in shared memory.
        sleeping: int64, by member: 1 + the member that it sleeps for; in shared memory.
        pids: int64, process ids by member; 0 if not yet known; in shared memory.
        member: whose end this is.

    Attributes:
        sent: by member, how many signals it was sent.
        due: by member, how many signals were expected from it.
    """

    def __init__(self, counters: np.ndarray, sleeping: np.ndarray, pids: np.ndarray, member: int) -> None:
        count = len(counters)
        self.sent = [0] * count
        self.due = [0] * count
        self._row = counters[member].data
        self._column = counters[:, member].data
        self._sleeping = sleeping.data
        self._pids = pids
        self._member = member
        # a futex is 32 bits wide: the lower half of a counter, which comes first on the machines that this runs on
        self._heard = [counters[p, member:].ctypes.data for p in range(count)]
        self._said = [counters[member, p:].ctypes.data for p in range(count)]
        self._fence = threading.Lock()
        self._lost: set[int] = set()
        self._is_aborted = False

    def send(self, others: Sequence[int]) -> None:
        """Signal to each of these members."""
        row, sent, sleeping, me = self._row, self.sent, self._sleeping, self._member + 1
        for other in others:
            sent[other] = row[other] = sent[other] + 1
        with self._fence:  # a locked instruction: the counters are seen before the next line looks
            pass
        for other in others:
            if sleeping[other] == me:
                _syscall(_SYS_FUTEX, ctypes.c_void_p(self._said[other]), _FUTEX_WAKE, _EVERYONE, None, None, 0)

    def expect(self, others: Sequence[int]) -> list[int]:
        """Count one more signal as due from each of these members; returns the counters to `wait` for."""
        due = self.due
        for other in others:
            due[other] += 1
        return [due[other] for other in others]

    def wait(self, others: Sequence[int], due: Sequence[int]) -> None:
        """Wait until each of these members has sent what is due.

        Raises:
            PeerLostError: one of them is gone.
        """
        column, yields = self._column, YIELDS
        for other, number in zip(others, due, strict=True):
            while column[other] < number:
                if not yields:
                    self._sleep_for(other, number)
                    break
                yields -= 1
                os.sched_yield()

    def abort(self) -> None:
        """From another thread: let each wait, now and later, end with an error."""
        self._is_aborted = True

    def _sleep_for(self, other: int, due: int) -> None:
        while (seen := self._column[other]) < due:
            if other in self._lost or self._is_aborted:
                raise PeerLostError(f"device {other} does not come: it, or one that it waits for, is gone")
            self._sleeping[self._member] = other + 1
            with self._fence:
                pass
            if self._column[other] == seen:
                where, low = ctypes.c_void_p(self._heard[other]), ctypes.c_uint32(seen & 0xFFFFFFFF)
                _syscall(_SYS_FUTEX, where, _FUTEX_WAIT, low, _LOOK_AGAIN, None, 0)
            self._sleeping[self._member] = 0
            if self._column[other] == seen:
                self._look_after(other)

    def _look_after(self, other: int) -> None:
        pid = int(self._pids[other])
        try:
            if pid:
                os.kill(pid, 0)
        except ProcessLookupError:
            self._lost.add(other)
