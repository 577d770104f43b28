"""A cache that keeps what was used last, and lets the devices drop programs that nothing refers to any more.

executables = Recent(256, lambda executable: release(executable.program))
executables.get(key)         None, or the value, which counts as used now
executables.put(key, value)  drops what was used longest ago, should there be more than 256
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tinyshard.core.program import Program
from tinyshard.runtime import lifecycle

K = TypeVar("K")
V = TypeVar("V")

_released: deque[Program] = deque()


class Recent(Generic[K, V]):
    """A mapping of at most so many keys.

    Args:
        most: how many.
        dropped: called with each value that makes room for another.
    """

    def __init__(self, most: int, dropped: Callable[[V], Any] = lambda value: None) -> None:
        self._most = most
        self._dropped = dropped
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that has it
        self._kept: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value; None if there is none."""
        found = self._kept.get(key)
        if found is not None and len(self._kept) > self._most // 2:  # else nothing is about to be dropped
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> V:
        """Keep a value, and return it; what another thread has put there first stays."""
        with self._lock:
            value = self._kept.setdefault(key, value)
            gone = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self._most)]
        for old in gone:
            self._dropped(old)
        return value

    def values(self) -> Iterator[V]:
        """All values, as they are now."""
        return iter(list(self._kept.values()))

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys and values, as they are now."""
        return iter(list(self._kept.items()))


def release(program: Program) -> None:
    """Say that a program will not be called again. A garbage collector may call it: it sends nothing."""
    _released.append(program)


def forget_released() -> None:
    """Let the devices drop the released programs; those that have ended hold none."""
    while True:
        try:
            program = _released.popleft()
        except IndexError:
            return
        runtime = lifecycle.running()
        if runtime is not None:
            runtime.forget(program)
