"""How processes that share memory wait for each other, without a compiler and without atomic instructions.

Each member counts the exchanges that it takes part in, and tells each of the others the number of this one, in a place
that it alone writes. Who then finds that all have come may be the last, and wakes all the others with one system call:
they sleep on one number, the group's gate. Two may find so at the same time; that none does cannot be, for each passes
a fence between its own word and its look at the others'. (Or it leaves that to one that is awake and has more to tell
them: `adding`.) Before it sleeps, each lets others run for a moment (`yielding`), unless they need its core to come
(`nap`). Groups with the same least member share a gate: who is woken looks again. Once one member is missed for
good, nothing is waited for any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from tinyshard.runtime.collectives.base import Group
from tinyshard.runtime.futex import Futex, fenced, timespec
from tinyshard.runtime.yielding import YIELD_IN_EXCHANGE_FOR_NS, Yielding

# how long to sleep before looking whether the others still live; more often would look like work (`watching`)
LOOK_AGAIN_S = 1.0
# between two looks at what nobody is woken for
PAUSE_S = 2e-4

_LOOK_AGAIN = timespec(LOOK_AGAIN_S)


class PeerLostError(RuntimeError):
    """Another device is gone, so that what was to be done together cannot be done."""


class Signals:
    """One member's end. Plain Python on memoryviews: for a few numbers NumPy is slower.

    Args:
        told: int64, in shared memory: by the member that tells, the one that is told, and the parity of the exchanges
            between these two, as which of its exchanges the first counts this one. (Of the last two, for it may come to
            the next one before the other has read of this.)
        gates: int64, in shared memory: by the least member of a group, what is changed when all of it have come; there
            may be more of them.
        pids: int64, in shared memory: process ids by member; 0 if not yet known.
        crowded: of `Yielding`.
        member: whose end this is.

    Attributes:
        number: how many exchanges this member has come to.
        gates: what is changed when all of a group have come.
        is_out_of_step: it has given one up, so what it has not heard before it would take for a later word.
    """

    def __init__(self, told: np.ndarray, gates: np.ndarray, pids: np.ndarray, crowded: np.ndarray, member: int) -> None:
        count, columns, _ = told.shape
        self.number = 0
        self._told = told.reshape(-1).data
        self._to = [(member * columns + other) * 2 for other in range(count)]
        self._from = [(other * columns + member) * 2 for other in range(count)]
        self._parity = [0] * count
        self._heard = [0] * (2 * count)  # by member and parity
        self.gates = gates.data
        self._sleepers = [Futex(gates[p:].ctypes.data) for p in range(count)]
        self._pids = pids
        self._member = member
        self._lost: set[int] = set()
        self._is_aborted = False
        self.is_out_of_step = False
        self._yielding = Yielding(crowded.data, YIELD_IN_EXCHANGE_FOR_NS)

    def come(self, group: Group) -> None:
        """Tell the others of a group that this member has come to their next exchange."""
        self.number = number = self.number + 1
        told, to, parity = self._told, self._to, self._parity
        for other in group.others:
            parity[other] = turn = 1 - parity[other]
            told[to[other] + turn] = number
        with fenced:
            pass

    def wait(self, group: Group) -> list[int]:
        """Wait until the others have come to the exchange to which this member has come last.

        Returns:
            For each of the others, as which of its exchanges it counts this one.

        Raises:
            PeerLostError: one of them is gone.
        """
        self.check(group)
        if self.have_come(group.others):
            self.let_on(group)
        else:
            others = group.others
            self.wait_for(group, lambda: self.have_come(others), lambda: self.missing(others))
        return self.hear(group)

    def wait_for(self, group: Group, is_there: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Wait for something that who brings it lets the group on for.

        Args:
            group: the members.
            is_there: whether it is there.
            missing: of the others, those without whom it will not be.

        Raises:
            PeerLostError: one of those is gone.
        """
        if not self.comes_soon(is_there):
            while not is_there():
                self._sleep(group, is_there, missing)

    def comes_soon(self, is_there: Callable[[], bool]) -> bool:
        """Let others run for a while: whether it has come meanwhile."""
        return self._yielding.until(is_there, lambda: not is_there())

    def nap(self, group: Group, gate: int) -> None:
        """Sleep, if nobody has let the group on since its gate was read, before this member came.

        Who wakes must look whether all have come.
        """
        if not self._is_aborted:
            self._sleepers[group.gate].sleep(gate, _LOOK_AGAIN)

    def give_way(self, turns: int = 1) -> None:
        """This member has done its part: let those who have not have the core at once, so many times."""
        for _ in range(turns):
            self._yielding.once()

    def check(self, group: Group) -> None:
        """Raise PeerLostError if this member has given up an exchange before."""
        if self.is_out_of_step:
            self._check(group.others)

    def have_come(self, others: Sequence[int]) -> bool:
        """Whether these have come to the exchange to which this member has come last."""
        told, come_from, parity, heard = self._told, self._from, self._parity, self._heard
        for other in others:  # mostly one of the first is missing
            turn = parity[other]
            if told[come_from[other] + turn] == heard[2 * other + turn]:
                return False
        return True

    def missing(self, others: Sequence[int]) -> list[int]:
        """Which of these have not."""
        return [other for other in others if not self.have_come([other])]

    def count_of(self, other: int) -> int:
        """As which of its exchanges another counts the one to which this member has come last; 0 if it has not come."""
        turn = self._parity[other]
        number = self._told[self._from[other] + turn]
        return 0 if number == self._heard[2 * other + turn] else number

    def numbers(self, others: Sequence[int]) -> list[int]:
        """As which of its exchanges each of these, that have come, counts this one."""
        told, come_from, parity = self._told, self._from, self._parity
        return [told[come_from[other] + parity[other]] for other in others]

    def let_on(self, group: Group, *, again: bool = False) -> None:
        """Wake those who sleep until all have come, for this member may be the last; `again`: until parts are made."""
        self._open(group.gate, (2 * self.number + again) * len(self._to) + self._member)

    def hear(self, group: Group) -> list[int]:
        """Take note that all have come; returns what `wait` does."""
        told, come_from, parity, heard = self._told, self._from, self._parity, self._heard
        numbers = []
        for other in group.others:
            turn = parity[other]
            heard[2 * other + turn] = number = told[come_from[other] + turn]
            numbers.append(number)
        return numbers

    def wait_until(self, counts: memoryview, others: Sequence[int], numbers: Sequence[int]) -> None:
        """Wait until counts of others have reached these numbers. That is rare, so nobody is woken for it.

        Args:
            counts: int64, by member; in shared memory.
            others: whose counts.
            numbers: for each of them.

        Raises:
            PeerLostError: one of them is gone.
        """
        for other, number in zip(others, numbers, strict=True):
            if counts[other] < number:
                self._wait_for(counts, other, number)

    def _wait_for(self, counts: memoryview, other: int, number: int) -> None:
        looked_s = time.perf_counter()
        while counts[other] < number:
            self._check([other])
            time.sleep(PAUSE_S)
            if time.perf_counter() - looked_s > LOOK_AGAIN_S:
                self._look_after([other])
                looked_s = time.perf_counter()

    def abort(self) -> None:
        """From another thread: let each wait, now and later, end with an error."""
        self._is_aborted = True
        for gate in range(len(self._sleepers)):
            self._open(gate, -1 - self._member)

    def _open(self, gate: int, number: int) -> None:
        """Wake who sleeps at a gate, or is about to: for that, nobody may have written this number there before."""
        self.gates[gate] = number
        self._sleepers[gate].wake()

    def _sleep(self, group: Group, is_there: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Sleep until the gate opens. It is looked at before the others are: who comes last does so before it opens."""
        gate = group.gate
        seen = self.gates[gate]
        if self._is_aborted or self._lost:
            self._check(missing())
        if not is_there():
            self._sleepers[gate].sleep(seen, _LOOK_AGAIN)
            if self.gates[gate] == seen:
                self._look_after(missing())

    def _check(self, others: Sequence[int]) -> None:
        for other in others:
            if other in self._lost or self._is_aborted:
                self._is_aborted = self.is_out_of_step = True
                raise PeerLostError(f"device {other} does not come: it, or one that it waits for, is gone")

    def _look_after(self, others: Sequence[int]) -> None:
        for other in others:
            pid = int(self._pids[other])
            try:
                if pid:
                    os.kill(pid, 0)
            except ProcessLookupError:
                self._lost.add(other)
