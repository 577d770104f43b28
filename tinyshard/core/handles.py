"""Numbers that stand for Python objects in a traced graph: a torch op takes tensors and numbers only.

    handle = table.handle(NamedSharding(mesh, P("a")))      a number, the same for an equal object
    table.value(handle.number)                              the object

A trace keeps the handles that its graph names; a handle that no trace keeps is dropped. An object that refers to its
own handle, as a manual region does by its traces, has it by `own`: as a key of the table it would never be dropped.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Handle(Generic[T]):
    """An object and its number.

    Attributes:
        value: the object.
        number: what stands for it in a graph.
    """

    __slots__ = ("__weakref__", "number", "value")

    def __init__(self, value: T, number: int) -> None:
        self.value = value
        self.number = number


class Handles(Generic[T]):
    """The objects of one op that are in use, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = itertools.count(1)
        self._by_number: weakref.WeakValueDictionary[int, Handle[T]] = weakref.WeakValueDictionary()
        self._by_value: weakref.WeakValueDictionary[Any, Handle[T]] = weakref.WeakValueDictionary()

    def handle(self, value: T) -> Handle[T]:
        """The handle of an object that can be hashed; equal objects share one. The caller keeps it alive."""
        with self._lock:
            found = self._by_value.get(value)
            if found is None:
                found = Handle(value, next(self._count))
                self._by_number[found.number] = self._by_value[value] = found
            return found

    def own(self, value: T) -> Handle[T]:
        """A handle for an object that keeps it: the table keeps neither alive, and no other object has it."""
        with self._lock:
            made = Handle(value, next(self._count))
            self._by_number[made.number] = made
            return made

    def value(self, number: int) -> T:
        """The object that a number stands for."""
        return self._by_number[number].value
