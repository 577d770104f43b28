"""The file that the controller and all workers of one host share: how it is made, and mapped in one process.

It has no name, and is far larger than it will ever be filled, since pages that no process touches cost nothing.

A mapping can be replaced in place, so its tensors stay valid. A part that becomes private keeps its values
and is copied by the system: from then on other processes neither see writes there nor write there, and a forked
child gets a copy as of all other memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Any

import numpy as np

from tinyshard.runtime.shm import control_block, system

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_ANYWHERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | system.MAP_NORESERVE
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]

# of each member's region, the first that the system grants: blocks of other sizes share addresses only where there are
# no more. Some kernels for arm64 have 512 GiB of address space in all, and macOS may refuse a file larger than its disk
REGIONS_NBYTES = (1 << 36, 1 << 34, 1 << 32)


def is_possible(count: int = 8) -> bool:
    """Whether `count` workers can share memory here.

    No page of it is touched: where the size of address spaces is limited, the mapping is refused.
    """
    try:
        os.close(create(count))
    except (OSError, ValueError, OverflowError):
        return False
    return True


def create(count: int) -> int:
    """A descriptor of new memory, a file without a name, for `count` devices and a controller.

    Raises:
        OSError: the system refuses.
    """
    for region_nbytes in REGIONS_NBYTES[:-1]:
        with contextlib.suppress(OSError):
            return _create(count, region_nbytes)
    return _create(count, REGIONS_NBYTES[-1])


def _create(count: int, region_nbytes: int) -> int:
    fd = system.memory_file()
    try:
        nbytes = control_block.nbytes(count) + (count + 1) * region_nbytes
        os.ftruncate(fd, nbytes)
        Mapping(fd, nbytes).close()
        control_block.initialise(mmap.mmap(fd, control_block.nbytes(count)), count)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Mapping:
    """The whole file, mapped once.

    Args:
        fd: of the file; it may be closed afterwards.
        nbytes: its size.

    Attributes:
        fd: its own descriptor of the file; -1 once it is closed.
        bytes: all of it. The address space is given back when the last view of it is gone.

    Raises:
        OSError: the system refuses.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._nbytes = nbytes
        self.fd = os.dup(fd)
        # reserved without the file: Python's mmap would keep a descriptor of it, in forked children too
        self._pages = mmap.mmap(-1, nbytes, flags=_ANYWHERE, prot=mmap.PROT_READ)
        self._address = np.frombuffer(self._pages, np.uint8).ctypes.data
        self._own: dict[int, int] = {}  # sizes of the private parts, by where they start
        self._place(0, nbytes, mmap.MAP_SHARED, self.fd)
        memory: Any = (ctypes.c_ubyte * nbytes).from_address(self._address)
        memory.reserved = self._pages  # an array of `memory` keeps the mapping alive
        self.bytes = np.frombuffer(memory, np.uint8)

    def make_private(self, offset: int, nbytes: int, *, is_copied: bool = True) -> None:
        """Make a part of it, whole pages, private to this process, with its values.

        Args:
            is_copied: copy at once. Otherwise page by page at the first write; then no process may write to the file.

        Raises:
            OSError: the system refuses.
        """
        if self.fd >= 0 and offset not in self._own:
            self._own[offset] = nbytes  # first: Ctrl-C may occur between the two
            try:
                self._place(offset, nbytes, mmap.MAP_PRIVATE, self.fd)
            except OSError:
                del self._own[offset]
                raise
            if is_copied and not system.has_advised(self._pages, system.MADV_POPULATE_WRITE, offset, nbytes):
                # the first write to a page copies it. A thread that writes to this very byte may be overtaken
                self.bytes[offset : offset + nbytes : system.PAGE_NBYTES] |= np.uint8(0)

    def share_again(self, offset: int) -> None:
        """Undo `make_private`, if it was done: this process maps the file's values again."""
        nbytes = self._own.get(offset)
        if nbytes is not None and self.fd >= 0:
            self._place(offset, nbytes, mmap.MAP_SHARED, self.fd)
            del self._own[offset]

    def give_back(self, offset: int, nbytes: int) -> bool:
        """Return whole pages of the file to the system, which are zeros afterwards; False if it cannot: they stay."""
        return system.has_advised(self._pages, system.MADV_REMOVE, offset, nbytes)

    def leave(self) -> None:
        """Unmap the file: the private parts stay, everything else is zeros from now on.

        Raises:
            OSError: the system refuses, and what is left of the file stays mapped.
        """
        if self.fd < 0:
            return
        try:
            start = 0
            for offset, nbytes in [*sorted(self._own.items()), (self._nbytes, 0)]:
                if offset > start:
                    self._place(start, offset - start, _ANYWHERE, -1)
                start = offset + nbytes
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptor; the mapping stays."""
        fd, self.fd = self.fd, -1  # first, as `forks.Shared` says
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()

    def _place(self, offset: int, nbytes: int, flags: int, fd: int) -> None:
        got = _mmap(self._address + offset, nbytes, _READ_WRITE, flags | system.MAP_FIXED, fd, offset if fd >= 0 else 0)
        if got != self._address + offset:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
