"""A device: one process that keeps shards by number and runs Programs by number, in the order in which it is told.

It never traces or plans, and never receives a Python function. Its messages come from the log in shared memory, or by
its socket where there is none. Unasked it tells that it is up, that a call has failed, and in shared memory how far it
is.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.core.program import Program
from tinyshard.core.types import Meta
from tinyshard.runtime import wire
from tinyshard.runtime.collectives.base import Communicator
from tinyshard.runtime.failure import NO_MEMORY, Failure, failure_of, is_out_of_memory, short
from tinyshard.runtime.launch import connect
from tinyshard.runtime.shm.allocator import Arena, Block
from tinyshard.runtime.shm.barrier import PeerLostError
from tinyshard.runtime.shm.completion import Completion
from tinyshard.runtime.shm.log import LogReader
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.executor import ReadyProgram, make_ready, zeros_for

_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands in the store for a value that could not be computed.

    Attributes:
        why: what the controller was told; None if it knows better.
    """

    why: Failure | None


class Worker:
    """The device's loop.

    Args:
        sock: this device's channel to the controller.
        device: its id.
        call_control: which calls may start.
        communicator: its way to the other devices.
        arena: the memory that it shares with them and the controller, if it does.
        bell: descriptor of the pipe that wakes the controller, if they share memory.
        place: the GPU on which it keeps and computes its values; None for the CPU.
        is_remote: the controller is on another machine, or may be.
    """

    def __init__(
        self,
        sock: socket.socket,
        device: int,
        call_control: CallControl,
        communicator: Communicator,
        arena: Arena | None,
        bell: int,
        place: torch.device | None,
        *,
        is_remote: bool,
    ) -> None:
        self._sock = sock
        self._device = device
        self._call_control = call_control
        self._communicator = communicator
        self._arena = arena
        self._completion = None if arena is None else Completion(arena.control, device, bell)
        self._log = None if arena is None else LogReader(arena.control, device)
        self._place = place
        self._is_remote = is_remote
        self._values: dict[int, Any] = {}
        self._programs: dict[int, ReadyProgram] = {}
        self._may_have_printed = False

    def serve(self) -> None:
        """Do what comes, until the controller is gone.

        What it has no time for yet stays in the controller's queue, which is bounded.
        """
        wire.send(self._sock, ("ready",))
        for head, payload in self._messages():
            if head[0] == "run":
                self._call(*head[1:])
            else:
                self._handle(head, payload)
            if self._arena is not None and self._arena.freed:  # now that nobody waits for this device
                self._arena.let_go()

    def _messages(self) -> Iterator[wire.Message]:
        """What comes, until the controller is gone."""
        from_socket = wire.messages(self._sock)
        if self._log is None:
            yield from from_socket
            return
        while True:
            for record in self._log.take():
                head, payload = wire.parse(record)
                if head[0] == "by socket":  # the next message is too long for the log
                    large = next(from_socket, None)
                    if large is None:
                        return
                    head, payload = large
                yield head, payload

    def _call(
        self, number: int, program: int, inputs: Sequence[int], outputs: tuple[int, ...], free: Sequence[int]
    ) -> None:
        """Run a program, and let the controller see that it is over."""
        operands = list(map(self._values.get, inputs))
        self._free(free)  # operands among that end with their last use
        if self._call_control.enter(number):
            self._run(number, self._programs[program], operands, outputs)
        else:
            self._values.update(dict.fromkeys(outputs, Failed(None)))
        self._free(free)  # results of this call may be among that, too
        self._call_control.done = number
        self._end_call(number)
        self._communicator.settle()

    def _end_call(self, number: int) -> None:
        """Let the controller see that a call is over, without asking."""
        if self._completion is not None:
            if self._may_have_printed:
                _flush()
                self._may_have_printed = False
            self._completion.finish(number)

    def _handle(self, head: tuple[Any, ...], payload: bytearray | None) -> None:
        kind = head[0]
        if kind == "put":
            _, number, value, shape, dtype, block = head
            self._put(number, value, shape, dtype, block, payload)
            self._call_control.done = number
            self._end_call(number)
        elif kind == "program":
            self._programs[head[1]] = make_ready(head[2], self._place, self._communicator)
        elif kind == "free":
            self._free(head[1])
        elif kind == "forget":
            self._programs.pop(head[1], None)
        elif kind == "sync":
            self._reply(head[1], None)
        elif kind == "held":
            self._reply(head[1], len(self._values))
        elif kind == "fetch":
            self._fetch(head[1], *head[2])
        elif kind == "handed":
            self._reply(head[1], list(self._communicator.handed))
            self._communicator.handed.clear()
        elif kind == "describe":
            values = (self._values.get(v) for v in head[2])
            self._reply(head[1], [_meta(v) for v in values])

    def _reply(self, request: int, answer: Any, payload: memoryview | None = None) -> None:
        _flush()
        if self._is_remote:
            connect.wait_until_there(1)
        wire.send(self._sock, ("reply", request, self._call_control.done, answer), payload)

    def _put(
        self, number: int, value: int, shape: tuple[int, ...], dtype: torch.dtype, block: Block | None, payload: Any
    ) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        if block is not None:
            assert self._arena is not None
            self._values[value] = self._arena.hold(block, shape, dtype)
        elif nbytes and payload is None:  # the channel found no room for it
            error = MemoryError(f"no room for {nbytes} bytes")
            failure = failure_of(self._device, f"device_put({Meta(shape, dtype)})", error)
            self._values[value] = self._fail(number, failure)
        else:
            self._values[value] = wire.tensor_of(payload, shape, dtype).to(self._place)

    def _fail(self, number: int, failure: Failure) -> Failed:
        wire.send(self._sock, ("failed", number, failure))
        if self._completion is not None:
            self._completion.count_failure()
        return Failed(failure)

    def _fetch(self, request: int, value: int, wanted: Any) -> None:
        """Answer with the tensor's bytes, or copy it to its place in a block of the controller's."""
        tensor = self._values.get(value)
        answer: Any = None
        payload = None
        try:
            if not isinstance(tensor, torch.Tensor):
                answer = tensor.why if isinstance(tensor, Failed) else None
            else:
                answer = _meta(tensor)
                if wanted is None:
                    payload = wire.tensor_bytes(tensor.cpu())
                else:
                    assert self._arena is not None
                    block, shape, places = wanted
                    self._arena.view(block.offset, shape, tensor.dtype)[places[self._device]].copy_(tensor)
        except Exception as error:
            answer = failure_of(self._device, f"fetch({short(tensor)})", error)
        if wanted is not None and self._arena is not None:
            self._arena.release(wanted[0])
        self._reply(request, answer, payload)

    def _free(self, values: Iterable[int]) -> None:
        for value in values:
            self._values.pop(value, None)

    def _run(self, number: int, ready: ReadyProgram, values: list[Any], outputs: tuple[int, ...]) -> None:
        """Run a program. If a step raises, the device goes on taking part in the remaining collectives with zeros.

        So it does with a call that is cancelled: others may have started it.

        Args:
            number: of the call.
            ready: the program.
            values: its operands; they are let go of as soon as they are used for the last time.
            outputs: numbers for its results.
        """
        call_control = self._call_control
        if ready.may_print:
            self._may_have_printed = True
        failed = next(value for value in values if type(value) is Failed) if Failed in map(type, values) else None
        values += [None] * (ready.size - len(values))
        for step in ready.steps:
            if number <= call_control.cancelled_upto and not failed:
                failed = self._fail(number, call_control.cancelled(self._device))
            try:
                if step.perform is not None:
                    call_control.current = number, ready, step
                    if call_control.lost is not None:
                        raise PeerLostError("a collective is not begun, for one of the devices is gone")
                    x = zeros_for(step.meta, self._place) if failed else values[step.operand]
                    values[step.results[0]] = step.perform(x, number)
                elif not failed:
                    assert step.call is not None
                    for slot, result in zip(step.results, step.call(values), strict=False):
                        if slot >= 0:
                            values[slot] = result
            except Exception as error:
                failure = failure_of(self._device, step.describe(values), error)
                if step.collective is not None and is_out_of_memory(failure) and self._arena is None:
                    _leave()
                if not failed:
                    lost = call_control.why_broken(error) if step.collective is not None else None
                    failed = self._fail(number, lost or failure)
            call_control.current = None
            for slot in step.dead:
                values[slot] = None
        if self._place is not None and not failed:
            failed = self._failed_on_gpu(number, ready.program)
        for value, slot in zip(outputs, ready.program.outputs, strict=True):
            if failed:
                self._values[value] = failed
            elif values[slot] is not None:
                self._values[value] = values[slot]

    def _failed_on_gpu(self, number: int, program: Program) -> Failed | None:
        """Wait until the GPU has done what it was told, so that what counts as done is, and its errors have a call."""
        try:
            torch.cuda.synchronize(self._place)
        except Exception as error:
            return self._fail(number, failure_of(self._device, f"{len(program.steps)} steps on {self._place}", error))
        return None


def _meta(value: Any) -> Meta | None:
    return Meta(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def _leave() -> None:
    """End this process: it cannot take part in an exchange without memory, and its end lets go those who wait for it.

    (Where memory is shared, a device comes to the exchange all the same, and says that it has no room.)
    """
    _flush()
    os._exit(NO_MEMORY)


def _flush() -> None:
    """Write out what was printed, by C code too: it is to be there before whoever waits goes on."""
    sys.stdout.flush()
    _LIBC.fflush(None)
