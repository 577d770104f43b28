"""The blocks of a member's own region: which are given out, to whom, which wait for their next use, which have pages.

The first touch of a fresh page costs more than most maths, a recycled one nothing. So a block keeps its size, and is
given again once no member holds it; of those that wait, the pages of some are kept. Only where there is no room for a
new block, as after hours with values of many sizes, are waiting blocks joined and cut anew.

Which members hold which blocks stands at the start of the region: a byte for each block and member, set while that
member uses the block. These bytes change in three ways:

    add     by the owner, before it tells that member of the block
    take    by a member that another holder hands the block to; that one drops it after an exchange with this one
    drop    by a holder, with the region's monitor held; the region's owner needs no monitor for its own byte

The owner holds the monitor when it looks for blocks without a holder. So it sees a holder of a block that one member
hands to another: either the first has not dropped it yet, or what came before that is seen, too. Likewise what a holder
did with a block comes before what the owner does with it afterwards, in whatever order a processor loads and stores.

A member that is stopped with the monitor held blocks no other: the owner finds no free block for the time being, and a
member that drops one does so later.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tinyshard.runtime.shm import system
from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.shm.segment import Mapping

SLOTS = 1 << 15
# a member that has taken so many new pages asks, before it takes more, whether there are so many
ASKED_NBYTES = 1 << 26
# how long a member waits for a monitor: the member that has it runs a few statements, or is stopped
_ACQUIRES_WITHIN_S = 1e-3


class Block(NamedTuple):
    """A place in the arena that a member holds, as it is sent to other members.

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
        """Which block it is, wherever in it the values start."""
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
        self._monitors = [control.holders_monitor(owner) for owner in range(count + 1)]
        self._to_drop: deque[Block] = deque()

    def add(self, slot: int, members: Iterable[int]) -> None:
        """Give a block of the own region holders. They are sent the block afterwards."""
        table, at = self._tables[self._member], slot * self._stride
        for member in members:
            table[at + member] = 1

    def take(self, block: Block) -> None:
        """Hold a block that another member holds, and does not drop before this returns."""
        for dropped in [other for other in self._to_drop if other.key == block.key]:
            self._to_drop.remove(dropped)  # else that would end this hold, later
        self._tables[block.owner][block.slot * self._stride + self._member] = 1

    def drop(self, block: Block) -> None:
        """Hold a block no more; one of another region as soon as its monitor can be had."""
        if block.owner == self._member:
            self._tables[block.owner][block.slot * self._stride + self._member] = 0
        else:
            self._to_drop.append(block)
            self.drop_waiting()

    def drop_waiting(self) -> None:
        """Drop the blocks of which the monitor could not be had before."""
        while self._to_drop:
            block = self._to_drop.popleft()
            monitor = self._monitors[block.owner]
            if not monitor.acquire(_ACQUIRES_WITHIN_S):
                self._to_drop.appendleft(block)
                return
            self._tables[block.owner][block.slot * self._stride + self._member] = 0
            monitor.release()

    def own_slots(self, used: int) -> set[int]:
        """Of the first `used` blocks of the own region, those that this member itself holds."""
        return set(np.flatnonzero(self._own[:used].view(np.uint8)[:, self._member]).tolist())

    def all_free(self, used: int) -> np.ndarray:
        """bool[used]: which of the first blocks of the own region no member holds; all False if none is seen."""
        monitor = self._monitors[self._member]
        try:
            if monitor.acquire(_ACQUIRES_WITHIN_S):
                return functools.reduce(np.bitwise_or, self._own[:used].T) == 0  # `any` takes ten times as long
        finally:
            monitor.release()
        return np.zeros(used, bool)


