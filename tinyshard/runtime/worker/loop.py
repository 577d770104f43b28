"""The loop of a device: one process that keeps shards by number and runs Programs by number, in the controller's order.

It never traces or plans, and never receives a Python function. Messages come from the log in shared memory, or by the
socket where there is none. Without a request the device sends that it is up and that a call has failed, and notes in
shared memory, or now and then sends, which calls it has finished.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from tinyshard.core.types import ShapedType
from tinyshard.runtime import wire
from tinyshard.runtime.collectives.base import Communicator
from tinyshard.runtime.failure import GPU_FAILED, Failure, failure_of, short
from tinyshard.runtime.launch import connect
from tinyshard.runtime.shm.allocator import Arena, Block
from tinyshard.runtime.shm.completion import Completion
from tinyshard.runtime.shm.log import LogReader
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.executor import ReadyProgram, has_op, make_ready
from tinyshard.runtime.worker.gpu import is_broken
from tinyshard.runtime.worker.memory import Memory
from tinyshard.runtime.worker.recording import Recording
from tinyshard.runtime.worker.steps import Steps, flush, leave, trim

# after this time without a message (as decaying allocators do) a device returns memory that it keeps for reuse
_REST_AFTER_S = 10.0
# how often a device without shared memory reports its progress
_CALLS_BETWEEN_REPORTS = 64


class Worker:
    """The device's loop. In place of a value that could not be computed it keeps the Failure.

    Args:
        sock: this device's socket to the controller.
        device: its id.
        call_control: which calls may start.
        communicator: runs the collectives.
        arena: the memory shared with the controller and the other devices, if there is one.
        bell: descriptor of the pipe that wakes the controller, if they share memory.
        place: the GPU on which it keeps and computes its values; None for the CPU.
        is_remote: the controller may be on another machine.
        memory: counts the device's memory; None without a limit.
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
        memory: Memory | None = None,
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
        self._busy_s = time.monotonic()
        self._reported = 0
        self._memory = memory
        self._recording: Recording | None = None  # while a trace is on
        self._steps = Steps(device, call_control, self._fail, place, has_arena=arena is not None, memory=memory)

    def serve(self) -> None:
        """Handle messages in order, until the controller has ended. The controller bounds how many wait to be read."""
        wire.send(self._sock, ("ready",))
        for head, payload in self._messages():
            if head[0] == "run":
                self._call(*head[1:])
            else:
                self._handle(head, payload)
            if self._arena is not None and self._arena.freed:  # now that no process waits for this device
                self._arena.let_go()

    def _messages(self) -> Iterator[wire.Message]:
        """The messages from the controller, until it has ended."""
        from_socket = wire.messages(self._sock, self._rest, _REST_AFTER_S)
        if self._log is None:
            yield from from_socket
            return
        while True:
            records = self._log.take(_REST_AFTER_S if self._communicator.settle() else 0)
            if records:
                self._busy_s = time.monotonic()
            elif time.monotonic() - self._busy_s > _REST_AFTER_S:
                self._rest()
                self._busy_s = time.monotonic()
            for record in records:
                head, payload = wire.parse(record)
                if head[0] == "by socket":  # the next message is too long for the log
                    large = next(from_socket, None)
                    if large is None:
                        return
                    head, payload = large
                yield head, payload

    def _rest(self) -> None:
        """Return the memory of freed values to the system, except a little: new memory takes time."""
        if self._arena is not None:
            self._arena.trim()
        trim()
        if self._place is not None:
            torch.cuda.empty_cache()

    def _call(
        self, number: int, program: int, inputs: Sequence[int], outputs: tuple[int, ...], free: Sequence[int]
    ) -> None:
        """Run a program, and note that the call is finished."""
        operands = list(map(self._values.get, inputs))
        if self._memory is not None:
            self._memory.hold(operands)
        self._free(free)  # operands among these are freed at their last use
        if self._call_control.enter(number):
            run = self._run if self._recording is None else self._run_recorded
            run(number, self._programs[program], operands, outputs)
        else:
            skipped = Failure(self._device, "", "the call was skipped", "")  # the controller knows why
            self._values.update(dict.fromkeys(outputs, skipped))
        if self._memory is not None:
            self._memory.let_go(operands)  # the rest of them and of the program's values
        self._free(free)  # results of this call may be among these, too
        self._end_call(number)
        self._communicator.settle()

    def _end_call(self, number: int) -> None:
        """Note that a call is finished."""
        self._call_control.done = number
        if self._completion is not None:
            if self._may_have_printed:
                flush()
                self._may_have_printed = False
            self._completion.finish(number)
        elif number - self._reported >= _CALLS_BETWEEN_REPORTS:
            self._reported = number
            self._reply(0, None)

    def _handle(self, head: tuple[Any, ...], payload: bytearray | None) -> None:
        kind = head[0]
        if kind == "put":
            _, number, value, shape, dtype, block = head
            self._put(number, value, shape, dtype, block, payload)
            self._end_call(number)
        elif kind == "unsent":
            self._values.update(dict.fromkeys(head[2], head[3]))
            self._end_call(head[1])
        elif kind == "program":
            self._programs[head[1]] = make_ready(head[2], self._place, self._communicator, self._send)
        elif kind == "free":
            self._free(head[1])
        elif kind == "forget":
            for program in head[1]:
                self._programs.pop(program, None)
        elif kind == "sync":
            self._reply(head[1], None)
        elif kind == "held":
            self._reply(head[1], len(self._values))
        elif kind == "memory":
            self._reply(head[1], None if self._memory is None else self._memory.stats())
        elif kind == "fetch":
            self._fetch(head[1], *head[2])
        elif kind == "handed":
            self._reply(head[1], list(self._communicator.handed))
            self._communicator.handed.clear()
        elif kind == "record":
            self._recording = Recording(self._place)
            self._reply(head[1], time.monotonic_ns())
        elif kind == "recorded":
            recording, self._recording = self._recording, None
            self._reply(head[1], None if recording is None else recording.taken())
        elif kind == "unknown":
            self._reply(head[1], [op for op in head[2] if not has_op(op)])
        elif kind == "describe":
            values = (self._values.get(v) for v in head[2])
            self._reply(head[1], [_meta(v) for v in values])

    def _reply(self, request: int, answer: Any, payload: memoryview | None = None) -> None:
        flush()
        if self._is_remote:
            connect.wait_until_there(1)
        wire.send(self._sock, ("reply", request, self._call_control.done, answer), payload)

    def _send(self, site: int, blocks: list[torch.Tensor]) -> None:
        """Send the values of an effect of the present call to the controller, which waits for them."""
        values = [(tuple(x.shape), x.dtype, bytes(wire.tensor_bytes(x.cpu()))) for x in blocks]
        wire.send(self._sock, ("effect", self._call_control.started, site, values))

    def _put(
        self, number: int, value: int, shape: tuple[int, ...], dtype: torch.dtype, block: Block | None, payload: Any
    ) -> None:
        tensor = None
        if block is not None:
            assert self._arena is not None
            tensor = self._arena.hold(block, shape, dtype)
        try:
            nbytes = math.prod(shape) * dtype.itemsize
            if self._memory is not None:
                self._memory.check(nbytes)
            if block is None and payload is None and nbytes:  # the reader had no memory for it
                raise MemoryError(f"no room for {nbytes} bytes")
            self._keep(value, wire.tensor_of(payload, shape, dtype).to(self._place) if tensor is None else tensor)
        except Exception as error:
            failure = failure_of(self._device, f"placing {ShapedType(shape, dtype)}", error)
            self._values[value] = self._fail(number, failure)

    def _fail(self, number: int, failure: Failure) -> Failure:
        wire.send(self._sock, ("failed", number, failure))
        if self._place is not None and is_broken(self._place):
            leave(GPU_FAILED)
        return failure

    def _fetch(self, request: int, value: int, wanted: Any) -> None:
        """Answer with the tensor's bytes, or copy them into a block that the controller has lent."""
        tensor = self._values.get(value)
        answer: Any = _meta(tensor) or tensor  # a Failure, or None, if there is no tensor
        payload = None
        try:
            if isinstance(tensor, torch.Tensor):
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
            tensor = self._values.pop(value, None)
            if self._memory is not None:
                self._memory.let_go((tensor,))

    def _keep(self, value: int, tensor: Any) -> None:
        self._values[value] = tensor
        if self._memory is not None:
            self._memory.hold((tensor,))

    def _run(self, number: int, ready: ReadyProgram, values: list[Any], outputs: tuple[int, ...]) -> None:
        """Run a program.

        Each of the operands in `values` is dropped after its last use; `outputs` are numbers for the results.
        """
        if ready.may_print:
            self._may_have_printed = True
        if ready.program.default_dtype is not torch.get_default_dtype():
            torch.set_default_dtype(ready.program.default_dtype)
        failed = next(value for value in values if type(value) is Failure) if Failure in map(type, values) else None
        values += [None] * (ready.size - len(values))
        failed = self._steps.run(number, ready, values, failed)
        if self._place is not None and not failed:
            failed = self._failed_on_gpu(number, ready)
        for value, slot in zip(outputs, ready.program.outputs, strict=True):
            if failed:
                self._values[value] = failed
            elif values[slot] is not None:
                self._keep(value, values[slot])

    def _run_recorded(self, number: int, ready: ReadyProgram, values: list[Any], outputs: tuple[int, ...]) -> None:
        """As `_run`, while a trace is on."""
        assert self._recording is not None
        with self._recording.call(number, ready.program.number):
            self._run(number, self._recording.of(ready), values, outputs)

    def _failed_on_gpu(self, number: int, ready: ReadyProgram) -> Failure | None:
        """Block until the GPU has finished the call's steps, so that their errors are errors of this call."""
        try:
            torch.cuda.synchronize(self._place)
        except Exception as error:
            return self._fail(number, failure_of(self._device, f"{len(ready.steps)} steps on {self._place}", error))
        lost = self._call_control.lost  # an abort ends NCCL's waits without an error
        return self._fail(number, lost) if lost and ready.program.communicates else None


def _meta(value: Any) -> ShapedType | None:
    return ShapedType(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None
