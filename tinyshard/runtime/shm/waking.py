"""How processes that share memory wake each other, and how one reads what another has written.

    waking.wait(is_true)      sleep until `is_true()`, which reads shared memory
    waking.wake(devices)      after a change there: these devices read it again
    waking.write(...), read(...), write_own(...), read_own(...)    numbers that a device and the controller exchange

Linux on x86-64: one word, a futex, on which every device sleeps with its own bit, so that one system call wakes any set
of them. A process changes the state, then the word, then wakes. A process that is about to sleep reads the word, then
the state, and sleeps only if the word has not changed since: no two changes write the same word. These processors make
stores visible in program order, and load in program order. So a process that has read a number also reads the data that
were written before the number, without a mutex. But a load may overtake an earlier store: where that matters, a fence,
a locked instruction, stands between them.

ARM processors promise neither order, and macOS has no futex. There every device has a monitor. A process writes a
number after it has acquired the mutex, and a process that has read the number acquires the mutex before it reads the
data: POSIX orders memory by mutexes, on every processor. A stopped device that holds its mutex does not block the
controller, which gives up after a millisecond and tries again later.

A sleep lasts at most 100 ms: a change without a wake is noticed then.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tinyshard.runtime.shm.monitor import BRIEFLY_S, SLICE_S, Monitor, give_core_away, timespec

# how long a waiting process polls, and yields its core between two polls: the event is often about to happen
LOOK_S = 1e-3
# if other processes keep the core for longer than that, this one stops polling for so long: a sleeper runs first
CROWDED_S = 1.0
HAS_FUTEX = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32
_FUTEX, _WAIT_BITSET, _WAKE_BITSET = 202, 9, 10
_MOST = (1 << 31) - 1
_BITS = 32  # with more devices some share a bit: one that is woken for another sleeps again


class Waking:
    """One process's end, on systems without a futex.

    Args:
        word: int32[1], shared.
        monitors: each device's, with a condition.
        own: the device; -1 for the controller, which wakes and does not wait.
    """

    is_ordered = False

    def __init__(self, word: np.ndarray, monitors: Sequence[Monitor], own: int) -> None:
        self._monitors = monitors
        self._own = own
        self._crowded_until_s = 0.0

    def fence(self, device: int) -> bool:
        """Order accesses before it and after it; False if the device is stopped with its mutex: call it again."""
        monitor = self._monitors[device]
        try:
            return monitor.acquire(float("inf") if device == self._own else BRIEFLY_S)
        finally:
            monitor.release()

    def read(self, numbers: memoryview) -> list[int]:
        """The last number of each device, before its data; -1 for one that is stopped while it holds its mutex."""
        return [number if self.fence(device) else -1 for device, number in enumerate(numbers.tolist())]

    def read_own(self, numbers: memoryview) -> int:
        """The number for this device, before its data."""
        number: int = numbers[self._own]
        self.fence(self._own)
        return number

    def write_own(self, numbers: memoryview, number: int) -> None:
        """Write this device's number: after the data that belong to it, and before anything that is read next."""
        with self._monitors[self._own]:
            numbers[self._own] = number

    def write(self, numbers: memoryview, devices: Iterable[int], number: int) -> list[int]:
        """Write a number for devices to read, after all that was written before; the devices for which it is there."""
        written = []
        for device in devices:
            if self.fence(device):  # what was written before is there for a device that reads the number
                numbers[device] = number
                written.append(device)
        return written

    def wake(self, devices: Sequence[int]) -> list[int]:
        """Let these devices read again what they wait for. Idempotent.

        Returns:
            The devices that certainly read it; one that held its mutex for all of a millisecond may have looked before
            and sleep after: it looks again in a tenth of a second, or at the next call of this.
        """
        woken = []
        for device in devices:
            if self.fence(device):  # a device that is about to sleep does so before this, and is woken
                woken.append(device)
            self._monitors[device].notify_all()
        return woken

    def wait(self, is_true: Callable[[], bool], check: Callable[[], object] | None = None, look_s: float = 0.0) -> None:
        """Wait until `is_true()`.

        Args:
            check: called between two sleeps; an error of it ends the wait.
            look_s: how long to poll before the first sleep.
        """
        if not look_s or not (is_true() or self.look_until(is_true, look_s)):
            self._sleep(is_true, check)

    def _sleep(self, is_true: Callable[[], bool], check: Callable[[], object] | None) -> None:
        self._monitors[self._own].wait_until(is_true, check)

    def look_until(self, is_true: Callable[[], bool], look_s: float) -> bool:
        """Yield the core repeatedly until `is_true()`, or until other processes keep the core for long."""
        began_s = now_s = time.monotonic()
        while now_s - began_s < look_s and now_s > self._crowded_until_s:
            give_core_away()
            before_s, now_s = now_s, time.monotonic()
            if now_s - before_s > LOOK_S:
                self._crowded_until_s = now_s + CROWDED_S
            if is_true():
                return True
        return False


