"""A monitor in shared memory: state that processes change one at a time, and waits for its changes.

It is a POSIX mutex, shared by processes, with a condition variable. The guarded state may be read without the mutex as
a hint, which is then confirmed with it; so nothing depends on the order in which a processor stores.

A process that is killed while it holds the mutex releases it if the system has robust mutexes (Linux). One that is
stopped (SIGSTOP) does not: a process that must not wait for that passes a time limit to `acquire`.

macOS does not have robust mutexes: a process that waits for that of a killed one is ended with the pool. Its conditions
keep the address of their mutex while a process sleeps, so of several processes, which map it at several addresses, one
sleeps on a condition and the rest poll every millisecond. Unmeasured: no Mac was at hand.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from tinyshard.runtime.shm import system

# the longest sleep on a condition: an abort that was missed is seen then
SLICE_S = 0.1
# a limit for `acquire`: a process that holds a mutex runs a few statements, or is stopped
BRIEFLY_S = 1e-3
# how often this process polls a condition that the system does not support
_POLL_S = 1e-3

_MUTEX_NBYTES = 128  # it has 40 to 64 bytes, a condition 48
NBYTES = 2 * _MUTEX_NBYTES
_SHARED = 1  # PTHREAD_PROCESS_SHARED, everywhere
_ERRORCHECK = 1 if system.IS_MAC else 2
_MONOTONIC = time.CLOCK_MONOTONIC
_library = ctypes.CDLL(None)
_quick = ctypes.PyDLL(None)  # for functions that return at once, which need not release the interpreter's lock
give_core_away = _library.sched_yield
# takes a deadline on the monotonic clock: the GNU library has it
_TwoLongs = ctypes.c_long * 2
_HAS_CLOCK_LOCK = hasattr(_library, "pthread_mutex_clocklock")
_HAS_RELATIVE_WAIT = hasattr(_library, "pthread_cond_timedwait_relative_np")  # macOS


def timespec(seconds: float) -> ctypes.Array[ctypes.c_long]:
    """A time as C has it: seconds and nanoseconds."""
    return _TwoLongs(int(seconds), int(seconds % 1 * 1e9))


class Monitor:
    """One process's end of a monitor. As a context manager it holds the mutex.

    Args:
        memory: uint8[NBYTES], shared.
        is_new: no process has used this memory yet: initialise it.
    """

    def __init__(self, memory: np.ndarray, *, is_new: bool = False) -> None:
        start = memory.ctypes.data
        self._memory = memory  # the addresses are valid as long as it
        self._mutex = ctypes.c_void_p(start)
        self._condition = ctypes.c_void_p(start + _MUTEX_NBYTES)
        # in C, so that no Ctrl-C strikes before it has an effect. Without the mutex nothing happens
        self.release = partial(_quick.pthread_mutex_unlock, self._mutex)
        if is_new:
            self._initialise()

    def _initialise(self) -> None:
        attributes = ctypes.create_string_buffer(128)
        _library.pthread_mutexattr_init(attributes)
        _library.pthread_mutexattr_setpshared(attributes, _SHARED)
        # a process that releases it without holding it gets an error code, and no harm is done
        _library.pthread_mutexattr_settype(attributes, _ERRORCHECK)
        if hasattr(_library, "pthread_mutexattr_setrobust"):
            _library.pthread_mutexattr_setrobust(attributes, 1)
        _library.pthread_mutex_init(self._mutex, attributes)
        _library.pthread_condattr_init(attributes)
        _library.pthread_condattr_setpshared(attributes, _SHARED)
        if not _HAS_RELATIVE_WAIT:
            _library.pthread_condattr_setclock(attributes, _MONOTONIC)
        _library.pthread_cond_init(self._condition, attributes)

    def __enter__(self) -> Monitor:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, within_s: float = float("inf")) -> bool:
        """Take the mutex; False if it cannot be acquired in time."""
        code = _quick.pthread_mutex_trylock(self._mutex)
        if code == 0:
            return True
        end_s = time.monotonic() + within_s
        while not self._has_taken(code):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            code = self._take_within(min(left_s, SLICE_S))
        return True

    def _has_taken(self, code: int) -> bool:
        if code == getattr(errno, "EOWNERDEAD", -1):  # its holder was killed; each change of the state is one store
            _library.pthread_mutex_consistent(self._mutex)
            return True
        return code == 0

    def _take_within(self, seconds: float) -> int:
        if _HAS_CLOCK_LOCK:
            until = timespec(time.monotonic() + seconds)
            return int(_library.pthread_mutex_clocklock(self._mutex, _MONOTONIC, until))
        time.sleep(min(seconds, 1e-4))
        return int(_quick.pthread_mutex_trylock(self._mutex))

    def notify_all(self) -> None:
        """Wake all processes that sleep on the condition. The mutex need not be held any more."""
        _quick.pthread_cond_broadcast(self._condition)

    def _sleep(self) -> None:
        """With the mutex held: release it until `notify_all`, or for `SLICE_S`; then acquire it again."""
        where = self._condition
        if _HAS_RELATIVE_WAIT:
            code = _library.pthread_cond_timedwait_relative_np(where, self._mutex, timespec(SLICE_S))
        else:
            code = _library.pthread_cond_timedwait(where, self._mutex, timespec(time.monotonic() + SLICE_S))
        if not self._has_taken(code) and code != errno.ETIMEDOUT:  # it has not slept, and the mutex was never back
            self.release()
            time.sleep(_POLL_S)
            self.acquire()

    def wait_until(self, is_true: Callable[[], bool], check: Callable[[], object] | None = None) -> None:
        """Sleep until `is_true()` with the mutex held; it is not held before and after.

        Args:
            check: called between two sleeps; an error of it ends the wait.
        """
        with self:
            while not is_true():
                if check is not None:
                    check()
                self._sleep()
