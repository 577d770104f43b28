"""The blocks of a member's own region: which are in use, which are free, and which have pages.

The first touch of a fresh page costs more than most ops, a recycled one nothing. So a block keeps its size, and is
reused once no member holds it; the pages of some free blocks are kept. Only if there is no room for a
new block, as after hours with values of many sizes, the addresses of all free blocks are used for new ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul

import numpy as np

from tinyshard.runtime.shm import system
from tinyshard.runtime.shm.holders import SLOTS, Block, Holders
from tinyshard.runtime.shm.segment import Mapping

# a member that has taken this many new pages checks, before it takes more, whether that many are free
ASKED_NBYTES = 1 << 26


def rounded(nbytes: int) -> int:
    """Sizes in steps of an eighth, so that blocks can be reused: 1000 pages take 1024."""
    pages = max(1, -(-nbytes // system.PAGE_NBYTES))
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * system.PAGE_NBYTES


class Region:
    """The blocks of one member. One thread at a time may use it.

    Args:
        start: offset of its first block, a multiple of the page size.
        end: where it ends.
        share_nbytes: this member's share of the machine's memory. Free blocks keep pages of a part of it.
    """

    def __init__(
        self, mapping: Mapping, holders: Holders, member: int, start: int, end: int, share_nbytes: int
    ) -> None:
        self._mapping = mapping
        self._holders = holders
        self._member = member
        self._gaps = {end: start}  # addresses without a block: where they start, by where they end
        self._most_kept_nbytes, self._most_kept_idle_nbytes = share_nbytes // 4, share_nbytes // 64
        self._offsets: list[int] = []  # by slot
        self._sizes: list[int] = []
        self._given = np.zeros(SLOTS, bool)
        # free blocks by size, those with pages and those without; the last one is reused next
        self._waiting: dict[int, dict[int, None]] = {}
        self._bare: dict[int, dict[int, None]] = {}
        self._unasked_nbytes = 0
        self._unused: list[int] = []  # slots without a block

    @property
    def used(self) -> int:
        """The number of slots, including unused ones."""
        return len(self._offsets)

    def place(self, slot: int) -> tuple[int, int]:
        """Offset and size of a block."""
        return self._offsets[slot], self._sizes[slot]

    def has_waiting(self, size: int) -> bool:
        """Whether there is a free block of this size."""
        return bool(self._waiting.get(size) or self._bare.get(size))

    def give(self, size: int, holders: Iterable[int]) -> Block:
        """A block: a free one, or else a new one. If Ctrl-C interrupts this, the block stays free.

        Args:
            size: as `rounded` has it.
            holders: members that hold it from now on.

        Raises:
            MemoryError: the region, or the machine, is full.
        """
        slot = next(reversed(self._waiting.get(size, {})), None)
        if slot is None:
            self._check_room(size)
            slot = next(reversed(self._bare.get(size, {})), None)
        if slot is None:
            slot = self._new(size)
        self._holders.add(slot, holders)
        self._given[slot] = True
        for free in (self._waiting, self._bare):
            free.get(size, {}).pop(slot, None)  # only now
        return Block(self._member, slot, self._offsets[slot])

    def _check_room(self, size: int) -> None:
        """Raise if the machine has no room for new pages in addition to those that are taken without a check."""
        if self._unasked_nbytes + size < ASKED_NBYTES:
            self._unasked_nbytes += size
            return
        if size + ASKED_NBYTES > self._available_nbytes():
            self._give_back(0)
            if size + ASKED_NBYTES > (available := self._available_nbytes()):
                spare = f"and {ASKED_NBYTES} to spare"
                raise MemoryError(f"no memory for {size} more bytes {spare}: this machine has {available} left")
        self._unasked_nbytes = 0

    def _available_nbytes(self) -> float:
        """The free memory of the machine and of the folder in which the file is."""
        found = system.available_nbytes(), system.room_nbytes(self._mapping.fd)
        return min((nbytes for nbytes in found if nbytes is not None), default=float("inf"))

    def _new(self, size: int) -> int:
        """The slot of a new block: in a gap, or, if none is large enough, where free blocks are."""
        end = self._gap_for(size)
        if not end:
            self._dissolve()
            end = self._gap_for(size)
        if not end:
            blocks = self.used - len(self._unused)
            raise MemoryError(f"no room for {size} shared bytes beside {blocks} blocks of device {self._member}")
        start = self._gaps[end]
        self._gaps[end] = start + size
        slot = self._unused.pop() if self._unused else self.used
        self._sizes[slot : slot + 1] = [size]
        self._offsets[slot : slot + 1] = [start]  # last: until then, Ctrl-C only leaves a slot and addresses unused
        return slot

    def _gap_for(self, size: int) -> int:
        """The end of the first gap that is large enough; 0 if there is none, or no slot."""
        if not self._unused and self.used == SLOTS:
            return 0
        return next((end for end, start in self._gaps.items() if end - start >= size), 0)

    def _dissolve(self) -> None:
        """Turn all free blocks into gaps, without pages, and join adjacent ones."""
        self._give_back(0)
        free = list({slot for slots in (*self._waiting.values(), *self._bare.values()) for slot in slots})
        places = [(self._offsets[slot], self._offsets[slot] + self._sizes[slot]) for slot in free]
        gaps: dict[int, int] = {}
        for start, end in sorted([*places, *((start, end) for end, start in self._gaps.items())]):
            gaps[end] = gaps.pop(start, start)
        self._given[free] = False  # Ctrl-C may have interrupted `give`
        # one assignment: Ctrl-C strikes before it or after it, and no address is given out twice
        self._waiting, self._bare, self._unused, self._gaps = {}, {}, [*self._unused, *free], gaps

    def collect(self) -> None:
        """Find all blocks that no member holds any more; return pages if there are too many of them."""
        idle = self._given[: self.used] & self._holders.all_free(self.used)
        for slot in np.flatnonzero(idle).tolist():
            self._waiting.setdefault(self._sizes[slot], {})[slot] = None
            self._given[slot] = False
        self._give_back(self._most_kept_nbytes)

    def trim(self) -> None:
        """Return the pages of all free blocks except a few."""
        self._give_back(self._most_kept_idle_nbytes)

    def _kept_nbytes(self) -> int:
        """The pages of free blocks."""
        return sum(map(mul, self._waiting, map(len, self._waiting.values())))

    def _give_back(self, most_kept_nbytes: int) -> None:
        """Return pages of free blocks, the largest first, until these have no more than this."""
        too_many_nbytes = self._kept_nbytes() - most_kept_nbytes
        if too_many_nbytes <= 0:
            return
        for size in sorted(self._waiting, reverse=True):
            for slot in list(self._waiting[size]):
                if too_many_nbytes <= 0 or not self._mapping.give_back(self._offsets[slot], size):
                    return
                self._bare.setdefault(size, {})[slot] = None
                del self._waiting[size][slot]
                too_many_nbytes -= size
