"""Starting the workers of a pool: channel, control line and output pipe for each, and a file in which they meet."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.remote_errors import ending
from tinyshard.runtime.forks import held_off
from tinyshard.runtime.launch import cores
from tinyshard.runtime.launch.forkserver import ForkServer


class Starter(Protocol):
    """Who starts the workers of a pool, and ends them."""

    def links(self, is_wanted: Callable[[], bool]) -> Iterator[Link]:
        """Start the workers; a Link to each, in the order of the devices, until they are not wanted any more."""

    def host(self, device: int) -> str | None:
        """The address of a device's machine; None if it is this one."""

    def end(self, link: Link) -> str:
        """Kill a worker, stopped or not, and wait until it is gone; how it ended, if something else ended it before."""


class Forked:
    """Starts workers on this machine.

    Args:
        fork_server: what they are forked from.
        count: how many.
        collectives: what joins them: "shared", "gloo" or "nccl".
        arena: descriptor of the memory that they share, if that joins them.
        gpus: by device, the number of its GPU; none for CPUs.
        bell: descriptor of the pipe by which they wake the controller, if they share memory with it.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        count: int,
        collectives: str,
        arena: int = -1,
        gpus: Sequence[int] = (),
        bell: int = -1,
    ) -> None:
        self._fork_server = fork_server
        self._count = count
        self._collectives = collectives
        self._arena = arena
        self._gpus = gpus
        self._bell = bell

    def links(self, is_wanted: Callable[[], bool]) -> Iterator[Link]:
        """Fork one after the other."""
        # told to all, for they must not differ in it
        kept = cores.kept(self._count) if self._collectives == "shared" else ()
        with rendezvous(self._arena) as store:
            for device in range(self._count):
                if not is_wanted():
                    return
                gpu = self._gpus[device] if self._gpus else None
                facts = {"count": self._count, "collectives": self._collectives, "gpu": gpu, "kept": kept}
                yield start_worker(self._fork_server, device, store, facts, self._bell)

    def host(self, device: int) -> str | None:
        """Here."""
        return None

    def end(self, link: Link) -> str:
        """Kill one."""
        return ending(self._fork_server.kill(link.pid))


@contextmanager
def rendezvous(arena: int = -1) -> Iterator[tuple[int, str]]:
    """A file that the workers share: on Linux one without a name, else one in a folder that only the user may enter.

    Args:
        arena: a descriptor of memory that they share, which serves as well, and stays its owner's.

    Returns:
        A descriptor to pass on, and the path; the path is empty if the descriptor is the way to it.
    """
    if arena >= 0:
        yield arena, ""
        return
    if hasattr(os, "memfd_create"):
        store = os.memfd_create("tinyshard rendezvous")
        try:
            yield store, ""
        finally:
            os.close(store)
        return
    folder = tempfile.mkdtemp(prefix="tinyshard-")
    try:
        path = os.path.join(folder, "rendezvous")
        store = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield store, path
        finally:
            os.close(store)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def start_worker(
    fork_server: ForkServer, device: int, store: tuple[int, str], facts: dict[str, Any], bell: int = -1
) -> Link:
    """Fork one worker.

    Args:
        device: its id.
        store: what `rendezvous` gave.
        facts: further arguments of `worker.main`.
        bell: descriptor of the pipe by which it wakes the controller, if it shares memory with it.

    Raises:
        RuntimeStateError: the fork server cannot.
    """
    fork_server.wait_until_ready()
    with held_off():  # a child that is forked meanwhile would keep the worker's ends, of which no owner is known
        ours, theirs = socket.socketpair()
        control, their_control = socket.socketpair()
        output, write_end = os.pipe()
        try:
            descriptors = [theirs.fileno(), their_control.fileno(), write_end, store[0], *([bell] if bell >= 0 else [])]
            pid = fork_server.fork({"device": device, "store": store[1], **facts}, descriptors)
            return Link(device, ours, control, output, pid)
        except BaseException:
            ours.close()
            control.close()
            with contextlib.suppress(OSError):
                os.close(output)
            raise
        finally:
            theirs.close()
            their_control.close()
            os.close(write_end)