class FutexWaking(Waking):
    """One process's end, on Linux on x86-64; the arguments are those of `Waking`."""

    is_ordered = True

    def __init__(self, word: np.ndarray, monitors: Sequence[Monitor], own: int) -> None:
        super().__init__(word, monitors, own)
        self._word, self._address = word.data, word.ctypes.data  # valid as long as the first is there
        self._mask = _mask((own,))
        # no other process has the same, and this one has a mark again only after thousands
        step = 1 << (len(monitors) + 1).bit_length()
        self._marks: Iterator[int] = itertools.count(own + 1 + step, step)  # none is the word's first value
        self._lock = threading.Lock()

    def fence(self, device: int) -> bool:
        """Keep a load from overtaking an earlier store."""
        with self._lock:  # is acquired by a locked instruction
            return True

    def read(self, numbers: memoryview) -> list[int]:
        """The last number of each device."""
        written: list[int] = numbers.tolist()
        return written

    def read_own(self, numbers: memoryview) -> int:
        """The number for this device."""
        number: int = numbers[self._own]
        return number

    def write_own(self, numbers: memoryview, number: int) -> None:
        """Write this device's number, before anything that is read next."""
        numbers[self._own] = number
        with self._lock:  # a fence
            pass

    def write(self, numbers: memoryview, devices: Iterable[int], number: int) -> list[int]:
        """Write a number for devices to read, after all that was written before; the devices for which it is there."""
        written = list(devices)
        for device in written:
            numbers[device] = number
        return written

    def wake(self, devices: Sequence[int]) -> list[int]:
        """Let these devices read again what they wait for, and return all of them. Idempotent."""
        self._word[0] = next(self._marks) & _MOST
        _quick_syscall(_FUTEX, self._address, _WAKE_BITSET, _MOST, None, None, _mask(tuple(devices)))
        return list(devices)

    def _sleep(self, is_true: Callable[[], bool], check: Callable[[], object] | None) -> None:
        while True:
            mark = self._word[0]
            if is_true():
                return
            if check is not None:
                check()
            until = timespec(time.monotonic() + SLICE_S)
            _syscall(_FUTEX, self._address, _WAIT_BITSET, mark, until, None, self._mask)


@functools.lru_cache(maxsize=256)
def _mask(devices: tuple[int, ...]) -> int:
    return functools.reduce(int.__or__, (1 << device % _BITS for device in devices), 0)


def _typed(syscall: Any) -> Any:
    number, pointer = ctypes.c_long, ctypes.c_void_p
    syscall.argtypes = (number, pointer, ctypes.c_int, ctypes.c_uint32, pointer, pointer, ctypes.c_uint32)
    return syscall


if HAS_FUTEX:
    # the second keeps the interpreter's lock, for calls that return at once
    _syscall, _quick_syscall = _typed(ctypes.CDLL(None).syscall), _typed(ctypes.PyDLL(None).syscall)
