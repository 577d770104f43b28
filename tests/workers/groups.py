"""A control group of Linux with little memory: what runs there meets the system's own end of memory."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workers.processes import wait_until

_ROOT = Path("/sys/fs/cgroup")
# by the name of the control group's kind: its limits of memory, and of memory and swap together or of swap
_LIMITS = {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "": ("memory.max", "memory.swap.max")}


def why_not() -> str:
    """Why there can be no such group here; empty if there can."""
    try:
        with with_memory_of(1 << 30) as before:
            entered = subprocess.run([*before, "true"], capture_output=True, text=True)
    except OSError as error:
        return f"no control group with a limit of memory can be made here: {error}"
    return f"nothing may run in a control group of its own here: {entered.stderr}" if entered.returncode else ""


@contextmanager
def with_memory_of(nbytes: int) -> Iterator[list[str]]:
    """A group of at most so much memory, while the block lasts and something runs in it.

    Returns:
        What to put before a command to run it there.

    Raises:
        OSError: there can be none.
    """
    made, (memory, swap) = _folder()
    made.mkdir()
    try:
        (made / memory).write_text(str(nbytes))
        with contextlib.suppress(OSError):  # a system without swap
            (made / swap).write_text(str(nbytes if made.parts[4] == "memory" else 0))
        yield ["sh", "-c", f'echo $$ > "{made}/cgroup.procs" && exec "$@"', "sh"]
    finally:
        wait_until(lambda: not (made / "cgroup.procs").read_text(), f"nobody is left in {made}")
        made.rmdir()


def _folder() -> tuple[Path, tuple[str, str]]:
    """Where to make it: in version 1 within this process's own group, in version 2 beside it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        own = _ROOT / kinds / path.removeprefix("/")
        name = f"tinyshard-{os.getpid()}"
        if kinds == "memory":
            return own / name, _LIMITS[kinds]
        if kinds == "" and (own / _LIMITS[""][0]).exists():
            return own.parent / name, _LIMITS[kinds]
    raise FileNotFoundError("no group of this process counts memory")
