"""How much memory a process and all that it started take together."""

import threading
from types import TracebackType

import psutil
import torch

EVERY_S = 0.5
# What torch takes in a process that imports it beyond the CPU build, which machines of 2 GB install. A kernel and its
# devices have two such processes: the kernel, and the one from which the devices are forked.
CUDA_BUILD_BYTES_EACH = 200_000_000 if torch.version.cuda else 0
CUDA_BUILD_BYTES = 2 * CUDA_BUILD_BYTES_EACH


def nbytes_of_family(pid: int) -> int:
    """The memory of a process and its descendants, in bytes; what several share is counted once (Linux's PSS)."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in family:
        try:
            total += _nbytes(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it has ended meanwhile
    return total


def _nbytes(process: psutil.Process) -> int:
    memory = process.memory_full_info()
    return getattr(memory, "pss", memory.uss)  # macOS tells what is not shared


class Peak:
    """Looks again and again, in a thread, while the block runs; `nbytes` is the most that it saw."""

    def __init__(self, pid: int) -> None:
        self.nbytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.nbytes = max(self.nbytes, nbytes_of_family(self._pid))

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.nbytes = max(self.nbytes, nbytes_of_family(self._pid))
