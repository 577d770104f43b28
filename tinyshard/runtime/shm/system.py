"""Differences between operating systems for shared memory: files, pages, flags of `mmap`, and free memory.

And between allocators: how much of the memory of freed values a device keeps for the next ones.

Linux on x86-64 is measured; on aarch64 part of the tests ran under an emulator. The lines for macOS follow its headers
and manuals and are unmeasured: no Mac was at hand. So the pool tries them first (`shm.probe`).

The system allocates a shared page at its first write, and kills a process if there is none left. So a member checks
before it takes many.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IS_MAC = sys.platform == "darwin"
# 4 KiB on x86-64; 4, 16 or 64 on arm64 with Linux; 16 with macOS
PAGE_NBYTES = mmap.PAGESIZE
HAS_MEMORY_FILES = hasattr(os, "memfd_create")

# Python names only some of them. PowerPC has another value
MAP_FIXED = 0x10
MAP_NORESERVE = 0x40 if IS_MAC or platform.machine().startswith("ppc") else 0x4000
# copies the pages of a private mapping ahead of their use, and reports if it cannot: since Linux 5.14
MADV_POPULATE_WRITE: int | None = 23 if sys.platform == "linux" else None
# returns pages of a file; None: touched pages are kept, as on macOS
MADV_REMOVE: int | None = getattr(mmap, "MADV_REMOVE", None)

# a folder with less free space is not used
_LEAST_ROOM_NBYTES = 1 << 30
_SHARED_FOLDER = Path("/dev/shm")
_MACHINE = Path("/proc/meminfo")
_MINE = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
# limit and use, of control groups version 2, which have no name, and version 1
_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}

_LIBC: Any = None if sys.platform == "win32" else ctypes.CDLL(None)
HAS_TCMALLOC = hasattr(_LIBC, "MallocExtension_ReleaseFreeMemory")
# so much of freed memory is kept: a tensor of 32 MiB, and the allocator's overhead
_KEPT_NBYTES = 33 << 20


class _Mallinfo(ctypes.Structure):
    """What glibc tells of its memory, since version 2.33: `struct mallinfo2` of malloc.h."""

    _fields_ = (("others", ctypes.c_size_t * 8), ("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))


if hasattr(_LIBC, "mallinfo2"):
    _LIBC.mallinfo2.restype = _Mallinfo


def is_measured() -> bool:
    """Whether this is a system on which all tests of the shared memory have passed."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and HAS_MEMORY_FILES


def memory_file() -> int:
    """A descriptor of a new, empty file without a name: in memory, or else in a folder with room for it.

    Raises:
        OSError: there can be none.
    """
    if HAS_MEMORY_FILES:
        return os.memfd_create("tinyshard arena")
    # made as O_EXCL, for this user alone, and without its name from the start
    with tempfile.TemporaryFile(dir=_folder_with_room(), buffering=0) as file:
        return os.dup(file.fileno())


def _folder_with_room() -> str:
    for folder in (str(_SHARED_FOLDER), tempfile.gettempdir()):
        if os.access(folder, os.W_OK):
            found = os.statvfs(folder)
            if found.f_bavail * found.f_frsize >= _LEAST_ROOM_NBYTES:
                return folder
    raise OSError(f"no folder for temporary files has {_LEAST_ROOM_NBYTES >> 30} GiB of room")


def room_nbytes(fd: int) -> int | None:
    """The free space of a file's folder; a process that touches more pages is killed. None: limited only by memory."""
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def has_advised(pages: mmap.mmap, advice: int | None, offset: int, nbytes: int) -> bool:
    """Advise the system about pages; False if it cannot do this: some file systems know no holes."""
    try:
        if advice is not None:
            pages.madvise(advice, offset, nbytes)
    except OSError:
        return False
    return advice is not None


def available_nbytes() -> int | None:
    """The free memory; None if the system does not report it."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _MACHINE.read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    for folder, limit, used in _groups():
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # cached files can be dropped; those of nested groups count as total_ in version 1
            found.append(left + int(counts.get("total_inactive_file", counts.get("inactive_file", 0))))
    return min(found, default=None)


def limit_nbytes() -> int:
    """The total memory for this process: the machine's, or that of the group that limits it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder, limit, _ in _groups():
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", no limit
            found.append(int((folder / limit).read_text()))
    return min(found)


def _groups() -> Iterator[tuple[Path, str, str]]:
    """The control groups that limit this process, from the outermost: a container's, then a session's or a job's in it.

    Yields:
        A group's folder, and the names of its limit and its use. A container may not see the folder of its own group:
        then it is the outermost one.
    """
    with contextlib.suppress(OSError):
        for line in _MINE.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            parts = path.split("/")[1:]
            for kind in set(kinds.split(",")) & _FILES.keys():
                for depth in range(len(parts) + 1):
                    yield _GROUPS.joinpath(kind, *parts[:depth]), *_FILES[kind]


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next tensor: the first touch of fresh pages costs more than most ops."""
    if sys.platform == "linux" and hasattr(_LIBC, "mallopt"):  # tcmalloc has one that does nothing
        m_fastbins, m_trim_threshold, m_mmap_max = 1, -1, -4
        _LIBC.mallopt(m_fastbins, 0)  # to free a tensor would put all that is in them in order
        _LIBC.mallopt(m_mmap_max, 0)
        _LIBC.mallopt(m_trim_threshold, _KEPT_NBYTES)


def give_freed_memory_back(*, whole: bool) -> None:
    """Return freed memory to the system.

    Args:
        whole: also if it is no more than a device keeps.
    """
    if whole or _freed_nbytes() > _KEPT_NBYTES:
        if HAS_TCMALLOC:
            _LIBC.MallocExtension_ReleaseFreeMemory()
        elif hasattr(_LIBC, "malloc_trim"):
            _LIBC.malloc_trim(0)


def _freed_nbytes() -> int:
    """How much freed memory the allocator has; 0 if it does not tell.

    tcmalloc knows. glibc goes through all of it, which may take milliseconds, and counts what it has returned too,
    except for what lay at the end. If that is much, everything is returned each time.
    """
    if HAS_TCMALLOC:
        free = ctypes.c_size_t()
        _LIBC.MallocExtension_GetNumericProperty(b"tcmalloc.pageheap_free_bytes", ctypes.byref(free))
        return free.value
    if hasattr(_LIBC, "mallinfo2"):
        return int(_LIBC.mallinfo2().fordblks)
    return 0
