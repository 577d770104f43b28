"""What the workers print: lines, as they come through their pipes, kept until whoever waits shows them in its cell."""

from __future__ import annotations

import select
from collections.abc import Callable

from tinyshard.runtime.controller.connection import Link


class Printed:
    """The lines of all workers, and the pipes through which they come. One thread at a time may use it."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self._pipes = select.poll()

    def take(self) -> list[tuple[int, str]]:
        """The lines since the last time, each with its device, in device order."""
        lines, self._lines = self._lines, []
        return sorted(lines, key=lambda line: line[0])

    def is_all_read(self) -> bool:
        """Whether nothing waits in the pipes."""
        return not self._pipes.poll(0)

    def watch(self, link: Link) -> None:
        """Take this worker's pipe into account."""
        self._pipes.register(link.output, select.POLLIN | select.POLLHUP)

    def read(self, link: Link, at_end: Callable[[int], object]) -> None:
        """Take what has come from a worker.

        Args:
            at_end: called with the pipe before it is closed, if no more will come.
        """
        pipe = link.output
        if pipe < 0:
            return

        def end() -> None:
            at_end(pipe)
            self._pipes.unregister(pipe)

        self._lines.extend((link.device, line) for line in link.read_lines(end))
