"""A monitor whose mutex another process keeps; a thread stands for that process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tinyshard.runtime.shm import control_block, waking
from tinyshard.runtime.shm.monitor import Monitor

# how processes wake each other, on this system: by a futex, or as elsewhere
KINDS = ("futex", "monitors") if waking.HAS_FUTEX else ("monitors",)


def ways_of_waking(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Control blocks that are made from now on wake by this kind."""
    monkeypatch.setattr(control_block, "HAS_FUTEX", kind == "futex")


@contextmanager
def held(monitor: Monitor) -> Iterator[None]:
    """Another thread has the mutex in this block, as a device that is stopped with it."""
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with monitor:
            holds.set()
            may_end.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(20)
    try:
        yield
    finally:
        may_end.set()
        thread.join(20)
