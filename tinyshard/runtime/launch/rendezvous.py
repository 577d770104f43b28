"""Where workers on several machines find each other: a store of the controller's, read over a line of each worker.

torch's own TCPStore would do, but it listens on a port of its own and believes whoever comes. Here a worker has proved
who it is before it may ask:

    ("set", key, value)  →                          no answer
    ("get", key)         →  ("value", value)        as soon as somebody has set it
    ("wait", keys)       →  ("value", None)         as soon as all are set
    ("check", keys)      →  ("value", True)         whether all are set
    ("add", key, n)      →  ("value", sum)
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tinyshard.runtime import wire


class LineStore(dist.Store):
    """The store as torch.distributed wants it, at the worker's end of its line.

    torch keeps no reference to a Python store: whoever hands it over does.

    Args:
        sock: the line.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value for all to read."""
        wire.send(self._sock, ("set", key, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, key: str) -> bytes:
        """Wait until a value is set."""
        value: bytes = self._ask("get", key)
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these are set; the controller's end, or `close`, ends it sooner, and no time does."""
        self._ask("wait", list(keys))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these are set."""
        return bool(self._ask("check", list(keys)))

    def add(self, key: str, amount: int) -> int:
        """Add to a number that starts at 0; the sum."""
        return int(self._ask("add", key, amount))

    def close(self) -> None:
        """End what waits here, from another thread."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, *question: Any) -> Any:
        wire.send(self._sock, question)
        return wire.receive(self._sock)[1]


@dataclass(frozen=True)
class Rendezvous:
    """How a worker meets the others over a network.

    Attributes:
        store: the store.
        host: the address of this machine on which it listens for the others.
    """

    store: LineStore
    host: str


class KeyValueStore:
    """The controller's side, for the workers of one pool."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: list[tuple[list[str], Callable[[Any], None], Any]] = []

    def take(self, question: tuple[Any, ...], answer: Callable[[Any], None]) -> None:
        """Do what a worker asks.

        Args:
            question: as it came.
            answer: gives the worker a value; called now or, for what must be waited for, later.
        """
        kind, what, *rest = question
        if kind == "set":
            self._values[what] = rest[0]
            self._answer_waiting()
        elif kind == "add":
            total = int(self._values.get(what, b"0")) + rest[0]
            self._values[what] = str(total).encode()
            answer(total)
            self._answer_waiting()
        elif kind == "check":
            answer(all(key in self._values for key in what))
        else:
            keys = [what] if kind == "get" else what
            self._waiting.append((keys, answer, what if kind == "get" else None))
            self._answer_waiting()

    def _answer_waiting(self) -> None:
        still = []
        for keys, answer, wanted in self._waiting:
            if all(key in self._values for key in keys):
                answer(self._values[wanted] if wanted is not None else None)
            else:
                still.append((keys, answer, wanted))
        self._waiting = still
