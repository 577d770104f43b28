"""Which members hold which blocks: tables in shared memory.

The table of a region's blocks is at its start: a byte for each block and member, set while that member uses the
block. These bytes change in three ways:

    add     by the owner, before it sends the block to that member
    take    by a member that gets the block from another holder, which drops it after an exchange with this member
    drop    by a holder, with the region's monitor held; the region's owner needs no monitor for its own byte

The owner holds the monitor when it searches for blocks without a holder. So it sees a holder of a block that one member
hands to another: either the first has not dropped it yet, or the owner also sees the writes before the drop. In the
same way a holder's accesses to a block come before the owner's later ones, in whatever order a processor loads and
stores.

A member that is stopped with the monitor held does not block other members: the owner finds no free block for the time
being, and a member that drops one does so later.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.shm.monitor import BRIEFLY_S

SLOTS = 1 << 15


class Block(NamedTuple):
    """A place in the arena that a member holds, in the form that is sent to other members.

    Attributes:
        owner: the member that hands it out.
        slot: its row in the owner's table.
        offset: of the values, from the start of the mapping.
    """

    owner: int
    slot: int
    offset: int

    @property
    def key(self) -> tuple[int, int]:
        """The key of its block, regardless of the offset of the values."""
        return self.owner, self.slot


def table_nbytes(count: int) -> int:
    """Size of the table of one region, of `count` devices and a controller."""
    return SLOTS * _stride(count)


def _stride(count: int) -> int:
    return -(-(count + 1) // 8) * 8


class Holders:
    """One member's end of all tables: of each member, the one that begins at its offset in `starts`."""

    def __init__(self, memory: np.ndarray, control: ControlBlock, starts: Sequence[int], member: int) -> None:
        count = len(starts) - 1
        self._member = member
        self._stride = _stride(count)
        self._tables = [memory[start : start + table_nbytes(count)].data for start in starts]
        start = starts[member]
        self._own = memory[start : start + table_nbytes(count)].view(np.uint64).reshape(SLOTS, -1)
        self._monitors = control.holders_monitors
        self._to_drop: deque[Block] = deque()

    def add(self, slot: int, members: Iterable[int]) -> None:
        """Add holders to a block of the own region. The block is sent to them afterwards."""
        table, position = self._tables[self._member], slot * self._stride
        for member in members:
            table[position + member] = 1

    def take(self, block: Block) -> None:
        """Hold a block that another member holds, and does not drop before this returns."""
        for dropped in [other for other in self._to_drop if other.key == block.key]:
            self._to_drop.remove(dropped)  # otherwise it would end this hold later
        self._tables[block.owner][block.slot * self._stride + self._member] = 1

    def drop(self, block: Block) -> None:
        """Stop holding a block; for another region, as soon as its monitor can be acquired."""
        if block.owner == self._member:
            self._tables[block.owner][block.slot * self._stride + self._member] = 0
        else:
            self._to_drop.append(block)
            self.drop_waiting()

    def drop_waiting(self) -> None:
        """Drop the blocks whose monitor could not be acquired before."""
        while self._to_drop:
            block = self._to_drop.popleft()
            monitor = self._monitors[block.owner]
            if not monitor.acquire(BRIEFLY_S):
                self._to_drop.appendleft(block)
                return
            self._tables[block.owner][block.slot * self._stride + self._member] = 0
            monitor.release()

    def own_slots(self, used: int) -> set[int]:
        """Those of the first `used` blocks of the own region that this member itself holds."""
        return set(np.flatnonzero(self._own[:used].view(np.uint8)[:, self._member]).tolist())

    def all_free(self, used: int) -> np.ndarray:
        """bool[used]: which of the first blocks of the own region no member holds; all False without the monitor."""
        monitor = self._monitors[self._member]
        try:
            if monitor.acquire(BRIEFLY_S):
                return functools.reduce(np.bitwise_or, self._own[:used].T) == 0  # `any` takes ten times as long
        finally:
            monitor.release()
        return np.zeros(used, bool)
