"""A device: one process that keeps shards by number and runs Programs by number, in the order in which it is told.

It never traces or plans, and never receives a Python function. It answers only when asked.
"""

from __future__ import annotations

import collections
import ctypes
import os
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.program import Meta
from tinyshard.runtime import channel
from tinyshard.runtime.execute import ReadyProgram, make_ready, zeros_for
from tinyshard.runtime.fabric import Fabric
from tinyshard.runtime.runs import Failure


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands in the store for a value that could not be computed."""

    number: int


class Worker:
    """The device's loop.

    Args:
        sock: this device's channel to the controller.
        device: its id.
        count: number of devices.
        store: path of the file for gloo's rendezvous.
    """

    def __init__(self, sock: socket.socket, device: int, count: int, store: str) -> None:
        self._sock = sock
        self._device = device
        self._values: dict[int, Any] = {}
        self._programs: dict[int, ReadyProgram] = {}
        self._inbox: collections.deque[tuple[tuple[Any, ...], bytearray | None]] = collections.deque()
        self._arrived = threading.Semaphore(0)
        self._done = 0
        self._fabric = Fabric(store, device, count)

    def serve(self) -> None:
        """Read in one thread, work in this one, until the controller says exit or is gone."""
        threading.Thread(target=self._receive, name="channel", daemon=True).start()
        channel.send(self._sock, ("ready", os.getpid()))
        while True:
            self._arrived.acquire()
            head, payload = self._inbox.popleft()
            if head[0] == "exit":
                return
            self._handle(head, payload)

    def _receive(self) -> None:
        reader = channel.Reader(self._sock)
        while True:
            messages = reader.read()
            if messages is None:  # the controller is gone, and nobody is left to tell
                os._exit(0)
            for message in messages:
                self._inbox.append(message)
                self._arrived.release()

    def _handle(self, head: tuple[Any, ...], payload: bytearray | None) -> None:
        kind = head[0]
        if kind == "run":
            _, number, program, inputs, outputs = head
            self._run(number, self._programs[program], inputs, outputs)
            self._done = number
        elif kind == "put":
            _, number, value, shape, dtype = head
            self._values[value] = channel.tensor_of(payload, shape, dtype)
            self._done = number
        elif kind == "program":
            self._programs[head[1]] = make_ready(head[2])
        elif kind == "free":
            for value in head[1]:
                self._values.pop(value, None)
        elif kind == "forget":
            self._programs.pop(head[1], None)
        elif kind == "sync":
            self._reply(head[1], None)
        elif kind == "fetch":
            self._fetch(head[1], head[2])
        elif kind == "describe":
            values = (self._values.get(v) for v in head[2])
            self._reply(head[1], [_meta(v) for v in values])

    def _reply(self, request: int, answer: Any, payload: memoryview | None = None) -> None:
        channel.send(self._sock, ("reply", request, self._done, answer), payload)

    def _fetch(self, request: int, value: int) -> None:
        tensor = self._values.get(value)
        if isinstance(tensor, torch.Tensor):
            self._reply(request, _meta(tensor), channel.tensor_bytes(tensor))
        else:
            self._reply(request, None)

    def _run(self, number: int, ready: ReadyProgram, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        """Run a program. If a step raises, the device goes on taking part in the remaining collectives with zeros."""
        program = ready.program
        values: list[Any] = [self._values.get(i) for i in inputs] + [None] * (ready.size - len(inputs))
        failed = any(isinstance(v, Failed) for v in values)
        for step in ready.steps:
            try:
                if step.collective is not None:
                    name, named, params = step.collective
                    operand, meta = step.operand
                    x = zeros_for(meta) if failed else values[operand]
                    if name == "transfer":
                        made = self._fabric.transfer(x, program.devices, program.metas[step.results[0]], **params)
                    else:
                        made = self._fabric.perform(name, x, program.devices, program.axes, named, params)
                    values[step.results[0]] = made
                elif not failed:
                    assert step.call is not None
                    for slot, result in zip(step.results, step.call(values), strict=False):
                        if slot >= 0:
                            values[slot] = result
            except Exception as error:
                if not failed:
                    channel.send(self._sock, ("failed", number, _failure(step.name, error)))
                failed = True
            for slot in step.dead:
                values[slot] = None
        for value, slot in zip(outputs, program.outputs, strict=True):
            if failed:
                self._values[value] = Failed(number)
            elif values[slot] is not None:
                self._values[value] = values[slot]


def _meta(value: Any) -> Meta | None:
    return Meta(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def _failure(op: str, error: Exception) -> Failure:
    frames = "".join(traceback.format_tb(error.__traceback__))
    text = f"{type(error).__name__}: {error}".strip()
    return Failure(op, text, frames.rstrip())


def _die_with_parent() -> None:
    """On Linux the kernel kills this process when its parent goes, stopped or not."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main(sock: socket.socket, output: int, device: int, count: int, store: str) -> None:
    """What a freshly forked worker does until it exits.

    Args:
        sock: the channel.
        output: file descriptor that takes what the process prints.
    """
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    Worker(sock, device, count, store).serve()
