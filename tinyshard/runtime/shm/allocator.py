"""Memory that the controller and all workers of one host map: each member lends blocks of its own region to others.

One file without a name, far larger than it will ever be filled (untouched pages cost nothing), mapped once:

    control block             counters and small messages (`tinyshard.runtime.shm.control_block`)
    region of device 0        table of holders | blocks
    ...
    region of the controller  table of holders | blocks

Only its owner hands out blocks of a region. A block has a byte for each member, set while that member uses the block;
the owner recycles it when all are zero. The first touch of a fresh page costs more than most maths, a recycled one
nothing. Plain stores do, for a byte has one writer at a time: the owner, until it tells somebody of the block; then the
member that it is about.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from tinyshard.runtime import forks
from tinyshard.runtime.shm import control_block, memory_limit
from tinyshard.runtime.shm.segment import Mapping

REGION_NBYTES = 1 << 36
SLOTS = 1 << 15
PAGE_NBYTES = 4096
_LOOKED_AT = 16
# how often it is looked for blocks that nobody holds, if members adopt some meanwhile
_LOOKS = 4
# the end does not wait for a thread that hangs
_LEAVES_AFTER_S = 1.0
# who has taken so many new pages asks, before it takes more, whether there are so many
_ASKED_NBYTES = 1 << 26
# whoever waits for room of this size waits longer for its pages than for a finalizer
_AT_ONCE_NBYTES = 1 << 22
# what is smaller travels in messages and lives in private memory
SMALLEST_NBYTES = 1 << 15
_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in (
        "float64", "float32", "float16", "complex128", "complex64", "bool",
        "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
    )
}  # fmt: skip
# by what name a tensor that lies in an arena as it was made knows where: torch takes four calls to tell
_ADDRESS = "_tinyshard_address"
_MADV_REMOVE = getattr(mmap, "MADV_REMOVE", 9)


class Block(NamedTuple):
    """A place in the arena that somebody holds, as it is told to others.

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


