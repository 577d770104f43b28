"""Workers on this machine: channel, control line and output pipe for each, and a file by which they find each other."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from tinyshard.runtime.controller.connection import Link, Stream
from tinyshard.runtime.controller.remote_errors import ending
from tinyshard.runtime.controller.watchdog import STOPPED
from tinyshard.runtime.forks import held_off
from tinyshard.runtime.launch import forkserver, processors


class Starter:
    """Starts the workers of a pool, and ends them.

    Args:
        count: their number.
        collectives: how they communicate: "shared", "gloo" or "nccl".
        gpus: by device, the number of its GPU on its machine; empty for CPUs.
        limit_nbytes: the largest number of bytes that each may hold; None for no limit.

    Attributes:
        shared: with "shared", the descriptors that the workers get from their pool: of the memory that they share, and
            of the pipe by which they wake the controller.
    """

    shared: tuple[int, ...] = ()

    def __init__(self, count: int, collectives: str, gpus: Sequence[int] = (), limit_nbytes: int | None = None) -> None:
        self.count = count
        self.collectives = collectives
        self._facts = {"count": count, "collectives": collectives, "limit_nbytes": limit_nbytes}
        self._gpus: Sequence[int | None] = gpus or [None] * count

    def links(self) -> Iterator[Link | None]:
        """Start the workers; yields a Link to each, in the order of the devices, and None at times while it waits."""
        raise NotImplementedError

    def host(self, device: int) -> str | None:
        """The address of a device's machine; None if it is this one."""
        return None

    def end(self, link: Link) -> str:
        """Kill a worker, stopped or not; returns how it ended, if it had ended before.

        It waits until the worker is gone, if the process that has started it answers in time.
        """
        raise NotImplementedError

    def why_silent(self, device: int) -> str:
        """Why a device does not answer, as far as it is known."""
        return STOPPED

    def close(self) -> None:
        """Called once all workers have been ended."""


class Forked(Starter):
    """Starts workers on this machine. It has the arguments of `Starter`."""

    def __init__(self, count: int, collectives: str, gpus: Sequence[int] = (), limit_nbytes: int | None = None) -> None:
        super().__init__(count, collectives, gpus, limit_nbytes)
        self._fork_server = forkserver.start()
        self._path = ""  # of the file by which the workers find each other, if its descriptor does not suffice

    def links(self) -> Iterator[Link]:
        """Fork one after the other.

        Raises:
            RuntimeStateError: the system refuses.
        """
        cores: tuple[int, ...] = ()
        if self.shared and sys.platform == "linux":
            cores = processors.cores_of(self.count, os.sched_getaffinity(0))
        with forkserver.refusals_explained():
            shared = self.shared or (self._new_store(),)
            try:
                self._fork_server.wait_until_ready()
                for device, gpu in enumerate(self._gpus):
                    # device 0 makes room on another core while calls are small
                    own = cores[device : device + 1] if device else tuple(dict.fromkeys(cores))[:2]
                    given = {"device": device, "gpu": gpu, "store": self._path, "cores": own, **self._facts}
                    yield self._fork(given, shared)
            finally:
                if not self.shared:
                    os.close(*shared)

    def _new_store(self) -> int:
        """A descriptor of a file that the workers share: of memory, or of a file that only the user may open."""
        if hasattr(os, "memfd_create"):
            return os.memfd_create("tinyshard rendezvous")
        store, self._path = tempfile.mkstemp(prefix="tinyshard-")
        return store

    def _fork(self, given: dict[str, Any], shared: Sequence[int]) -> Link:
        with held_off(), ExitStack() as ours, ExitStack() as its:  # a child that is forked meanwhile would keep all

            def line() -> tuple[socket.socket, int]:
                one, other = socket.socketpair()
                return ours.enter_context(one), its.enter_context(other).fileno()

            channel, its_channel = line()
            control, its_control = line()
            output, its_output = os.pipe()
            ours.callback(os.close, output)
            its.callback(os.close, its_output)
            pid = self._fork_server.fork(given, [its_channel, its_control, its_output, *shared])
            link = Link(given["device"], Stream(channel), Stream(control), output, pid)
            ours.pop_all()  # the Link owns them now
            return link

    def end(self, link: Link) -> str:
        """Kill one."""
        return ending(self._fork_server.kill(link.pid))

    def close(self) -> None:
        """Remove the file by which the workers found each other."""
        if self._path:
            os.unlink(self._path)
