"""How much more memory this machine, or the container that this process lives in, has to give.

Shared pages are taken when they are first written, and where there are none left the system kills somebody: so whoever
wants many asks before.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_MACHINE = Path("/proc/meminfo")
# limit and use of a container: of control groups version 2, and version 1
_CONTAINERS = tuple(
    (Path("/sys/fs/cgroup") / limit, Path("/sys/fs/cgroup") / used, Path("/sys/fs/cgroup") / stat)
    for limit, used, stat in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    )
)


def available_nbytes() -> int | None:
    """How much can still be taken; None if the system does not tell."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _MACHINE.read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    for limit, used, stat in _CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", no limit
            left = int(limit.read_text()) - int(used.read_text())
            counts = dict(line.split() for line in stat.read_text().splitlines())
            found.append(left + int(counts.get("inactive_file", 0)))  # cached files give way
    return min(found, default=None)
