"""How processes that share memory wake each other, and how one reads what another has written.

    waking.wait(is_true)      sleep until `is_true()`, which looks at shared memory
    waking.wake(devices)      after a change there: these devices look again
    waking.fence(device)      between two accesses to what this device and the controller write for each other

**Linux on x86-64**: one word, a futex, on which every device sleeps with a bit of its own, so that one system call
wakes any of them. A process changes the state, then the word, then wakes. One that is about to sleep reads the word,
then the state, and sleeps only if the word is still the same: no two changes write the same word. These processors make
stores visible in the order of the program, and load in that order, so data that were written before a number are there
for a process that has read the number, without a mutex. But a load may overtake an earlier store: where that matters
there is a fence, an instruction that locks.

**Elsewhere** (processors of ARM, which promise no order; macOS, which has no such call) every device has a monitor. A
fence acquires and releases its mutex: what a process wrote before its fence is there for another process that has read
what was written after it, and has then passed a fence of its own. A device that is stopped with its mutex holds up no
other one: the controller gives up after a moment, and comes again.

A wait lasts at most 100 ms at a time: what it was not woken for is seen then.
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

from tinyshard.runtime.shm.monitor import SLICE_S, Monitor, Timespec, give_core_away

# for so long a waiting process only gives its core away between two looks: what it waits for is often about to come
LOOK_S = 1e-3
# where others keep the core for longer than that, this process looks no more for so long: one that sleeps comes first
CROWDED_S = 1.0
# how long the controller waits for a device's mutex: a device that has it does a few statements, or is stopped
_ACQUIRES_WITHIN_S = 1e-3
HAS_FUTEX = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32
_FUTEX, _WAIT_BITSET, _WAKE_BITSET = 202, 9, 10
_MOST = (1 << 31) - 1
_BITS = 32  # more devices than that share them: one is woken for another, and sleeps again


def _no_check() -> None: ...


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
        """What is written before is seen before what is written after, and likewise read; False: to be done again."""
        monitor = self._monitors[device]
        try:
            return monitor.acquire(float("inf") if device == self._own else _ACQUIRES_WITHIN_S)
        finally:
            monitor.release()

    def read(self, numbers: memoryview) -> list[int]:
        """What each device has written last; -1 for one that is stopped with its mutex in hand."""
        return [numbers[device] if self.fence(device) else -1 for device in range(len(self._monitors))]

    def write(self, numbers: memoryview, devices: Iterable[int], number: int) -> list[int]:
        """Write a number for devices to read, after all that was written before; the devices for which it is there."""
        written = []
        for device in devices:
            if self.fence(device):
                numbers[device] = number
                written.append(device)
        return written

    def wake(self, devices: Sequence[int]) -> None:
        """Let these devices look again at what they wait for. Idempotent."""
        for device in devices:
            self.fence(device)  # one that is about to sleep does so before this
            self._monitors[device].notify_all()

    def wait(self, is_true: Callable[[], bool], check: Callable[[], object] = _no_check, look_s: float = 0.0) -> None:
        """Wait until `is_true()`.

        Args:
            check: called between two sleeps; it may raise, and ends the waiting so.
            look_s: for how long it is looked before the first sleep.
        """
        if not is_true() and not (look_s and self.look_until(is_true, look_s)):
            self._sleep(is_true, check)

    def _sleep(self, is_true: Callable[[], bool], check: Callable[[], object]) -> None:
        self._monitors[self._own].wait_until(is_true, check=check)

    def look_until(self, is_true: Callable[[], bool], look_s: float) -> bool:
        """Give the core away for a moment, again and again, until `is_true()`, or others keep the core for long."""
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
        self._word, self._address = word.data, word.ctypes.data
        self._array = word  # the address is valid as long as it
        self._mask = _mask((own,))
        # of each process different ones, and it comes to the same again only after thousands
        step = 1 << (len(monitors) + 1).bit_length()
        self._marks: Iterator[int] = itertools.count(own + 1, step)
        self._until = Timespec()
        self._lock = threading.Lock()

    def fence(self, device: int) -> bool:
        """Between a store and a load that must not overtake it."""
        with self._lock:  # its first instruction locks the bus
            return True

    def read(self, numbers: memoryview) -> list[int]:
        """What each device has written last."""
        finished: list[int] = numbers.tolist()
        return finished

    def write(self, numbers: memoryview, devices: Iterable[int], number: int) -> list[int]:
        """Write a number for devices to read, after all that was written before; the devices for which it is there."""
        written = list(devices)
        for device in written:
            numbers[device] = number
        return written

    def wake(self, devices: Sequence[int]) -> None:
        """Let these devices look again at what they wait for. Idempotent."""
        self._word[0] = next(self._marks) & _MOST
        _quick_syscall(_FUTEX, self._address, _WAKE_BITSET, _MOST, None, None, _mask(tuple(devices)))

    def _sleep(self, is_true: Callable[[], bool], check: Callable[[], object]) -> None:
        word, until = self._word, self._until
        while True:
            mark = word[0]
            if is_true():
                return
            check()
            until.set(time.monotonic() + SLICE_S)
            _syscall(_FUTEX, self._address, _WAIT_BITSET, mark, ctypes.byref(until), None, self._mask)


@functools.lru_cache(maxsize=256)
def _mask(devices: tuple[int, ...]) -> int:
    return functools.reduce(int.__or__, (1 << device % _BITS for device in devices), 0)


def _typed(syscall: Any) -> Any:
    number, pointer = ctypes.c_long, ctypes.c_void_p
    syscall.argtypes = (number, pointer, ctypes.c_int, ctypes.c_uint32, pointer, pointer, ctypes.c_uint32)
    return syscall


if HAS_FUTEX:
    # the second keeps the interpreter's lock: what returns at once
    _syscall, _quick_syscall = _typed(ctypes.CDLL(None).syscall), _typed(ctypes.PyDLL(None).syscall)
