"""Starting the workers of a pool: channel, control line and output pipe for each, and a file in which they meet."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tinyshard.runtime.link import Link
from tinyshard.runtime.zygote import Zygote


@contextmanager
def rendezvous(arena: int = -1) -> Iterator[tuple[int, str]]:
    """A file that the workers share: on Linux one without a name, else one in a folder that only the user may enter.

    Args:
        arena: a descriptor of memory that they share, which serves as well; closed in the end.

    Returns:
        A descriptor to pass on, and the path; the path is empty if the descriptor is the way to it.
    """
    if arena >= 0 or hasattr(os, "memfd_create"):
        store = arena if arena >= 0 else os.memfd_create("tinyshard rendezvous")
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


def start_worker(zygote: Zygote, device: int, count: int, store: tuple[int, str], collectives: str) -> Link:
    """Fork one worker.

    Args:
        device: its id, of `count`.
        store: what `rendezvous` gave.
        collectives: "shared" or "gloo".

    Raises:
        RuntimeStateError: the zygote cannot.
    """
    ours, theirs = socket.socketpair()
    control, their_control = socket.socketpair()
    output, write_end = os.pipe()
    try:
        descriptors = [theirs.fileno(), their_control.fileno(), write_end, store[0]]
        request = {"device": device, "count": count, "store": store[1], "collectives": collectives}
        return Link(device, ours, control, output, zygote.fork(request, descriptors))
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
