"""The loop of a device: one process that keeps shards by number and runs Programs by number, in the controller's order.

It never traces or plans, and never receives a Python function. Messages come from the log in shared memory, or by the
socket where there is none and if they are long. Without a request the device sends that it is up, the values of effects
and that a call has failed, and notes in shared memory, or now and then sends, which calls it has finished.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.core.program import has_op
from tinyshard.core.types import ShapedType, tensor_bytes
from tinyshard.runtime import wire
from tinyshard.runtime.collectives.base import Communicator
from tinyshard.runtime.failure import GPU_FAILED, Failure, failure_of, flush, leave
from tinyshard.runtime.launch import connect
from tinyshard.runtime.launch.processors import Pinned
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.completion import Completion
from tinyshard.runtime.shm.log import LogReader
from tinyshard.runtime.shm.system import HAS_TCMALLOC, give_freed_memory_back
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.executor import ReadyProgram, make_ready
from tinyshard.runtime.worker.recording import CALL, NO_EXCHANGE, Recording
from tinyshard.runtime.worker.steps import Steps
from tinyshard.runtime.worker.values import Memory, Values, meta_of

# so often, busy or idle, a device looks how much freed memory it keeps: if that is too much, it returns all of it
_LOOK_AFTER_S = 1.0
# about this long after the last message (as decaying allocators do) it returns what it keeps for reuse
_REST_AFTER_S = 10.0
# how often a device without shared memory reports its progress
_CALLS_BETWEEN_REPORTS = 64


@dataclass(eq=False)
class Worker:
    """The device's loop. In place of a value that could not be computed it keeps the Failure.

    Attributes:
        sock: this device's socket to the controller.
        device: its id.
        call_control: which calls may start.
        communicator: runs the collectives.
        arena: the memory shared with the controller and the other devices, if there is one.
        bell: descriptor of the pipe that wakes the controller, if they share memory.
        place: the GPU on which it keeps and computes its values; None for the CPU.
        is_remote: the controller may be on another machine.
        pinned: its core; None if the system schedules it.
        memory: counts the device's memory; None without a limit.
    """

    sock: socket.socket
    device: int
    call_control: CallControl
    communicator: Communicator
    arena: Arena | None
    bell: int
    place: torch.device | None
    is_remote: bool
    pinned: Pinned | None = None
    memory: Memory | None = None

    def __post_init__(self) -> None:
        self._completion = None if self.arena is None else Completion(self.arena.control, self.device, self.bell)
        self._log = None if self.arena is None else LogReader(self.arena.control, self.device)
        self._values = Values(self.device, self.arena, self.place, self.memory)
        self._programs: dict[int, ReadyProgram] = {}
        self._called: set[int] = set()  # programs: a second call runs code, which takes time to be made
        self._may_have_printed = False
        self._is_settled = True
        self._default_dtype = torch.get_default_dtype()
        self._busy_s = self._looked_s = time.monotonic()
        self._reported = 0
        self._steps = Steps(self.device, self.call_control, self._fail, self.place, self._log is not None, self.memory)

    def serve(self) -> None:
        """Handle messages in order until `control.listen` ends the process. The controller bounds how many wait."""
        wire.send(self.sock, ("ready",))
        for head, payload in self._messages():
            if head[0] == "run":
                self._call(*head[1:])
            else:
                self._handle(head, payload)
            if self.arena is not None and self.arena.freed:  # now that no process waits for this device
                self.arena.let_go()
            self._busy_s = time.monotonic()
            if self._busy_s - self._looked_s > _LOOK_AFTER_S:
                self._look()

    def _messages(self) -> Iterator[wire.Message]:
        """The messages from the controller."""
        from_socket = wire.messages(self.sock, self._idle, _LOOK_AFTER_S)
        if self._log is None:
            yield from from_socket
            return
        while True:
            if not self._is_settled:
                self._is_settled = self.communicator.settle()
            records = self._log.take(_LOOK_AFTER_S if self._is_settled else 0)
            if not records:
                self._idle()
            for record in records:
                head, payload = wire.parse(record)
                if head[0] == "by socket":  # the next message is too long for the log
                    large = next(from_socket, None)
                    if large is None:
                        return
                    head, payload = large
                yield head, payload

    def _look(self) -> None:
        """Return the memory of freed values to the system if it is more than is kept for the next."""
        give_freed_memory_back(whole=False)
        self._looked_s = time.monotonic()

    def _idle(self) -> None:
        """Look once; later return all but a little, as new memory takes time."""
        idle_s = time.monotonic() - self._busy_s
        if idle_s > _REST_AFTER_S:
            if self.arena is not None:
                self.arena.trim()
            give_freed_memory_back(whole=True)
            if self.place is not None:
                torch.cuda.empty_cache()
            self._busy_s = self._looked_s = time.monotonic()
        elif idle_s > _LOOK_AFTER_S and self._looked_s < self._busy_s:
            self._look()

    def _call(
        self, number: int, program: int, inputs: Sequence[int], outputs: Sequence[int], free: Sequence[int]
    ) -> None:
        """Run a program, and note that the call is finished. `outputs` are numbers for the results."""
        values, control, memory = self._values.by_number, self.call_control, self.memory
        operands = list(map(values.get, inputs))
        failed = next(x for x in operands if type(x) is Failure) if Failure in map(type, operands) else None
        if memory is not None:
            memory.hold(operands)
        self._values.free(free)  # operands among these are freed at their last use
        ready = self._programs[program]
        if self.pinned is not None:
            self.pinned.before(is_small=ready.is_small)
        if ready.function is None and program in self._called:
            ready = self._programs[program] = self._steps.joined(ready)
        self._called.add(program)
        if not control.enter(number):
            skipped = Failure(self.device, error="the call was skipped")  # the controller knows why
            values.update(dict.fromkeys(outputs, skipped))
        else:
            self._steps.begin(number, failed)
            self._may_have_printed |= ready.may_print
            if ready.program.default_dtype is not self._default_dtype:
                self._default_dtype = ready.program.default_dtype
                torch.set_default_dtype(self._default_dtype)
            if failed or ready.function is None or number <= control.cancelled_upto or self._steps.recordings:
                self._run(number, ready, operands, outputs, None)
            else:
                try:
                    results = ready.function(operands)
                except Exception as error:
                    self._run(number, ready, operands, outputs, error)
                else:
                    for value, result in zip(outputs, results, strict=True):
                        if result is not None:
                            values[value] = result
        if memory is not None:
            memory.let_go(operands)  # the rest of them and of the program's values
        self._values.free(free)  # results of this call may be among these, too
        self._end_call(number)
        self._is_settled = self.communicator.settle()
        if HAS_TCMALLOC and not ready.is_small:  # there it takes a microsecond
            self._look()

    def _end_call(self, number: int) -> None:
        """Note that a call is finished."""
        self.call_control.done = number
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
            try:
                self._values.put(value, shape, dtype, block, payload)
            except Exception as error:
                failure = failure_of(self.device, f"placing {ShapedType(shape, dtype)}", error)
                self._values.by_number[value] = self._fail(number, failure)
            self._end_call(number)
        elif kind == "unsent":
            self._values.by_number.update(dict.fromkeys(head[2], head[3]))
            self._end_call(head[1])
        elif kind == "program":
            self._programs[head[1]] = make_ready(head[2], self.place, self.communicator, self._send)
        elif kind == "free":
            self._values.free(head[1])
        elif kind == "forget":
            for program in head[1]:
                self._programs.pop(program, None)
                self._called.discard(program)
        elif kind == "sync":
            self._reply(head[1], None)
        elif kind == "held":
            self._reply(head[1], len(self._values.by_number))
        elif kind == "memory":
            self._reply(head[1], None if self.memory is None else self.memory.stats())
        elif kind == "fetch":
            self._reply(head[1], *self._values.fetch(*head[2]))
        elif kind == "handed":
            self._reply(head[1], list(self.communicator.handed))
            self.communicator.handed.clear()
        elif kind == "record":
            self._steps.recordings = {0: Recording(self.place)}
            self._reply(head[1], time.monotonic_ns())
        elif kind == "recorded":
            recording = self._steps.recordings.get(0)
            self._steps.recordings = {}
            self._reply(head[1], recording and recording.taken())
        elif kind == "unknown":
            self._reply(head[1], [op for op in head[2] if not has_op(op)])
        elif kind == "describe":
            self._reply(head[1], [meta_of(self._values.by_number.get(v)) for v in head[2]])

    def _reply(self, request: int, answer: Any, payload: memoryview | None = None) -> None:
        flush()
        if self.is_remote:
            connect.wait_until_there(1)
        wire.send(self.sock, ("reply", request, self.call_control.done, answer), payload)

    def _send(self, site: int, blocks: list[torch.Tensor]) -> None:
        """Send the values of an effect of the present call to the controller, which waits for them."""
        values = [(tuple(x.shape), x.dtype, bytes(tensor_bytes(x.cpu()))) for x in blocks]
        wire.send(self.sock, ("effect", self.call_control.started, site, values))

    def _fail(self, number: int, failure: Failure) -> Failure:
        wire.send(self.sock, ("failed", number, failure))
        if self.place is not None:
            try:
                torch.cuda.synchronize(self.place)
            except Exception:  # CUDA raises its first error at every later call: this process cannot use the GPU
                leave(GPU_FAILED)
        return failure

    def _run(
        self,
        number: int,
        ready: ReadyProgram,
        values: list[Any],
        outputs: Sequence[int],
        error: Exception | None,
    ) -> None:
        """Run a program where the fast path does not: from its start, or after its function has raised.

        Args:
            values: the operands, each of which is dropped after its last use; empty if the function has run.
            error: what it has raised then.
        """
        values += [None] * (ready.size - len(values))
        steps = self._steps
        if error is not None:
            steps.go_on(ready, values, error)
        else:
            recording, start_ns = steps.recordings.get(0), time.monotonic_ns()
            if recording is not None:
                recording.begin(number)
            steps.run(ready, [values], [0])
            if recording is not None:
                recording.note(ready.program.number, CALL, NO_EXCHANGE, start_ns)
        if self.place is not None and not steps.failed:
            self._wait_for_gpu(ready)
        failed = steps.failure
        for value, slot in zip(outputs, ready.program.outputs, strict=True):
            if failed:
                self._values.by_number[value] = failed
            elif values[slot] is not None:
                self._values.keep(value, values[slot])

    def _wait_for_gpu(self, ready: ReadyProgram) -> None:
        """Block until the GPU has finished the call's steps, so that their errors are errors of this call."""
        try:
            torch.cuda.synchronize(self.place)
        except Exception as error:
            self._steps.note(failure_of(self.device, f"{len(ready.steps)} steps on {self.place}", error))
        else:
            lost = self.call_control.lost  # an abort ends NCCL's waits without an error
            if lost and ready.program.communicates:
                self._steps.note(lost)
