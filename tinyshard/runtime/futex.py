"""Sleeping in the kernel until another process changes a number in shared memory, without a compiler.

The number is an int64 that only grows; the kernel looks at its lower half, which comes first on the machines that this
runs on. Who sleeps says so beforehand, in shared memory too, and looks at the number once more; who changes it looks
afterwards whether somebody sleeps. Between the two each passes a `fence`, so that one of them sees the other.
"""

from __future__ import annotations

import ctypes
import threading

_SYS_FUTEX, _FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_WAKE_BITSET = 202, 0, 9, 10
EVERYONE = 0xFFFFFFFF
_syscall = ctypes.CDLL(None).syscall
_ALL_OF_THEM = ctypes.c_int(2**31 - 1)
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


def sleep_as(bit: int, address: int, seen: int) -> None:
    """The same for ever, as one of those whom a `wake` of this bit concerns."""
    where, low = ctypes.c_void_p(address), ctypes.c_uint32(seen & 0xFFFFFFFF)
    _syscall(_SYS_FUTEX, where, _FUTEX_WAIT_BITSET, low, None, None, ctypes.c_uint32(bit))


def wake(address: int, bits: int = EVERYONE) -> None:
    """Wake who sleeps there, as one of these bits or as nobody in particular."""
    where, whom = ctypes.c_void_p(address), ctypes.c_uint32(bits)
    _syscall(_SYS_FUTEX, where, _FUTEX_WAKE_BITSET, _ALL_OF_THEM, None, None, whom)
