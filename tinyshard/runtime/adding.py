"""Who adds up the notes of a small sum: a device that has nothing else to do.

The last that comes to an exchange is mostly one of the core that has the most to do: the controller's, which is then to
see that the call is over. Other cores are done by then, and nobody needs them. So whoever is the last to come of those
of its core, and finds that others are missing, says that it will add up, and does so as soon as all have come. The last
of all then finds that it need not.

Who adds up has not done its part of the call before the sum is made. If it comes to sleep over it, it takes its word
back: then the last of all adds up after all. Each passes a fence between its own word and its look at the other's, so
that one of the two does; if both do, there are two equal sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyshard.runtime.collectives.base import Group
from tinyshard.runtime.collectives.reduction import add_rows
from tinyshard.runtime.futex import fence
from tinyshard.runtime.shm.control_block import Board
from tinyshard.runtime.signals import Signals


class Adding:
    """One device's share in the sums of one group.

    Args:
        board: what all of them see.
        signals: how they meet.
        group: the members.
        mates: ids of the others that keep to this device's core.
    """

    def __init__(self, board: Board, signals: Signals, group: Group, mates: Sequence[int]) -> None:
        self._words = board.adding.data
        self._device = group.members[group.place]
        self._signals = signals
        self._group = group
        self._elsewhere = tuple(m for m in group.others if m not in mates)

    def is_for_another(self) -> bool:
        """Whether a device of another core adds up the exchange to which this one has come last."""
        words, count_of = self._words, self._signals.count_of
        return any(words[other] and words[other] == count_of(other) for other in self._elsewhere)

    def is_for_this_one(self) -> bool:
        """Whether it is this device's, if it is the last of its core and others are missing: whether no other does."""
        return bool(self._elsewhere) and not self.is_for_another()

    def waits_to_add(self, rows: np.ndarray, out: np.ndarray) -> bool:
        """Wait for a while for the others, and add up what they have given.

        Args:
            rows: [count, size], of the members that count this exchange as this one does.
            out: [size], takes the sum.

        Returns:
            Whether it is made: all have come soon, and count alike, and there was memory. If not, it may still be this
            device's to make: if all have come by then.
        """
        signals, others, number = self._signals, self._group.others, self._signals.number
        self._words[self._device] = number
        fence()
        is_made = False
        try:
            add_rows(rows, out)  # of what is there: what this takes is in the caches when it counts
            if signals.have_come(others) or signals.comes_soon(lambda: signals.have_come(others)):
                counted = signals.numbers(others)
                if counted.count(number) == len(counted):
                    add_rows(rows, out)
                    is_made = True
        except MemoryError:  # whoever makes it then hears of it
            pass
        finally:
            self._words[self._device] = 0
            fence()
        return is_made
