"""Memory that the controller and all workers of one host map: each member lends blocks of its own region to others.

One file without a name (`shm.segment`), mapped once:

    control block             counters and small messages (`shm.control_block`)
    region of device 0        table of holders | blocks (`shm.region`)
    ...
    region of the controller  table of holders | blocks

A tensor of a block holds it, and so do its views. When the last is gone, the member releases the block.

Whatever the order in which a processor performs loads and stores, a member sees the values of a block that it gets: it
learns of the block by the log of calls (`shm.waking`), by the barrier of an exchange, or by the monitor of a table of
holders, and each of these orders the operations before and after it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from tinyshard.runtime import forks
from tinyshard.runtime.shm import control_block, segment, system
from tinyshard.runtime.shm.holders import Block, Holders, table_nbytes
from tinyshard.runtime.shm.region import Region, rounded
from tinyshard.runtime.shm.segment import Mapping

# the end does not wait for a thread that hangs
_LEAVES_AFTER_S = 1.0
# for a block of this size a finalizer costs less than its pages: it releases the block at once
_AT_ONCE_NBYTES = 1 << 22
# smaller values are sent in messages and kept in private memory
SMALLEST_NBYTES = 1 << 15


def of_controller(count: int) -> Arena:
    """New memory for `count` devices, as the controller sees it.

    Raises:
        OSError: the system refuses.
    """
    with forks.held_off():
        fd = segment.create(count)
        try:
            return Arena(fd, count, count, is_controller=True)
        finally:
            os.close(fd)


class Arena:
    """One member's view of the memory.

    A finalizer must be short: the block of a tensor that is gone, if it is not large, is released at the next
    `let_go`, `trim`, or `allocate` that finds no free one. (In the controller a large one too: a KeyboardInterrupt may
    occur there anywhere, and a finalizer in Python could be lost.)

    Args:
        fd: the result of `segment.create`.
        count: number of devices.
        member: a device's id; `count` for the controller.
        is_controller: whether Ctrl-C may interrupt this process.

    Attributes:
        release: releases a block that this member holds without a tensor.
        freed: blocks whose tensors are gone, and that are not released yet.
    """

    def __init__(self, fd: int, count: int, member: int, *, is_controller: bool = False) -> None:
        self.count = count
        self.member = member
        first = control_block.nbytes(count)
        self._nbytes = os.fstat(fd).st_size
        region_nbytes = (self._nbytes - first) // (count + 1)
        self._mapping = Mapping(fd, self._nbytes)
        self.bytes = self._mapping.bytes
        self.address = self.bytes.ctypes.data
        self.control = control_block.ControlBlock(self.bytes[:first], count)
        starts = [first + m * region_nbytes for m in range(count + 1)]
        self._holders = Holders(self.bytes, self.control, starts, member)
        self.release = self._holders.drop
        start, end = starts[member] + rounded(table_nbytes(count)), starts[member] + region_nbytes
        share_nbytes = system.limit_nbytes() // (count + 1)
        self._region = Region(self._mapping, self._holders, member, start, end, share_nbytes)
        self._watches: dict[int, _Watch] = {}
        self._uses: dict[tuple[int, int], int] = {}  # of each held block: the number of its tensors
        self._places: dict[int, list[tuple[int, int]]] = {}  # and where they start
        self._settled: set[int] = set()  # own blocks that the user has, and that no other member uses any more
        self._has_left = False
        self._is_controller = is_controller
        self._at_once_nbytes = sys.maxsize if is_controller else _AT_ONCE_NBYTES
        self._allocating = threading.RLock()
        self.freed: deque[_Watch] = deque()
        if is_controller:
            forks.abandon_in_child(self)

    @property
    def fd(self) -> int:
        """A descriptor of the memory, for new members; it stays this one's."""
        return self._mapping.fd

    def is_for(self, nbytes: int) -> bool:
        """Whether such a value gets a block: not within an allocation of this thread that a finalizer interrupts."""
        return nbytes >= SMALLEST_NBYTES and not self._allocating._is_owned()  # type: ignore[attr-defined]

    # ---- blocks of the own region ---------------------------------------------------------------------------------

    def allocate(self, nbytes: int, holders: Iterable[int]) -> Block:
        """A block of the own region; values at its offset are aligned to pages.

        Args:
            nbytes: at least.
            holders: members that use it from now on; each releases it separately.

        Raises:
            MemoryError: the region, or the machine, is full.
        """
        with self._allocating:
            if self._has_left:
                raise MemoryError("the devices that shared this memory have been shut down")
            size = rounded(nbytes)
            if not self._region.has_waiting(size):
                self.collect()
            return self._region.give(size, holders)

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that holds a block of the own region, even if Ctrl-C interrupts this. Raises as `allocate`."""
        with self._allocating:
            return self.hold(self.allocate(math.prod(shape) * dtype.itemsize, [self.member]), shape, dtype)

    def copied(self, tensor: torch.Tensor, holders: Iterable[int]) -> Block:
        """A new block with the values of a tensor in row-major order."""
        block = self.allocate(tensor.nbytes, holders)
        self.view(block.offset, tensor.shape, tensor.dtype).copy_(tensor)
        return block

    def lend(self, block: Block, holder: int) -> None:
        """Add a holder to an own block, before the block is sent to it."""
        self._holders.add(block.slot, [holder])

    def let_go(self) -> None:
        """Release the blocks whose last tensor of this member is gone."""
        for _ in range(len(self.freed)):
            self._forget(self.freed[0])
            self.freed.popleft()
        self._holders.drop_waiting()

    def collect(self) -> None:
        """Find the blocks that no member holds any more; return pages if there are too many of them."""
        self.let_go()
        if self._is_controller:  # blocks without a tensor: Ctrl-C interrupted their allocation or release
            held = {watch.block.slot for watch in list(self._watches.values())}
            for slot in self._holders.own_slots(self._region.used) - held:
                self._release_own(slot)
        self._region.collect()

    def trim(self) -> None:
        """After an idle time: return the pages of all free blocks except a few."""
        if not self._allocating.acquire(blocking=False):  # another thread is allocating
            return
        try:
            if not self._has_left:
                self.collect()
                self._region.trim()
        finally:
            self._allocating.release()

    def _release_own(self, slot: int) -> None:
        """Release an own block; before a member writes there, this process maps it shared again."""
        self._settled.discard(slot)
        offset, _ = self._region.place(slot)
        self._mapping.share_again(offset)
        self._holders.drop(Block(self.member, slot, offset))

    # ---- any block --------------------------------------------------------------------------------------------------

    def view(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The values at an offset, valid while a member holds the block."""
        return _tensor_of(self._array(offset, shape, dtype), shape, dtype)

    def _array(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
        return self.bytes[offset : offset + math.prod(shape) * dtype.itemsize]

    def hold(self, block: Block, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of a block whose byte for this member is set. Without its last view, the block may be released."""
        array = self._array(block.offset, shape, dtype)
        watch = _Watch(array, self.freed.append if array.nbytes < self._at_once_nbytes else self._forget)
        watch.block = block
        self._watches[id(watch)] = watch
        key = block.key
        self._uses[key] = self._uses.get(key, 0) + 1
        self._places.setdefault(block.offset, []).append(key)
        return _tensor_of(array, shape, dtype)

    def adopt(self, block: Block, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Hold a block that another member holds and will not release before this returns."""
        self._holders.take(block)
        return self.hold(block, shape, dtype)

    def _forget(self, watch: _Watch) -> None:
        if self._watches.pop(id(watch), None) is None:
            return  # Ctrl-C came after it was done
        block = watch.block
        key = block.key
        if self._is_controller:  # it holds a block as one tensor, which Ctrl-C may have prevented from being noted
            self._places.pop(block.offset, None)
            self._uses.pop(key, None)
            self._release_own(block.slot)
            return
        places = self._places[block.offset]
        places.remove(key)
        if not places:
            del self._places[block.offset]
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
            self.release(block)

    def offset_of(self, tensor: torch.Tensor) -> int:
        """The offset of a tensor's values in the arena, if they are contiguous in row-major order; else -1."""
        if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
            return -1
        offset = tensor.data_ptr() - self.address
        return offset if 0 <= offset < self._nbytes else -1

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The held block that contains a tensor's values, offset to their start; None if there is none."""
        offset = self.offset_of(tensor)
        places = self._places.get(tensor.untyped_storage().data_ptr() - self.address) if offset >= 0 else None
        return Block(*places[0], offset) if places else None

    # ---- the end, and forked children -----------------------------------------------------------------------------

    def settle(self, block: Block) -> None:
        """Note that an own block has its last values, for the user; no other member will read or write it."""
        self._settled.add(block.slot)

    def prepare_for_fork(self) -> None:
        """Make the user's values private, so that neither this process nor the child sees the writes of the other."""
        self._make_private(is_copied=True)

    def _make_private(self, *, is_copied: bool) -> None:
        for watch in list(self._watches.values()):
            slot = watch.block.slot
            array = watch()  # while it exists, this process holds the block
            if array is not None and slot in self._settled:
                with contextlib.suppress(OSError):  # the system has no more: it stays shared
                    self._mapping.make_private(*self._region.place(slot), is_copied=is_copied)

    def abandon(self) -> None:
        """In a process that user code has forked from this one: keep only the user's values."""
        self._has_left = True
        self._make_private(is_copied=True)  # values that other threads have got since
        self._mapping.leave()

    def leave(self) -> None:
        """At the end of the pool, as in `abandon`: keep only the user's values."""
        has_lock = self._allocating.acquire(timeout=_LEAVES_AFTER_S)
        try:
            if not self._has_left:
                self._has_left = True
                self._make_private(is_copied=False)
                with contextlib.suppress(OSError):
                    self._mapping.leave()
        finally:
            if has_lock:
                self._allocating.release()


def _tensor_of(array: np.ndarray, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor that has these bytes, in row-major order, without a copy."""
    if not array.nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    tensor = torch.frombuffer(array, dtype=dtype)
    return tensor if len(shape) == 1 else tensor.view(tuple(shape))


class _Watch(weakref.ref[np.ndarray[Any, Any]]):
    """A weak reference that stores its block."""

    __slots__ = ("block",)

    block: Block
