"""How processes that share memory wait for each other, without a compiler and without atomic instructions.

Each ordered pair of members has a counter that only the first of the two writes: how many signals it has sent to the
second. Who waits yields the processor for a moment, for the others are about to come, and then sleeps in the kernel
(`futex`) until the one that it waits for has come. Who signals wakes it only if it says that it sleeps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from tinyshard.runtime import futex

# on a busy machine whoever yields waits for strangers to use up their time, and whoever sleeps is woken soon
YIELD_FOR_S = 1e-4
# how long to sleep before looking whether the other one still lives; more often would look like work (`watching`)
LOOK_AGAIN_S = 1.0

_LOOK_AGAIN = futex.timespec(LOOK_AGAIN_S)


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
        self._heard = [counters[p, member:].ctypes.data for p in range(count)]
        self._said = [counters[member, p:].ctypes.data for p in range(count)]
        self._lost: set[int] = set()
        self._is_aborted = False

    def send(self, others: Sequence[int]) -> None:
        """Signal to each of these members."""
        row, sent, sleeping, me = self._row, self.sent, self._sleeping, self._member + 1
        for other in others:
            sent[other] = row[other] = sent[other] + 1
        futex.fence()
        for other in others:
            if sleeping[other] == me:
                futex.wake(self._said[other])

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
        column, end_s = self._column, 0.0
        for other, number in zip(others, due, strict=True):
            while column[other] < number:
                now_s = perf_counter()
                if not end_s:
                    end_s = now_s + YIELD_FOR_S
                elif now_s > end_s:
                    self._sleep_for(other, number)
                    break
                os.sched_yield()

    def abort(self) -> None:
        """From another thread: let each wait, now and later, end with an error."""
        self._is_aborted = True
        for address in self._heard:
            futex.wake(address)

    def _sleep_for(self, other: int, due: int) -> None:
        while (seen := self._column[other]) < due:
            if other in self._lost or self._is_aborted:
                raise PeerLostError(f"device {other} does not come: it, or one that it waits for, is gone")
            self._sleeping[self._member] = other + 1
            futex.fence()
            futex.sleep(self._heard[other], seen, _LOOK_AGAIN)
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
