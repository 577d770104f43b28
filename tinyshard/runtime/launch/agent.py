"""The process that torchrun or srun starts for each slot: it waits for a controller, and forks the slot's worker.

Like the fork server of a single machine it has torch loaded and never computes, so a fork is quick and safe. But it
serves one slot, and outlives controllers: when a kernel is restarted, it ends its worker and waits for the next kernel.
`launch.hosts` describes their messages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime import wire
from tinyshard.runtime.forks import open_standard_descriptors
from tinyshard.runtime.launch import connect
from tinyshard.runtime.launch.children import Children
from tinyshard.runtime.worker import main as worker

_TRY_AGAIN_S = 0.2
# by launcher, its variables: rank, number of ranks, and rank on its machine
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


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
        "this process does not know which of the workers it is",
        got=f"none of {variables}",
        rule="a launcher starts the workers of all machines and numbers them",
        try_="torchrun --nproc-per-node=4 -m tinyshard.worker --controller HOST:PORT",
    )


def serve(address: tuple[str, int], secret: bytes, slot: tuple[int, int], wait_s: float) -> int:
    """Serve one controller after the other; errors are printed for the user of the launcher.

    Args:
        address: of the controller.
        secret: shared with the controller.
        slot: rank and count.
        wait_s: how long to wait without a controller.

    Returns:
        The exit code: 0 after a controller ended the service, 1 if none connected or it refused.
    """
    open_standard_descriptors()
    rank, count = slot
    facts = {"count": count, "name": socket.gethostname(), "gpus": torch.cuda.device_count(), **connect.versions()}
    since_s = time.monotonic()
    while True:
        try:
            with connect.connect(address, secret, ("agent", rank, facts)) as sock:
                if _obey(sock, lambda role: connect.connect(address, secret, (role, rank, {}))):
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


def _obey(sock: socket.socket, line: Callable[[str], socket.socket]) -> bool:
    """Answer a controller's orders until its connection ends; returns whether it ended the service.

    Args:
        line: opens a connection of a worker to the controller.
    """
    children = Children()
    try:
        while True:
            number, word, what = wire.receive(sock)
            if word == "leave":
                return True
            answer: Any = True
            if word == "kill":
                answer = children.end(what)
            elif word == "kill all":
                children.end_all()
            elif word == "start":
                children.end_all()
                answer = _start(children, sock, line, what)
            wire.send(sock, (number, answer))
    except OSError:
        return False
    finally:
        children.end_all()


def _start(
    children: Children, sock: socket.socket, line: Callable[[str], socket.socket], given: dict[str, Any]
) -> tuple[int | str, tuple[str, int]]:
    """Fork a worker with its connections; returns its pid, or the error, and the address of the workers' store."""
    agent = os.getpid()
    with contextlib.ExitStack() as ours:  # the child has its copies
        channel, control, output = (ours.enter_context(line(role)) for role in connect.WORKER_LINES)
        listener = None
        if given["store"] is None:  # this worker has the store
            listener = ours.enter_context(socket.create_server((sock.getsockname()[0], 0), family=sock.family))
            given["store"] = listener.getsockname()[:2]

        def work() -> None:
            sock.close()
            store_listener = -1 if listener is None else listener.detach()
            worker.main(channel, control, output.detach(), listener=store_listener, fork_server=agent, **given)

        return children.fork(work), given["store"]