def is_possible(count: int = 8) -> bool:
    """Whether `count` workers can share memory: plain stores keep their order, a file needs no name, and it is mapped.

    No page of it is touched here: where the size of address spaces is limited, the mapping is refused.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or not hasattr(os, "memfd_create"):
        return False
    try:
        fd = create(count)
    except OSError:
        return False
    try:
        Mapping(fd, _mapped_nbytes(count)).close()
    except (OSError, ValueError):
        return False
    finally:
        os.close(fd)
    return True


def _mapped_nbytes(count: int) -> int:
    return control_block.nbytes(count) + (count + 1) * REGION_NBYTES


def create(count: int) -> int:
    """A descriptor of the memory for `count` devices and a controller."""
    fd = os.memfd_create("tinyshard arena")
    try:
        os.ftruncate(fd, _mapped_nbytes(count))
        control_block.initialise(mmap.mmap(fd, control_block.nbytes(count)), count)
    except OSError:
        os.close(fd)
        raise
    return fd


def of_controller(count: int) -> Arena:
    """New memory for `count` devices, as the controller sees it.

    Raises:
        OSError: the system refuses.
    """
    with forks.held_off():
        fd = create(count)
        try:
            return Arena(fd, count, count, is_controller=True)
        finally:
            os.close(fd)


class Arena:
    """One member's view of the memory.

    Whoever frees a tensor has something else to do first: its block, if it is not large, is let go of at the next
    `let_go`, `trim`, or `allocate` that finds no free one. (In the controller a large one too: a KeyboardInterrupt may
    strike there anywhere, and a finalizer in Python could be lost.)

    Args:
        fd: what `create` gave.
        count: number of devices.
        member: a device's id; `count` for the controller.
        is_controller: where Ctrl-C strikes. `trim` is called when nothing happens, so it may keep much until then.

    Attributes:
        freed: whose tensors are gone, and that is still to be let go of.
    """

    def __init__(self, fd: int, count: int, member: int, *, is_controller: bool = False) -> None:
        self.count = count
        self.member = member
        first = control_block.nbytes(count)
        self._mapping = Mapping(fd, _mapped_nbytes(count))
        self._map = self._mapping.pages
        self.bytes = self._mapping.bytes
        self.address = self.bytes.ctypes.data
        self._nbytes = len(self.bytes)
        self.control = control_block.ControlBlock(self.bytes[:first], count)
        self._base = torch.from_numpy(self.bytes)
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self._arrays: dict[torch.dtype, np.ndarray] = {}
        stride = -(-(count + 1) // 8) * 8
        starts = [first + m * REGION_NBYTES for m in range(count + 1)]
        self._tables = [self.bytes[start : start + SLOTS * stride].data for start in starts]
        self._stride = stride
        self._adopted = self.control.adopted.data
        self._own = self.bytes[starts[member] : starts[member] + SLOTS * stride].view(np.uint64).reshape(SLOTS, -1)
        self._nobody = bytes(stride)
        self._start = first + member * REGION_NBYTES + _rounded(SLOTS * stride)
        self._end = first + (member + 1) * REGION_NBYTES
        self._offsets: list[int] = []  # by slot
        self._sizes: list[int] = []
        self._given = np.zeros(SLOTS, bool)
        self._free: dict[int, dict[int, None]] = {}  # by size, the last one to be given next
        self._out: dict[int, deque[int]] = {}  # given ones, by size, oldest first
        self._unasked_nbytes = 0
        self._kept_nbytes = 0  # of free blocks whose pages are there
        self._without_pages: set[int] = set()
        memory_nbytes = memory_limit.limit_nbytes()
        self._most_kept_idle_nbytes = memory_nbytes // (64 * (count + 1))
        self._most_kept_nbytes = memory_nbytes // 32 if is_controller else self._most_kept_idle_nbytes
        self._watches: dict[int, _Watch] = {}
        self._uses: dict[tuple[int, int], int] = {}  # of what this member holds: how many tensors
        self._places: dict[int, list[tuple[int, int]]] = {}  # and where they start
        self._settled: set[int] = set()  # own blocks that the user has, and that no other member uses any more
        self._has_left = False
        self._is_controller = is_controller
        self._at_once_nbytes = sys.maxsize if is_controller else _AT_ONCE_NBYTES
        self._allocating = threading.RLock()
        self.freed: deque[_Watch] = deque()
        if is_controller:
            forks.abandon_in_child(self)
            forks.prepare_before_fork(self)

    @property
    def fd(self) -> int:
        """A descriptor of the memory, for new members; it stays this one's."""
        return self._mapping.fd

    def is_for(self, nbytes: int) -> bool:
        """Whether a value of this size is to have a block of the own region.

        It is not where a finalizer or a signal's handler runs in the middle of this thread's own allocation, which goes
        on after that: what is allocated within would get the same block.
        """
        return nbytes >= SMALLEST_NBYTES and not self._allocating._is_owned()  # type: ignore[attr-defined]

    # ---- blocks of the own region ---------------------------------------------------------------------------------

    def allocate(self, nbytes: int, holders: Iterable[int]) -> Block:
        """A block of the own region; values at its offset are aligned to pages.

        Args:
            nbytes: at least.
            holders: members that use it from now on; each lets go of it by itself.

        Raises:
            MemoryError: the region, or the machine, is full.
        """
        with self._allocating:
            return self._allocate(nbytes, holders)

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in a block of the own region; wherever Ctrl-C strikes, its block is held as long as it.

        Raises:
            MemoryError: as `allocate`.
        """
        with self._allocating:
            return self.hold(self._allocate(math.prod(shape) * dtype.itemsize, [self.member]), shape, dtype)

    def _allocate(self, nbytes: int, holders: Iterable[int]) -> Block:
        if self._has_left:
            raise MemoryError("the devices that shared this memory have been shut down")
        size = _rounded(nbytes)
        slots = self._free.setdefault(size, {})
        if not slots and not self._take_back(size):
            self.collect()
        slot = next(reversed(slots), None)
        if slot is None:
            self._check_room(size)
            slot = self._grow(size)
        elif slot in self._without_pages:
            self._check_room(size)
            self._without_pages.discard(slot)
        else:
            self._kept_nbytes -= size
        table, at = self._tables[self.member], slot * self._stride
        for holder in holders:
            table[at + holder] = 1
        self._given[slot] = True
        slots.pop(slot, None)  # only now: a block that Ctrl-C keeps from being given is still free
        self._out[size].append(slot)
        return Block(self.member, slot, self._offsets[slot])

    def _check_room(self, size: int) -> None:
        """Raises if the machine has no room for new pages beside those that are taken without asking."""
        if self._unasked_nbytes + size >= _ASKED_NBYTES:
            available = memory_limit.available_nbytes()
            if available is not None and size + _ASKED_NBYTES > available:
                self._give_back(0)
                available = memory_limit.available_nbytes()
            if available is not None and size + _ASKED_NBYTES > available:
                spare = f"and {_ASKED_NBYTES} to spare"
                raise MemoryError(f"no memory for {size} more bytes {spare}: this machine has {available} left")
            self._unasked_nbytes = 0
        else:
            self._unasked_nbytes += size

    def _grow(self, size: int) -> int:
        slot = len(self._offsets)
        if slot == SLOTS or self._start + size > self._end:
            raise MemoryError(f"no room for {size} more shared bytes beside {slot} blocks of device {self.member}")
        self._sizes[slot:] = [size]
        offset = self._start
        self._start += size
        self._offsets.append(offset)  # last: until then, Ctrl-C only leaves addresses unused
        return slot

    def _take_back(self, size: int) -> bool:
        """Find a block of this size that was given out long ago and that nobody holds any more."""
        self.let_go()
        out = self._out.setdefault(size, deque())
        for _ in range(min(_LOOKED_AT, len(out))):
            slot = out.popleft()
            if self._given[slot]:
                if not self._is_idle(slot):
                    out.append(slot)
                    continue
                self._recycle(slot)
                return True
        return False

    def _is_idle(self, slot: int) -> bool:
        at, before = slot * self._stride, self._adopted.tolist()
        is_idle = self._tables[self.member][at : at + self._stride] == self._nobody
        return is_idle and self._is_calm(before)

    def _is_calm(self, before: Sequence[int]) -> bool:
        """Whether no member has adopted a block since these counts were read.

        Else a byte may have been read before its member adopted the block, and that of the member from which it came
        after that had let go: nobody seems to hold a block that is never without a holder.
        """
        return self._adopted.tolist() == before and not any(count % 2 for count in before)

    def _recycle(self, slot: int) -> None:
        self._free[self._sizes[slot]][slot] = None
        self._given[slot] = False
        self._kept_nbytes += self._sizes[slot]

    def let_go(self) -> None:
        """Let go of the blocks whose last tensor of this member is gone."""
        for _ in range(len(self.freed)):
            self._forget(self.freed[0])
            self.freed.popleft()

    def collect(self) -> None:
        """Find the blocks that nobody holds any more; give back pages where there are too many of them."""
        self.let_go()
        used = len(self._offsets)
        if self._is_controller:
            self._let_go_of_lost(used)
        for _ in range(_LOOKS):
            before = self._adopted.tolist()
            idle = self._given[:used] & ~self._own[:used].any(1)
            if self._is_calm(before):
                for slot in np.flatnonzero(idle).tolist():
                    self._recycle(slot)
                break
        for size, out in self._out.items():
            self._out[size] = deque(slot for slot in out if self._given[slot])
        self._give_back(self._most_kept_nbytes)

    def _let_go_of_lost(self, used: int) -> None:
        """Let go of own blocks that have no tensor: Ctrl-C struck while they got one, or while they were let go of."""
        held = {watch.block.slot for watch in list(self._watches.values())}
        own = self._own[:used].view(np.uint8)[:, self.member]
        for slot in set(np.flatnonzero(own).tolist()) - held:
            self._release_own(slot)

    def _release_own(self, slot: int) -> None:
        """Let go of an own block; before anybody writes there, this process sees it as the others do again."""
        self._settled.discard(slot)
        self._mapping.share_again(self._offsets[slot])
        self._tables[self.member][slot * self._stride + self.member] = 0

    def trim(self) -> None:
        """Nothing has been made for a while: give back the pages of all free blocks but a few."""
        with self._allocating:
            if self._has_left:
                return
            self.collect()
            self._give_back(self._most_kept_idle_nbytes)

    def _give_back(self, most_kept_nbytes: int) -> None:
        for size in sorted(self._free, reverse=True):
            for slot in self._free[size]:
                if self._kept_nbytes <= most_kept_nbytes:
                    return
                if slot not in self._without_pages:
                    self._map.madvise(_MADV_REMOVE, self._offsets[slot], size)
                    self._without_pages.add(slot)
                    self._kept_nbytes -= size

    # ---- any block --------------------------------------------------------------------------------------------------

    def view(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Values in row-major order at an offset, for as long as somebody is known to hold the block."""
        return self._all_of(dtype).as_strided(shape, _row_major(shape), offset // dtype.itemsize)

    def _all_of(self, dtype: torch.dtype) -> torch.Tensor:
        typed = self._typed.get(dtype)
        if typed is None:
            typed = self._typed[dtype] = self._base.view(dtype)
        return typed

    def _array_of(self, dtype: torch.dtype) -> np.ndarray:
        array = self._arrays.get(dtype)
        if array is None:
            # NumPy has no bfloat16, for one
            same = _NUMPY[dtype] if dtype in _NUMPY else np.dtype(f"u{dtype.itemsize}")
            array = self._arrays[dtype] = self.bytes.view(same)
        return array

    def hold(self, block: Block, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of a block whose byte for this member is set. Once its last view is gone, it may be let go of."""
        start = block.offset // dtype.itemsize
        array = self._array_of(dtype)[start : start + math.prod(shape)]
        watch = _Watch(array, self.freed.append if array.nbytes < self._at_once_nbytes else self._forget)
        watch.block = block
        self._watches[id(watch)] = watch
        key = block.key
        self._uses[key] = self._uses.get(key, 0) + 1
        self._places.setdefault(block.offset, []).append(key)
        tensor = torch.from_numpy(array)
        if tensor.dtype != dtype:
            tensor = tensor.view(dtype)
        if len(shape) != 1:
            tensor = tensor.view(tuple(shape))
        if not self._is_controller:  # there the user may do anything with it
            tensor.__dict__[_ADDRESS] = self.address + block.offset
        return tensor

    def adopt(self, block: Block, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Hold a block that another member holds and will not let go of before this returns."""
        self._adopted[self.member] += 1
        self._tables[block.owner][block.slot * self._stride + self.member] = 1
        self._adopted[self.member] += 1
        return self.hold(block, shape, dtype)

    def _forget(self, watch: _Watch) -> None:
        if self._watches.pop(id(watch), None) is None:
            return  # Ctrl-C struck after it was done
        block = watch.block
        key = block.key
        if self._is_controller:  # it holds a block as one tensor, which Ctrl-C may have kept from being noted
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

    def release(self, block: Block) -> None:
        """Let go of a block that this member holds and made no tensor of."""
        self._tables[block.owner][block.slot * self._stride + self.member] = 0

    def lend(self, block: Block, holder: int) -> None:
        """Add a holder to an own block, before it is told of it."""
        self._tables[self.member][block.slot * self._stride + holder] = 1

    def offset_of(self, tensor: torch.Tensor) -> int:
        """Where a tensor's values lie in the arena, in row-major order and nothing between; -1 if they do not."""
        address: int | None = tensor.__dict__.get(_ADDRESS)
        if address is None:
            if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
                return -1
            address = tensor.data_ptr()
        offset = address - self.address
        return offset if 0 <= offset < self._nbytes else -1

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The held block in which a tensor's values lie, offset to where they start; None if there is none."""
        offset = self.offset_of(tensor)
        places = self._places.get(tensor.untyped_storage().data_ptr() - self.address) if offset >= 0 else None
        return Block(*places[0], offset) if places else None

    # ---- the end, and forked children -----------------------------------------------------------------------------

    def settle(self, block: Block) -> None:
        """Note that an own block has its last values, for the user; no other member will read or write it."""
        self._settled.add(block.slot)

    def prepare_for_fork(self) -> None:
        """Let what the user has be this process's own, so that neither it nor the child sees what the other writes."""
        self._make_private(is_copied=True)

    def _make_private(self, *, is_copied: bool) -> None:
        for watch in list(self._watches.values()):
            slot = watch.block.slot
            array = watch()  # while it is there, nobody lets go of the block
            if array is not None and slot in self._settled:
                with contextlib.suppress(OSError):  # the system has no more: it stays shared
                    self._mapping.make_private(self._offsets[slot], self._sizes[slot], is_copied=is_copied)

    def abandon(self) -> None:
        """In a process that user code has forked from this one: keep what the user has, and nothing of the rest."""
        self._has_left = True
        self._make_private(is_copied=True)  # what other threads have got since
        self._mapping.leave()

    def leave(self) -> None:
        """The other members are gone: likewise."""
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

    def copied(self, tensor: torch.Tensor, holders: Iterable[int]) -> Block:
        """A new block with the values of a tensor in row-major order."""
        block = self.allocate(tensor.nbytes, holders)
        self.view(block.offset, tensor.shape, tensor.dtype).copy_(tensor)
        return block


class _Watch(weakref.ref[np.ndarray[Any, Any]]):
    """A weak reference that knows which block it stands for."""

    __slots__ = ("block",)

    block: Block


def _rounded(nbytes: int) -> int:
    """Sizes in steps of an eighth, so that blocks find a next use: 1000 pages take 1024."""
    pages = max(1, -(-nbytes // PAGE_NBYTES))
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * PAGE_NBYTES


def _row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [0] * len(shape), 1
    for d in range(len(shape) - 1, -1, -1):
        strides[d] = step
        step *= shape[d]
    return strides
