"""Where workers on several machines find each other: a store of the controller's, over a connection of each worker.

It is torch's HashStore. (torch's TCPStore would do, but it believes every process that reaches its port: a stranger can
list its keys, and point gloo to an address of his own.) A worker, which has proved that it knows the secret, sends
(method, arguments) and gets (result,); none of these waits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tinyshard.runtime import wire

_LOOK_EVERY_S = 0.002


class Rendezvous(dist.Store):
    """The worker's end: the store, as torch.distributed wants it. torch keeps no reference to it.

    Attributes:
        host: the address of this machine on which the worker listens for the others.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.host: str = sock.getsockname()[0]
        self._sock = sock
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value for all to read."""
        self._call("set", key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait until a value is set."""
        self.wait([key])
        return bytes(self._call("get", key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these are set; the controller's end, or `close`, ends it sooner, and no time does."""
        while not self.check(keys):
            time.sleep(_LOOK_EVERY_S)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these are set."""
        return bool(self._call("check", list(keys)))

    def add(self, key: str, amount: int) -> int:
        """Add to a number that starts at 0; the sum."""
        return int(self._call("add", key, amount))

    def close(self) -> None:
        """End what waits here, from another thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            wire.send(self._sock, (method, *arguments))
            return wire.receive(self._sock)[0]


def serve(sock: socket.socket, store: dist.Store) -> None:
    """The controller's end: answer one worker until its connection ends."""
    with sock, contextlib.suppress(OSError):
        while True:
            method, *arguments = wire.receive(sock)
            wire.send(sock, (getattr(store, method)(*arguments),))
