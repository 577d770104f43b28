"""Small JSON files that outlive a cell that is interrupted, and are read even where they are damaged."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["alone_in", "read_dict", "write"]

_WAITS_S = 1.0


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is inside for the same folder: what two kernels read, change and write is not lost.

    It waits a second at most, as a kernel may be stopped inside. Where the system or the file system has no such locks,
    it does not wait.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # which unlocks
            end_s = time.monotonic() + _WAITS_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end_s:
                        break
                time.sleep(0.01)
        yield


def read_dict(path: Path) -> dict[str, Any]:
    """What the file holds; empty where it is missing, damaged, or holds something else than a JSON object."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, value: dict[str, Any]) -> None:
    """Write the whole file, or leave the one that is there: never half of one.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
        os.replace(partial, path)
    except BaseException:  # a full disk, or Ctrl-C
        partial.unlink(missing_ok=True)
        raise
