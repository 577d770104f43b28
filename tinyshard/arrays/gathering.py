"""The values of Arrays as plain tensors: of several in one round trip."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.core.users_line import users_line
from tinyshard.runtime.controller.refs import Wanted


def gathered(xs: Sequence[Any]) -> list[torch.Tensor]:
    """The whole values of Arrays: waits for all of them at once, and copies one of each block to this process."""
    by_runtime: dict[Any, list[int]] = {}
    found: dict[int, torch.Tensor] = {}
    for i, x in enumerate(xs):
        copy, x._copy = x._copy, None
        if copy is not None and copy.buffer is x._buffer:
            found[i] = copy.take()
        else:
            by_runtime.setdefault(x._buffer.runtime, []).append(i)
    for runtime, numbers in by_runtime.items():
        found.update(zip(numbers, runtime.gather([_wanted(xs[i]) for i in numbers]), strict=True))
    return [found[i] for i in range(len(xs))]


def _wanted(x: Any) -> Wanted:
    layout, meta = x._layout, x._meta
    places = {layout.devices[p]: layout.index(p, meta.shape) for p in layout.positions().values()}
    return Wanted(x._buffer, places, meta.shape, meta.dtype)


class Copy:
    """The values of an Array, which a thread copies to this process in the background.

    Attributes:
        buffer: the values; the Array's handle may take over others.
    """

    def __init__(self, x: Any) -> None:
        self.buffer = x._buffer
        self._wanted = _wanted(x)
        self._made: list[torch.Tensor] = []
        self._error: Exception | None = None
        self.buffer.runtime.check_open()
        self._thread = threading.Thread(target=self._run, name="copy to host", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made = self.buffer.runtime.gather([self._wanted])
        except Exception as error:
            self._error = error

    def take(self) -> torch.Tensor:
        """The values; waits for them. Ctrl-C cancels pending work, as in any wait."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.buffer.runtime.cancel(users_line())
            raise
        if self._error is not None:
            raise self._error
        return self._made[0]
