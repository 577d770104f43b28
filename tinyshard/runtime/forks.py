"""Descriptors: those that a child closes which user code forks, and those of the standard streams.

A child of os.fork or multiprocessing closes its copies of the pool's sockets and shared memory. Otherwise its sockets
would keep the workers alive after the controller is killed, its exit would end them, and its mapping would keep the
shared memory. The child has one thread and copies of all locks, some held by threads that it does not have. So code
that runs in it does not acquire locks, or read data that another thread may have been changing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any, Protocol


class Shared(Protocol):
    """An object with descriptors, or memory, for only one process.

    It forgets a descriptor before it closes it. Once it is closed, another thread may open a file that gets its number,
    and fork: `abandon` would close that file in the child. One whose memory a child must get as a copy of its own also
    has `prepare_for_fork`, which is called each time before this process forks.
    """

    def abandon(self) -> None:
        """In the child: close them, without a message to the peer. Acquires no lock."""


_shared: weakref.WeakSet[Shared] = weakref.WeakSet()
_held_off = threading.RLock()


def held_off() -> contextlib.AbstractContextManager[Any]:
    """A lock that blocks forks by other threads, held while a new descriptor has no owner that could abandon it.

    It is held for milliseconds, or as long as the fork server takes to start or to fork a worker. A fork by the thread
    that holds it (in a signal handler) is not blocked.
    """
    return _held_off


def abandon_in_child(owner: Shared) -> None:
    """Call `owner.abandon()` in every process that is forked from this one."""
    with _held_off:
        _shared.add(owner)


def _prepare_all() -> None:
    for owner in list(_shared):
        if hasattr(owner, "prepare_for_fork"):
            owner.prepare_for_fork()


def _abandon_all() -> None:
    for owner in list(_shared):
        with contextlib.suppress(OSError):
            owner.abandon()
    _shared.clear()


def open_standard_descriptors() -> None:
    """Open the null device at those of 0, 1 and 2 that are closed, in this process and in those that it starts.

    A process that is started with `2>&-` has no descriptor 2, and the next socket would get the number. Then output of
    a C library to stderr would go into it, and a worker, whose stdout and stderr are a pipe, would lose the socket.
    `sys.stdin`, `sys.stdout` and `sys.stderr` do not change: they are None if a stream was closed from the start.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(fd, True)
    os.close(fd)


if hasattr(os, "register_at_fork"):
    # hooks before a fork are called in reverse order: so `_held_off` is acquired first. In the child the forking thread
    # holds it too, and releases it
    os.register_at_fork(before=_prepare_all, after_in_child=_abandon_all)
    os.register_at_fork(before=_held_off.acquire, after_in_parent=_held_off.release, after_in_child=_held_off.release)
