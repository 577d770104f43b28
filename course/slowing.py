"""A device that is slowed down on purpose: its worker is stopped and continued, over and over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tinyshard as ts

__all__ = ["slowed"]


@contextmanager
def slowed(device: ts.Device, stopped_ms: float = 40, running_ms: float = 10) -> Iterator[None]:
    """Inside, a device runs for `running_ms`, stands still for `stopped_ms`, and so on.

    To the other devices, and in a profile, it looks as a processor does that is too hot, or that other programs use.

    Args:
        device: whose worker is a process of its own.
        stopped_ms: how long it is stopped each time.
        running_ms: how long it runs in between.

    Raises:
        ValueError: the device has no process of its own: it is on the local runtime.
        DeviceLostError: the device is gone.

    Communication: none.
    """
    pid = device.pid
    if pid is None:
        raise ValueError(
            "only a worker process can be slowed\n"
            f"  got:  {device}, which has no process of its own\n"
            "  rule: a process that stops itself cannot continue itself\n"
            '  try:  ts.init(runtime="process")'
        )
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.wait(running_ms / 1000):
            try:
                os.kill(pid, signal.SIGSTOP)
                over.wait(stopped_ms / 1000)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:  # it has died
                return

    thread = threading.Thread(target=stop_and_go, name="slowed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
