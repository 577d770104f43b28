"""Lowered: a function that is traced and not yet partitioned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinyshard.compile.compiled import Compiled
from tinyshard.compile.text import graph_text
from tinyshard.compile.tracing import Traced


@dataclass(frozen=True, repr=False)
class Lowered:
    """A traced function, not yet partitioned. Made by `jit(f).lower(*args)`."""

    _traced: Traced
    _name: str
    _names: tuple[str, ...]
    _compile: Callable[[], Compiled]

    def __repr__(self) -> str:
        return f"<{self._name}, traced: {len(self._traced.graph.graph.nodes)} nodes>"

    def as_text(self) -> str:
        """The ops on whole tensors, one a line.

        Communication: none.
        """
        return graph_text(self._traced, self._name, self._names)

    def compile(self) -> Compiled:
        """Partition it for the layouts of the arguments.

        Communication: none; nothing is sent to a device.
        """
        return self._compile()
