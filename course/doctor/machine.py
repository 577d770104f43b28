"""The machine: cores, memory, shared memory, the loopback. A look reads figures, and a function judges them."""

import contextlib
import os
import shutil
import socket
from pathlib import Path

from course.doctor.finding import Finding, State

__all__ = [
    "NEEDED_BYTES",
    "available_bytes",
    "judge_cores",
    "judge_memory",
    "judge_shared_memory",
    "look_at_cores",
    "look_at_loopback",
    "look_at_memory",
    "look_at_shared_memory",
]

# Kernel, eight workers and JupyterLab together; tests/workers/test_memory.py holds the first two to their part.
NEEDED_BYTES = 1_500_000_000
# Docker's default, and enough: larger data is in separate memory files.
SMALL_SHARED_BYTES = 64 * 2**20
# Version 2 of control groups, and version 1: the files of what a container may take, and of what it has taken.
CONTAINER_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
# JupyterLab takes the next one that is free.
LAB_PORT = 8888


def look_at_cores() -> Finding:
    """How many processor cores this process may use."""
    return judge_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def judge_cores(count: int) -> Finding:
    """Two cores serve; with one the eight devices take turns with JupyterLab."""
    if count >= 2:
        return Finding("cores", State.GOOD, f"{count}; eight devices share them")
    return Finding(
        "cores",
        State.WEAK,
        "1: eight devices and JupyterLab take turns on it",
        "give the container or the virtual machine two; else cells take twice their time",
    )


def look_at_memory() -> Finding:
    """How much memory is free, for this process and for what it starts."""
    return judge_memory(available_bytes())


def judge_memory(free_bytes: int | None) -> Finding:
    """Below what everything together takes, the system would end a worker in the middle of a lesson."""
    if free_bytes is None:
        return Finding(
            "memory", State.WEAK, "this system does not say how much is free", f"see that {_gigabytes(NEEDED_BYTES)} is"
        )
    found = f"{_gigabytes(free_bytes)} free; kernel, eight devices and JupyterLab take up to {_gigabytes(NEEDED_BYTES)}"
    if free_bytes >= NEEDED_BYTES:
        return Finding("memory", State.GOOD, found)
    remedy = "close other programs; or start no processes: TINYSHARD_RUNTIME=local (lessons 00 and 12 then show less)"
    return Finding("memory", State.WEAK if 2 * free_bytes >= NEEDED_BYTES else State.FATAL, found, remedy)


def available_bytes(root: Path = Path("/")) -> int | None:
    """The memory that can still be had: the system's, or what the container has left, whichever is less.

    Args:
        root: Where proc and sys are found.

    Returns:
        Bytes; None where the system says neither.
    """
    free = [each for each in (_system_bytes(root), _container_bytes(root)) if each is not None]
    return min(free) if free else None


def look_at_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """How much room there is in the folder of shared memory."""
    return judge_shared_memory(shutil.disk_usage(folder).free if folder.is_dir() else None)


def judge_shared_memory(free_bytes: int | None) -> Finding:
    """Little of it is nothing to stop for: tinyshard then takes memory files without a name, or files."""
    if free_bytes is None or free_bytes < SMALL_SHARED_BYTES:
        found = "none" if free_bytes is None else f"{free_bytes // 2**20} MiB free"
        memory_files = "memory files serve instead" if hasattr(os, "memfd_create") else "sockets serve instead"
        return Finding("/dev/shm", State.GOOD, f"{found}; {memory_files}")
    return Finding("/dev/shm", State.GOOD, f"{free_bytes // 2**20} MiB free")


def look_at_loopback() -> Finding:
    """Whether processes of this machine reach each other, as devices, kernel and browser must."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        return Finding(
            "loopback",
            State.FATAL,
            f"127.0.0.1 cannot be reached: {error}",
            "let programs of this machine talk to each other: look at the firewall, or at the sandbox's settings",
        )
    if os.environ.get("http_proxy") and "127.0.0.1" not in os.environ.get("no_proxy", ""):
        return Finding(
            "loopback",
            State.WEAK,
            "reached; but a proxy is set (http_proxy) for all addresses",
            "set no_proxy=localhost,127.0.0.1 so that the browser finds JupyterLab",
        )
    lab = "free" if _is_free(LAB_PORT) else "taken, so JupyterLab takes the next one"
    return Finding("loopback", State.GOOD, f"reached; JupyterLab's port {LAB_PORT} is {lab}")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _system_bytes(root: Path) -> int | None:
    """The free memory that Linux reports; on other systems half of the installed memory."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if root == Path("/") and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _container_bytes(root: Path) -> int | None:
    """What a container may still take; None without a limit."""
    for limit, taken in CONTAINER_FILES:
        with contextlib.suppress(OSError, ValueError):
            groups = root / "sys/fs/cgroup"
            return max(0, int((groups / limit).read_text("ascii")) - int((groups / taken).read_text("ascii")))
    return None


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
