"""Sleeping in the kernel until another process changes a number in shared memory, without a compiler.

The number is an int64 that only grows; the kernel looks at its lower half, which comes first on the machines that this
runs on. Who sleeps says so beforehand, in shared memory too, and looks at the number once more; who changes it looks
afterwards whether somebody sleeps. Between the two each passes a `fence`, so that one of them sees the other.
"""

from __future__ import annotations

import ctypes
import threading

_SYS_FUTEX, _FUTEX_WAIT, _FUTEX_WAKE = 202, 0, 1
_syscall = ctypes.CDLL(None).syscall
_EVERYONE = ctypes.c_int(2**31 - 1)
_lock = threading.Lock()


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def timespec(seconds: float) -> object:
    """A time-out for `sleep`."""
    return ctypes.byref(_Timespec(int(seconds), int(seconds % 1 * 1e9)))


def fence() -> None:
    """What was stored before is seen by others before anything is read that comes after."""
    with _lock:  # a locked instruction
        pass


def sleep(address: int, seen: int, timeout: object) -> None:
    """Sleep until `wake`, a signal or a time-out; not at all if the number at the address is no longer `seen`."""
    where, low = ctypes.c_void_p(address), ctypes.c_uint32(seen & 0xFFFFFFFF)
    _syscall(_SYS_FUTEX, where, _FUTEX_WAIT, low, timeout, None, 0)


def wake(address: int) -> None:
    """Wake who sleeps there."""
    _syscall(_SYS_FUTEX, ctypes.c_void_p(address), _FUTEX_WAKE, _EVERYONE, None, None, 0)