def rounded(nbytes: int) -> int:
    """Sizes in steps of an eighth, so that blocks find a next use: 1000 pages take 1024."""
    pages = max(1, -(-nbytes // system.PAGE_NBYTES))
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * system.PAGE_NBYTES


class Region:
    """The blocks of one member. One thread at a time may use it.

    Args:
        start: offset of its first block, a multiple of the page size.
        end: where it ends.
        most_kept_nbytes: of pages of blocks that wait for their next use.
        most_kept_idle_nbytes: likewise, when nothing has been made for a while.
    """

    def __init__(
        self,
        mapping: Mapping,
        holders: Holders,
        member: int,
        start: int,
        end: int,
        most_kept_nbytes: int,
        most_kept_idle_nbytes: int,
    ) -> None:
        self._mapping = mapping
        self._holders = holders
        self._member = member
        self._start = start
        self._end = end
        self._most_kept_nbytes = most_kept_nbytes
        self._most_kept_idle_nbytes = most_kept_idle_nbytes
        self._offsets: list[int] = []  # by slot
        self._sizes: list[int] = []
        self._given = np.zeros(SLOTS, bool)
        self._waiting: dict[int, dict[int, None]] = {}  # by size, the last one to be given next
        self._unasked_nbytes = 0
        self._kept_nbytes = 0  # of waiting blocks whose pages are there
        self._without_pages: set[int] = set()
        self._unused: list[int] = []  # slots whose addresses belong to another block now

    @property
    def used(self) -> int:
        """How many blocks there are."""
        return len(self._offsets)

    def place(self, slot: int) -> tuple[int, int]:
        """Offset and size of a block."""
        return self._offsets[slot], self._sizes[slot]

    def has_waiting(self, size: int) -> bool:
        """Whether a block of this size waits for its next use."""
        return bool(self._waiting.get(size))

    def give(self, size: int, holders: Iterable[int]) -> Block:
        """A block: one that waits, or else a new one. Wherever Ctrl-C strikes, a block that is not given still waits.

        Args:
            size: as `rounded` has it.
            holders: members that hold it from now on.

        Raises:
            MemoryError: the region, or the machine, is full.
        """
        waiting = self._waiting.setdefault(size, {})
        slot = next(reversed(waiting), None)
        if slot is None:
            self._check_room(size)
            slot = self._grow(size)
        elif slot in self._without_pages:
            self._check_room(size)
            self._without_pages.discard(slot)
        else:
            self._kept_nbytes -= size
        self._holders.add(slot, holders)
        self._given[slot] = True
        waiting.pop(slot, None)  # only now
        return Block(self._member, slot, self._offsets[slot])

    def _check_room(self, size: int) -> None:
        """Raises if the machine has no room for new pages beside those that are taken without asking."""
        if self._unasked_nbytes + size >= ASKED_NBYTES:
            if size + ASKED_NBYTES > self._available_nbytes():
                self._give_back(0)
                if size + ASKED_NBYTES > (available := self._available_nbytes()):
                    spare = f"and {ASKED_NBYTES} to spare"
                    raise MemoryError(f"no memory for {size} more bytes {spare}: this machine has {available} left")
            self._unasked_nbytes = 0
        else:
            self._unasked_nbytes += size

    def _available_nbytes(self) -> float:
        """How much the machine can still give, and the folder in which the file lies."""
        found = system.available_nbytes(), self._mapping.room_nbytes()
        return min((nbytes for nbytes in found if nbytes is not None), default=float("inf"))

    def _grow(self, size: int) -> int:
        if self._start + size > self._end or not (self._unused or self.used < SLOTS):
            return self._cut(size)
        self._start += size
        return self._slot(self._start - size, size)

    def _slot(self, offset: int, size: int) -> int:
        slot = self._unused.pop() if self._unused else self.used
        self._sizes[slot : slot + 1] = [size]
        self._offsets[slot : slot + 1] = [offset]  # last: until then, Ctrl-C only leaves addresses unused
        return slot

    def _cut(self, size: int) -> int:
        """The end of a waiting block, or all of it if no slot is left. Those that lie side by side are joined first."""
        runs: dict[int, list[int]] = {}  # by where they end
        for offset, slot in sorted((self._offsets[slot], slot) for slots in self._waiting.values() for slot in slots):
            run = runs[offset + self._sizes[slot]] = runs.pop(offset, [])
            run.append(slot)
        for run in runs.values():
            nbytes = sum(map(self._take_out, run))
            self._given[run[1:]] = False
            self._unused += run[1:]
            self._put_back(run[0], nbytes)
        self._waiting = {nbytes: slots for nbytes, slots in self._waiting.items() if slots}
        large = min((nbytes for nbytes in self._waiting if nbytes >= size), default=0)
        if not large:
            raise MemoryError(f"no room for {size} shared bytes beside {self.used} blocks of device {self._member}")
        slot = next(iter(self._waiting[large]))
        self._take_out(slot)
        if large > size and (self._unused or self.used < SLOTS):
            self._put_back(slot, large - size)
            slot = self._slot(self._offsets[slot] + large - size, size)
        return slot

    def _take_out(self, slot: int) -> int:
        """Let a block wait no more, without pages; returns its size. If Ctrl-C strikes, `collect` finds the block."""
        size = self._sizes[slot]
        self._given[slot] = True
        self._waiting[size].pop(slot)
        self._kept_nbytes -= 0 if slot in self._without_pages else size
        self._without_pages.discard(slot)
        self._mapping.give_back(self._offsets[slot], size)
        return size

    def _put_back(self, slot: int, size: int) -> None:
        self._sizes[slot] = size
        self._without_pages.add(slot)
        self._waiting.setdefault(size, {})[slot] = None
        self._given[slot] = False

    def collect(self) -> None:
        """Find all blocks that no member holds any more; give back pages where there are too many of them."""
        idle = self._given[: self.used] & self._holders.all_free(self.used)
        for slot in np.flatnonzero(idle).tolist():
            self._waiting.setdefault(self._sizes[slot], {})[slot] = None
            self._given[slot] = False
            self._kept_nbytes += self._sizes[slot]
        self._give_back(self._most_kept_nbytes)

    def trim(self) -> None:
        """Give back the pages of all blocks that wait but a few."""
        self._give_back(self._most_kept_idle_nbytes)

    def _give_back(self, most_kept_nbytes: int) -> None:
        for size in sorted(self._waiting, reverse=True):
            for slot in self._waiting[size]:
                if self._kept_nbytes <= most_kept_nbytes:
                    return
                if slot not in self._without_pages:
                    if not self._mapping.give_back(self._offsets[slot], size):
                        return
                    self._without_pages.add(slot)
                    self._kept_nbytes -= size
