"""The main function of a worker process: from its fork to its end."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
import threading

import torch
import torch.distributed as dist

from tinyshard.runtime.collectives.base import Communicator
from tinyshard.runtime.collectives.gloo import TIMEOUT, GlooCommunicator
from tinyshard.runtime.collectives.shm import SharedMemoryCommunicator
from tinyshard.runtime.launch.processors import Pinned
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.system import keep_freed_memory
from tinyshard.runtime.worker.control import CallControl, listen
from tinyshard.runtime.worker.loop import Worker
from tinyshard.runtime.worker.values import Memory

_LIBC = ctypes.CDLL(None)


def _end_with_parent(fork_server: int) -> None:
    """On Linux, end this process when its parent is killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != fork_server:  # the parent was killed before the line above
        os._exit(0)


def _print_by_lines() -> None:
    """Make stdout line-buffered though it is a pipe, for Python and for libraries in C."""
    if sys.stdout is None:  # closed when the parent was started
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    line_buffered = 1
    with contextlib.suppress(ValueError):  # this C library has another name for stdout
        _LIBC.setvbuf(ctypes.c_void_p.in_dll(_LIBC, "stdout"), None, line_buffered, ctypes.c_size_t(0))


def main(
    sock: socket.socket,
    control: socket.socket,
    output: int,
    device: int,
    count: int,
    store: str | tuple[str, int],
    fork_server: int,
    collectives: str,
    gpu: int | None = None,
    cores: tuple[int, ...] = (),
    bell: int = -1,
    listener: int = -1,
    limit_nbytes: int | None = None,
) -> None:
    """Run a freshly forked worker until it exits.

    Args:
        sock: the socket for calls and answers.
        control: the control line.
        output: file descriptor to which the process prints.
        device: its id, of `count`.
        store: path of the file by which the workers connect; or over a network the address of their TCPStore.
        fork_server: process id of the parent.
        collectives: "shared", "gloo" or "nccl".
        gpu: the number of its GPU; None for the CPU.
        cores: the one to which it is pinned, if it is; and the one where it is while calls are small, if it moves.
        bell: descriptor of the pipe that wakes the controller, if they share memory.
        listener: descriptor at which this worker serves the TCPStore, if it is the one that does.
        limit_nbytes: the largest number of bytes that it may hold; None for no limit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller handles Ctrl-C
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    _print_by_lines()
    pinned = Pinned(*cores) if cores else None
    call_control = CallControl()
    joined: list[Communicator] = []  # filled later: the controller may end before, which the control thread notices
    threading.Thread(target=listen, args=(control, device, call_control, joined), name="control", daemon=True).start()
    _end_with_parent(fork_server)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_freed_memory()
    place = None if gpu is None else torch.device("cuda", gpu)
    is_remote = not isinstance(store, str)
    arena = None
    if collectives == "shared" and isinstance(store, str):
        fd = os.open(store, os.O_RDWR)
        arena = Arena(fd, count, device)
        os.close(fd)
        communicator: Communicator = SharedMemoryCommunicator(arena)
    else:
        # gloo listens on the loopback, or on the address by which this machine reaches the controller
        host = sock.getsockname()[0] if is_remote else "127.0.0.1"
        communicator = _join(collectives, _store(store, count, listener), device, count, host, place)
    joined.append(communicator)
    memory = None if limit_nbytes is None else Memory(limit_nbytes)
    Worker(
        sock, device, call_control, communicator, arena, bell, place, is_remote=is_remote, pinned=pinned, memory=memory
    ).serve()


def _store(store: str | tuple[str, int], count: int, listener: int) -> dist.Store:
    """Where the workers find each other."""
    if isinstance(store, str):
        return dist.FileStore(store, count)
    serves = listener >= 0
    return dist.TCPStore(
        *store, None, serves, TIMEOUT, wait_for_workers=False, master_listen_fd=listener if serves else None
    )


def _join(
    collectives: str, store: dist.Store, device: int, count: int, host: str, place: torch.device | None
) -> Communicator:
    if place is None:
        return GlooCommunicator(store, device, count, host)
    from tinyshard.runtime.collectives.nccl import NcclCommunicator, StagedCommunicator

    torch.cuda.set_device(place)
    torch.backends.cudnn.allow_tf32 = False  # with it convolutions of float32 keep 10 bits of each operand
    kind = NcclCommunicator if collectives == "nccl" else StagedCommunicator
    return kind(store, device, count, host, place)
