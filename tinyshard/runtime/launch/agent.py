"""The process that torchrun or srun starts for each slot: it waits for a controller, and forks the slot's worker.

Like the fork server of a single machine it has torch loaded and never computes, so a fork is quick and safe. But it
serves one slot, and outlives controllers: when a kernel is restarted, it ends its worker and waits for the next kernel.
What the two say to each other stands in `launch.hosts`.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import Any

import torch

from tinyshard.core.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.launch import connect
from tinyshard.runtime.worker import main as worker

_TRY_AGAIN_S = 0.2
# by launcher, its variables: rank, how many ranks, and rank on its machine
_LAUNCHERS = {
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
    for names in _LAUNCHERS.values():
        if all(environment.get(name, "").isdecimal() for name in names):
            return int(environment[names[0]]), int(environment[names[1]])
    variables = ", or of ".join(f"{', '.join(names)} ({launcher})" for launcher, names in _LAUNCHERS.items())
    raise RuntimeStateError(
        message(
            "this process does not know which of the workers it is",
            got=f"none of {variables}",
            rule="a launcher starts the workers of all machines and numbers them",
            try_="torchrun --nproc-per-node=4 -m tinyshard.worker --controller HOST:PORT",
        )
    )


def serve(address: tuple[str, int], secret: bytes, slot: tuple[int, int], wait_s: float) -> int:
    """Serve one controller after the other; what is wrong is printed for the user of the launcher.

    Args:
        address: of the controller.
        secret: what the controller knows too.
        slot: rank and count.
        wait_s: how long to be without a controller.

    Returns:
        The exit code: 0 when a controller said that it is over, 1 when none came or it refused.
    """
    rank, count = slot
    facts = {"count": count, "name": socket.gethostname(), "gpus": torch.cuda.device_count(), **connect.versions()}

    def work(agent: socket.socket, pool: str, given: dict[str, Any]) -> None:
        """What the forked child does: open its connections, and be a worker."""
        agent.close()  # its end must be seen though a child lives
        channel, control, output, store = (
            connect.connect(address, secret, (role, rank, {"pool": pool, "pid": os.getpid()}))
            for role in connect.WORKER_LINES
        )
        met_at, parent = connect.Rendezvous(store), _FORK.parent_process().pid
        worker.main(channel, control, output.detach(), store=met_at, fork_server=parent, **given)

    since_s = time.monotonic()
    while True:
        try:
            with connect.connect(address, secret, ("agent", rank, facts)) as sock:
                if _obey(sock, work):
                    return 0
            since_s = time.monotonic()
        except connect.RefusedError as error:
            problem = f"the controller at {address[0]}:{address[1]} and this worker do not get together: {error}"
            break
        except OSError as error:
            if time.monotonic() - since_s > wait_s:
                problem = f"no controller at {address[0]}:{address[1]} within {wait_s:.0f} s: {error}"
                break
            time.sleep(_TRY_AGAIN_S)
    print(f"tinyshard worker {rank}: {problem}", file=sys.stderr, flush=True)
    return 1


def _obey(sock: socket.socket, work: Callable[[socket.socket, str, dict[str, Any]], None]) -> bool:
    """Do what a controller says until its connection ends; whether it said that all is over."""
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
                child = _FORK.Process(target=work, args=(sock, *given), name=given[0])
                child.start()
    except OSError:
        return False
    finally:
        if child is not None:
            child.kill()
            child.join()
