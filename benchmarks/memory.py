"""How much of the machine's memory a side holds."""

from __future__ import annotations

import psutil


def memory_nbytes(pid: int) -> int:
    """What a process and its descendants hold of the machine's memory; shared pages count once (PSS)."""
    total = 0
    processes = [psutil.Process(pid)]
    processes += processes[0].children(recursive=True)
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total
