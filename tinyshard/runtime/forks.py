"""User code may fork this process (os.fork, multiprocessing): the child lets go of what the pool speaks through.

Otherwise its copies of the sockets would keep the workers alive when the controller is killed, its exit would end them,
and its copy of the shared memory would keep all of that. The child is one thread with a copy of every lock, as other
threads held them. So what runs in it takes no lock and asks nothing that another thread may have been in the middle of.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any, Protocol


class Shared(Protocol):
    """What holds descriptors, or memory, that belong to one process."""

    def abandon(self) -> None:
        """Close them here, and say nothing to the other side. Takes no lock."""


class Keeping(Protocol):
    """What holds memory of which a child is to have a copy of its own."""

    def prepare_for_fork(self) -> None:
        """Called in this process before it forks."""


_shared: weakref.WeakSet[Shared] = weakref.WeakSet()
_keeping: weakref.WeakSet[Keeping] = weakref.WeakSet()
_held_off = threading.RLock()


def held_off() -> contextlib.AbstractContextManager[Any]:
    """A block during which other threads wait before they fork: for descriptors that no owner could abandon yet.

    It takes milliseconds at most, for the user's fork waits. A fork by the very thread (in a signal's handler) goes on.
    """
    return _held_off


def abandon_in_child(owner: Shared) -> None:
    """Call `owner.abandon()` in every process that is forked from this one."""
    with _held_off:
        _shared.add(owner)


def prepare_before_fork(owner: Keeping) -> None:
    """Call `owner.prepare_for_fork()` each time before this process forks."""
    with _held_off:
        _keeping.add(owner)


def _prepare_all() -> None:
    for owner in list(_keeping):
        owner.prepare_for_fork()


def _abandon_all() -> None:
    for owner in list(_shared):
        with contextlib.suppress(OSError):
            owner.abandon()
    _shared.clear()
    _keeping.clear()


if hasattr(os, "register_at_fork"):
    # what is to be called before a fork is called in the opposite order: so `_held_off` is taken first. After it, the
    # lock is this very thread's in the child too
    os.register_at_fork(before=_prepare_all, after_in_child=_abandon_all)
    os.register_at_fork(before=_held_off.acquire, after_in_parent=_held_off.release, after_in_child=_held_off.release)
