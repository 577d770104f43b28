"""How much more memory this machine, or what limits this process on it, has to give.

The system gives a shared page when it is first written, and kills a process when it has none left. So a member asks
before it takes many.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_MINE = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
# limit and use, of control groups version 2, which have no name, and version 1
_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}


def available_nbytes() -> int | None:
    """How much can still be taken; None if the system does not tell."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _MACHINE.read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    for folder, limit, used in _groups():
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # cached files give way; those of the groups within count as total_ in version 1
            found.append(left + int(counts.get("total_inactive_file", counts.get("inactive_file", 0))))
    return min(found, default=None)


def limit_nbytes() -> int:
    """How much memory there is for this process at all: the machine's, or that of the group that limits it."""
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
