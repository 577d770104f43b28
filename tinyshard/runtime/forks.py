"""User code may fork this process (os.fork, multiprocessing): the child lets go of what the pool speaks through.

Otherwise its copies of the sockets would keep the workers alive when the controller is killed, and its exit would end
them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Shared(Protocol):
    """What holds descriptors that belong to one process."""

    def abandon(self) -> None:
        """Close them here, and say nothing to the other side."""


_shared: weakref.WeakSet[Shared] = weakref.WeakSet()


def abandon_in_child(owner: Shared) -> None:
    """Call `owner.abandon()` in every process that is forked from this one."""
    _shared.add(owner)


def _abandon_all() -> None:
    for owner in list(_shared):
        owner.abandon()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
