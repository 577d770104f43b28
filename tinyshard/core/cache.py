"""A cache of the most recently used entries, and keys for it, made from the arguments of an op.

executables = Recent(256)
executables.get(key)         None, or the value; with more than 128 entries it counts as used now
executables.put(key, value)  drops the least recently used entry, if there are more than 256
frozen(args)                 a key
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_BY_TEXT = (float, complex)  # -0.0 equals 0.0, and nan equals nothing

_all: weakref.WeakSet[Recent[Any, Any]] = weakref.WeakSet()
_all_lock = threading.RLock()


class Recent(Generic[K, V]):
    """A mapping with a limited number of keys. The devices drop the programs of dropped entries that nothing else uses.

    Args:
        most: the largest number of keys.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that has it
        self._kept: OrderedDict[K, V] = OrderedDict()
        with _all_lock:
            _all.add(self)

    def __deepcopy__(self, memo: object) -> Recent[K, V]:
        """An empty cache: entries can be made again, and may belong to the copied object."""
        return Recent(self._most)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value; None if there is none."""
        found = self._kept.get(key)
        if found is not None and len(self._kept) > self._most // 2:  # otherwise no entry will be dropped soon
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> V:
        """Keep a value, and return it; a value that another thread has put there first stays."""
        with self._lock:
            value = self._kept.setdefault(key, value)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value

    def values(self) -> Iterator[V]:
        """All values, as they are now."""
        return iter(list(self._kept.values()))

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys and values, as they are now."""
        return iter(list(self._kept.items()))

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._kept.clear()


def clear_all() -> None:
    """Drop what all caches keep."""
    with _all_lock:
        caches = list(_all)
    for cache in caches:
        cache.clear()


def frozen(tree: Any) -> Any:
    """A hashable key for a tree of arguments, which distinguishes 1, 1.0 and True, and -0.0 and 0.0.

    Example:
        >>> frozen([1, 2.0]) == frozen([1.0, 2]), frozen({"dim": -1}) == frozen({"dim": -1})
        (False, True)
    """
    if isinstance(tree, list | tuple):
        return (type(tree), *map(frozen, tree))
    if isinstance(tree, dict):
        return tuple((name, frozen(value)) for name, value in tree.items())
    if is_dataclass(tree):
        return (type(tree), *(frozen(getattr(tree, field.name)) for field in fields(tree)))
    return frozen_leaf(tree)


def frozen_leaf(x: Any) -> Any:
    """The key for a single value."""
    return (type(x), repr(x) if isinstance(x, _BY_TEXT) else x)
