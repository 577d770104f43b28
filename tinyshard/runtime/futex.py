"""Sleeping in the kernel until another process changes a number in shared memory, without a compiler.

The number is an int64 of which the kernel looks at the lower half, which comes first on the machines that this runs on.
Who sleeps reads it, then looks whether what it waits for is there already, and sleeps only if the number is still the
same; who brings what is waited for does so before it changes the number and wakes. Where waking is to be saved, who
sleeps says so beforehand, in shared memory too; between its own word and its look at the other's each then passes a
`fence`, so that one of them sees the other.
"""

from __future__ import annotations

import ctypes
import os
import threading

_SYS_FUTEX, _FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_WAKE_BITSET = 202, 0, 9, 10
EVERYONE = 0xFFFFFFFF
_syscall = ctypes.CDLL(None).syscall
_syscall_that_returns_at_once = ctypes.PyDLL(None).syscall  # keeps the interpreter's lock: nobody has to give it back
_ALL_OF_THEM = ctypes.c_int(2**31 - 1)
# to take it is a locked instruction, as `fence` is, without a call of a function where each microsecond counts
fenced = threading.Lock()


def _free_in_child() -> None:
    if fenced.locked():  # another thread of the parent was about to give it back
        fenced.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def timespec(seconds: float) -> object:
    """A time-out for `sleep`."""
    return ctypes.byref(_Timespec(int(seconds), int(seconds % 1 * 1e9)))


def fence() -> None:
    """What was stored before is seen by others before anything is read that comes after."""
    with fenced:
        pass


class Futex:
    """The number at one address. One thread of a process at a time may sleep; any may wake.

    Args:
        address: of the int64.
        bit: as one of those whom a `wake` of this bit concerns this process sleeps.
    """

    def __init__(self, address: int, bit: int = EVERYONE) -> None:
        # what C is given is made once
        self._where = ctypes.c_void_p(address)
        self._seen = ctypes.c_uint32()
        self._bit = ctypes.c_uint32(bit)
        self._bits = {EVERYONE: ctypes.c_uint32(EVERYONE)}

    def sleep(self, seen: int, timeout: object) -> None:
        """Sleep until `wake`, a signal or a time-out; not at all if the number is no longer `seen`."""
        self._seen.value = seen & 0xFFFFFFFF
        _syscall(_SYS_FUTEX, self._where, _FUTEX_WAIT, self._seen, timeout, None, 0)

    def sleep_for_ever(self, seen: int) -> None:
        """The same without a time-out, and only a `wake` of the bit ends it."""
        self._seen.value = seen & 0xFFFFFFFF
        _syscall(_SYS_FUTEX, self._where, _FUTEX_WAIT_BITSET, self._seen, None, None, self._bit)

    def wake(self, bits: int = EVERYONE) -> None:
        """Wake who sleeps there, as one of these bits or as nobody in particular."""
        whom = self._bits.get(bits)
        if whom is None:
            whom = self._bits[bits] = ctypes.c_uint32(bits)
        _syscall_that_returns_at_once(_SYS_FUTEX, self._where, _FUTEX_WAKE_BITSET, _ALL_OF_THEM, None, None, whom)
