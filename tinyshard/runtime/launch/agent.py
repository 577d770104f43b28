"""What torchrun or srun starts for each slot: it waits for a controller, and forks the slot's worker when told to.

Like the fork server of a single machine it has torch loaded and never computes, so a fork is quick and safe. But it
serves one slot, and outlives controllers: when a kernel is restarted, it ends its worker and waits for the next kernel.

    controller                          agent of a slot
                                   ←    ("agent", the slot's facts)                  as the hello of its line
    ("start", pool, facts)         →    ends the worker that it has, forks the next
    ("kill", pool)                 →    ends it
                                   ←    ("ended", pool, wait status)                 however it ended
    ("leave",)                     →    ends its worker and itself
"""

from __future__ import annotations

import os
import platform as system
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tinyshard.runtime import wire
from tinyshard.runtime.launch import connect
from tinyshard.runtime.launch.authentication import RefusedError
from tinyshard.runtime.launch.rendezvous import LineStore, Rendezvous
from tinyshard.runtime.launch.slots import Slot
from tinyshard.runtime.worker import main as worker

LOOK_AGAIN_S = 0.2


def versions() -> dict[str, str]:
    """What must be the same in a controller and its workers: pickles and programs travel between them."""
    return {
        "python": ".".join(system.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],
    }


def facts() -> dict[str, Any]:
    """What a controller must know of this process before it sends it programs."""
    return {"name": socket.gethostname(), "gpus": torch.cuda.device_count(), **versions()}


def serve(address: tuple[str, int], secret: bytes, slot: Slot, wait_s: float, say: Callable[[str], None]) -> int:
    """Serve one controller after the other.

    Args:
        address: of the controller.
        secret: what it knows too.
        slot: which device this is.
        wait_s: how long to be without a controller.
        say: tells the user who reads the launcher's output.

    Returns:
        The exit code: 0 when a controller said that it is over, 1 when none came or it refused.
    """
    waker = _notice_children()
    since_s = time.monotonic()
    hello = ("agent", slot.rank, slot.count, slot.local_rank, facts())
    while True:
        try:
            sock = connect.connect(address, secret, hello)
        except RefusedError as error:
            say(f"the controller at {address[0]}:{address[1]} and this worker do not get together: {error}")
            return 1
        except OSError as error:
            if time.monotonic() - since_s > wait_s:
                say(f"no controller at {address[0]}:{address[1]} within {wait_s:.0f} s: {error}")
                return 1
            time.sleep(LOOK_AGAIN_S)
            continue
        connect.watch(sock)
        with sock:
            if _attend(sock, waker, address, secret):
                return 0
        since_s = time.monotonic()


def _notice_children() -> socket.socket:
    """A socket that can be read when a child has ended."""
    waker, wake = socket.socketpair()
    waker.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
    return waker


def _attend(sock: socket.socket, waker: socket.socket, address: tuple[str, int], secret: bytes) -> bool:
    """Do what the controller says until it is gone; whether it said that this is over."""
    child: _Child | None = None
    reader = wire.Reader(sock)
    try:
        while True:
            ready, _, _ = select.select([sock, waker], [], [])
            if waker in ready:
                waker.recv(64)
                child = _report(sock, child, child.poll() if child is not None else None)
            if sock not in ready:
                continue
            messages = reader.read()
            if messages is None:
                return False
            for head, _ in messages:
                if head[0] == "start":
                    child = _report(sock, child, child.kill() if child is not None else None)
                    child = _Child(head[1], _fork((sock, waker), partial(_work, address, secret, *head[1:])))
                elif head[0] == "kill" and child is not None and child.pool == head[1]:
                    child = _report(sock, child, child.kill())
                elif head[0] == "leave":
                    return True
    except OSError:
        return False
    finally:
        if child is not None:
            child.kill()


def _report(sock: socket.socket, child: _Child | None, status: int | None) -> _Child | None:
    """Tell the controller how a child ended, if it did; the child that is left."""
    if child is None or status is None:
        return child
    wire.send(sock, ("ended", child.pool, status))
    return None


class _Child:
    def __init__(self, pool: str, pid: int) -> None:
        self.pool = pool
        self._pid = pid

    def poll(self) -> int | None:
        """Its wait status, if it has ended."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return status if pid else None

    def kill(self) -> int:
        """End it; how it ended, if something else did that before."""
        os.kill(self._pid, signal.SIGKILL)
        return os.waitpid(self._pid, 0)[1]


def _fork(own: Sequence[socket.socket], work: Callable[[], None]) -> int:
    """Fork a process that closes what is the agent's own, and works; its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for sock in own:
            sock.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
        code = 0
    except BaseException:  # it is a process of its own: nobody is there to catch more
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(address: tuple[str, int], secret: bytes, pool: str, given: dict[str, Any]) -> None:
    """What the child does: connect its lines, and be a worker."""
    agent, device = os.getppid(), given["device"]
    made = {
        role: connect.connect(address, secret, (role, pool, device, os.getpid()))
        for role in ("channel", "control", "output", "store")
    }
    own = made["channel"]
    rendezvous = Rendezvous(LineStore(made["store"]), own.getsockname()[0])
    facts = given["count"], rendezvous, agent, given["collectives"], given["gpu"]
    worker.main(own, made["control"], made["output"].detach(), device, *facts)
