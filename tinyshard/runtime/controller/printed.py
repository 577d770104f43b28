"""The lines that workers print: read from their pipes, and kept until a waiting thread prints them in its cell."""

from __future__ import annotations

import select
from collections.abc import Callable

from tinyshard.runtime.controller.connection import Link


class Printed:
    """The lines of all workers, and their pipes. One thread at a time may use it."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self._pipes = select.poll()

    def take(self) -> list[tuple[int, str]]:
        """The lines received since the last call, each with its device, in device order."""
        lines, self._lines = self._lines, []
        return sorted(lines, key=lambda line: line[0])

    def is_all_read(self) -> bool:
        """Whether the pipes are empty."""
        return not self._pipes.poll(0)

    def watch(self, link: Link) -> None:
        """Add this worker's pipe to those that `is_all_read` polls."""
        self._pipes.register(link.output, select.POLLIN | select.POLLHUP)

    def read(self, link: Link, at_end: Callable[[int], object]) -> None:
        """Read what a worker's pipe has.

        Args:
            at_end: called with the pipe at its end, before it is closed.
        """
        pipe = link.output
        if pipe < 0:
            return

        def end() -> None:
            at_end(pipe)
            self._pipes.unregister(pipe)

        self._lines.extend((link.device, line) for line in link.read_lines(end))
