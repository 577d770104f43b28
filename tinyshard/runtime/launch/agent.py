"""What torchrun or srun starts for each slot: it waits for a controller, and forks the slot's worker when told to.

Like the fork server of a single machine it has torch loaded and never computes, so a fork is quick and safe. But it
serves one slot, and outlives controllers: when a kernel is restarted, it ends its worker and waits for the next kernel.

    controller                          agent of a slot
                                   ←    ("agent", rank, facts)            as the hello of its connection
    ("start", pool, arguments)     →    ends the worker that it has, forks the next
    ("kill", pool)                 →    ends it
                                   ←    ("ended", pool, exit code)        however it ended
    ("leave",)                     →    ends its worker and itself
"""

from __future__ import annotations

import multiprocessing
import os
import platform as system
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch

from tinyshard.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.launch import connect
from tinyshard.runtime.launch.authentication import RefusedError
from tinyshard.runtime.launch.rendezvous import Rendezvous
from tinyshard.runtime.worker import main as worker

LOOK_AGAIN_S = 0.2
# by launcher, its variables: rank, how many ranks, and rank on its machine
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
_FORK: Any = multiprocessing.get_context("fork")


def slot_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Rank and count, from the launcher's variables. The rank is the id of the device.

    Raises:
        RuntimeStateError: there are none.

    Example:
        >>> slot_of({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
        (5, 8)
    """
    for names in LAUNCHERS.values():
        if all(environment.get(name, "").isdecimal() for name in names):
            return int(environment[names[0]]), int(environment[names[1]])
    raise RuntimeStateError(
        message(
            "this process does not know which of the workers it is",
            got="none of "
            + ", or of ".join(f"{', '.join(names)} ({launcher})" for launcher, names in LAUNCHERS.items()),
            rule="a launcher starts the workers of all machines and numbers them",
            try_="torchrun --nproc-per-node=4 -m tinyshard.worker --controller HOST:PORT",
        )
    )


def versions() -> dict[str, str]:
    """What must be the same in a controller and its workers: pickles and programs travel between them."""
    return {"python": ".".join(system.python_version_tuple()[:2]), "torch": torch.__version__.partition("+")[0]}


def serve(
    address: tuple[str, int], secret: bytes, slot: tuple[int, int], wait_s: float, say: Callable[[str], None]
) -> int:
    """Serve one controller after the other.

    Args:
        address: of the controller.
        secret: what it knows too.
        slot: rank and count.
        wait_s: how long to be without a controller.
        say: tells the user who reads the launcher's output.

    Returns:
        The exit code: 0 when a controller said that it is over, 1 when none came or it refused.
    """
    rank, count = slot
    facts = {"count": count, "name": socket.gethostname(), "gpus": torch.cuda.device_count(), **versions()}
    since_s = time.monotonic()
    while True:
        try:
            sock = connect.connect(address, secret, ("agent", rank, facts))
        except RefusedError as error:
            say(f"the controller at {address[0]}:{address[1]} and this worker do not get together: {error}")
            return 1
        except OSError as error:
            if time.monotonic() - since_s > wait_s:
                say(f"no controller at {address[0]}:{address[1]} within {wait_s:.0f} s: {error}")
                return 1
            time.sleep(LOOK_AGAIN_S)
            continue
        with sock:
            if _obey(sock, partial(_work, sock, address, secret, rank)):
                return 0
        since_s = time.monotonic()


def _obey(sock: socket.socket, work: Callable[[str, dict[str, Any]], None]) -> bool:
    """Do what the controller says until it is gone; whether it said that this is over."""
    child: Any = None

    def end_child() -> None:
        nonlocal child
        ended, child = child, None
        ended.kill()  # if it has not ended by itself
        ended.join()
        wire.send(sock, ("ended", ended.name, ended.exitcode))

    try:
        while True:
            ready = wait([sock] if child is None else [sock, child.sentinel])
            if child is not None and child.sentinel in ready:
                end_child()
            if sock not in ready:
                continue
            word, *given = wire.receive(sock)
            if word == "leave":
                return True
            if child is not None and (word == "start" or child.name == given[0]):
                end_child()
            if word == "start":
                child = _FORK.Process(target=work, args=given, name=given[0])
                child.start()
    except OSError:
        return False
    finally:
        if child is not None:
            child.kill()
            child.join()


def _work(
    sock: socket.socket, address: tuple[str, int], secret: bytes, rank: int, pool: str, given: dict[str, Any]
) -> None:
    """What the child does: open its connections, and be a worker."""
    agent = _FORK.parent_process().pid
    sock.close()  # the agent's own: its end must be seen though a child lives
    channel, control, output, store = (
        connect.connect(address, secret, (role, rank, {"pool": pool, "pid": os.getpid()}))
        for role in connect.WORKER_LINES
    )
    worker.main(channel, control, output.detach(), store=Rendezvous(store), fork_server=agent, **given)
