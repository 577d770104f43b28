"""The pool of worker processes: calls that return futures, and reads that block until the values are computed."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch

from tinyshard.core.activity import current_log, spanned
from tinyshard.core.devices import Device
from tinyshard.core.errors import RemoteError, RuntimeStateError
from tinyshard.core.program import Program
from tinyshard.core.types import ShapedType
from tinyshard.core.users_line import Where, users_line
from tinyshard.runtime.controller.cancellation import after_interrupted_cells
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.items import Call, Cancel, Free, Put
from tinyshard.runtime.controller.lineage import Buffer, Run, add_check, input_runs
from tinyshard.runtime.controller.reading import Reading
from tinyshard.runtime.controller.receiver import Receiver
from tinyshard.runtime.controller.refs import Buffers
from tinyshard.runtime.controller.remote_errors import lost_error, unknown_op
from tinyshard.runtime.controller.waiting import Waiting
from tinyshard.runtime.launch import forkserver
from tinyshard.runtime.launch.local import Starter
from tinyshard.runtime.shm import allocator

# an idle device answers within this time: one that does not is busy
READY_WITHIN_S = 0.02
_number_of = attrgetter("number")


class ProcessPool(Reading):
    """Worker processes, one per device, connected by shared memory, gloo or NCCL.

    Args:
        platform: "cpu" or "gpu".
        starter: starts the workers, on this machine or on others.

    Communication: calls by the log in shared memory (`shm.log`) or a socket pair, answers by the socket pair; between
    workers shared memory, or gloo on the loopback. On other machines: TCP to the workers, gloo between the machines.
    """

    kind = "process"

    @forkserver.refusals_explained()
    def __init__(self, platform: str, starter: Starter) -> None:
        self.collectives = starter.collectives
        self.devices = tuple(Device(i, platform) for i in range(starter.count))
        self._platform = platform
        self._starter = starter
        self._owner = os.getpid()
        self._buffers = Buffers()
        self._known_ops: set[str] = set()  # of ops that may not be torch's own
        self._arena = allocator.of_controller(starter.count) if self.collectives == "shared" else None
        self._dispatcher = Dispatcher(self._buffers, self._arena)
        completions = self._dispatcher.completions
        try:
            if self._arena is not None and completions is not None:
                starter.shared = self._arena.fd, completions.bell
            self._receiver = Receiver(self._dispatcher, starter, platform, self._arena)
            self._waiting = Waiting(self._dispatcher, platform, starter.why_silent)
            self._stop_watching_cells = after_interrupted_cells(self.cancel)
            atexit.register(self.shutdown)
        except BaseException:  # Ctrl-C, for one: no caller gets a pool that it could shut down
            self._dispatcher.closing = True
            (self._dispatcher.wake if self._dispatcher.receiving else self._dispatcher.end)()
            raise

    def check_open(self) -> None:
        """Raise RuntimeStateError if it cannot be used any more, or, in a forked child, belongs to the parent."""
        self._dispatcher.check_open()

    def snapshot(self, host: torch.Tensor) -> torch.Tensor:
        """A copy for `put`, in shared memory if there is some."""
        self._dispatcher.check_open()  # a forked child of this process must not allocate blocks
        if self._arena is None or not self._arena.is_for(host.nbytes):
            return host.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return self._new(tuple(host.shape), host.dtype, " to be placed").copy_(host)

    @spanned("put")
    def put(self, blocks: dict[int, torch.Tensor]) -> Buffer:
        """Send a block to each device; the tensors must not change afterwards."""
        dispatcher = self._dispatcher
        dispatcher.check_open()
        place_of = (lambda block: None) if self._arena is None else self._arena.block_of
        placed = {device: (block, place_of(block)) for device, block in blocks.items()}
        nbytes = sum(block.nbytes for block in blocks.values())
        run = Run(0, tuple(blocks), False, users_line(), computes=False, nbytes=nbytes)
        block = next(iter(blocks.values()))
        buffer = self._buffers.make(run, self, ShapedType(tuple(block.shape), block.dtype))
        dispatcher.post(Put(run, buffer.number, placed))
        self._waiting.throttle(run)
        return buffer

    def run(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        *,
        guards: bool = False,
        donated: Sequence[Buffer] = (),
    ) -> list[Buffer]:
        """Call a program on its devices. Returns a Buffer for each output, at once: a future.

        Args:
            program: what to run; sent only once.
            inputs: a value for each input.
            guards: the program checks its inputs: its errors count as errors of the calls that made them.
            donated: the inputs that the devices free at their last use; their handles become unusable.

        Raises:
            RuntimeStateError: the program has an op that the devices do not know.
        """
        dispatcher = self._dispatcher
        dispatcher.check_open()
        if program.foreign:
            self._refuse_unknown(program)
        log, start_ns = current_log(), time.monotonic_ns()
        run = Run(0, program.devices, program.communicates, users_line(), input_runs(inputs))
        buffers = [self._buffers.make(run, self, program.metas[number]) for number in program.outputs]
        if guards:
            for buffer in inputs:
                add_check(buffer.run, run)
        call = Call(run, program, tuple(map(_number_of, inputs)), tuple(map(_number_of, buffers)))
        if donated:
            call.donated = tuple(map(_number_of, donated))
            for buffer in donated:
                buffer.delete()
        dispatcher.post(call)
        for number in call.donated:  # only now: another thread's message must not free it before the call
            self._buffers.release(number)
        if log is not None:
            log.note("dispatch", "", start_ns, (run, program))
        if dispatcher.has_many_calls:
            self._waiting.throttle(run)
        if program.effects:
            self._waiting.perform_effects(run, program.effects)
        return buffers

    def _refuse_unknown(self, program: Program) -> None:
        """Raise RuntimeStateError for an op that the devices do not know. Blocks until one device has answered."""
        asked = tuple(op for op, _ in program.foreign if op not in self._known_ops)
        if not asked:
            return
        device = program.devices[0]
        unknown = self._answers("unknown", [device], asked)[device]
        for op, line in program.foreign:
            if op in unknown:
                raise unknown_op(op, line or users_line())
        self._known_ops.update(asked)

    def is_ready(self, buffer: Buffer, device_ids: Sequence[int]) -> bool:
        """Whether `wait` would return or raise at once. A device that is too busy to answer counts as not ready."""
        needs = self._waiting.ancestry(buffer, device_ids).needs
        late = self._waiting.late(needs)
        is_known = not late or any(self._dispatcher.links[d].lost for d in late)
        return is_known or self._waiting.until_finished(needs, READY_WITHIN_S)

    def describe(self, buffers: Sequence[Buffer], device: int) -> list[ShapedType | None]:
        """Shapes and dtypes of values, where they are known only after the run. Blocks, and raises as `gather` does."""
        answers = self._answers("describe", [device], tuple(b.number for b in buffers))
        for buffer in buffers:
            self._raise_failures(buffer, [device])
        return list(answers[device])

    def delete(self, buffer: Buffer) -> None:
        """Free a value although it has handles, which become unusable."""
        buffer.delete()
        self._buffers.release(buffer.number)
        self._dispatcher.post(Free())

    def memory_stats(self, device: int) -> dict[str, int] | None:
        """The memory that a device holds and has held, after all earlier calls and frees; None without a limit."""
        self._answers("sync", [device])
        stats: dict[str, int] | None = self._answers("memory", [device])[device]
        return stats

    def held(self, device: int) -> int:
        """The number of values that a device holds after all earlier calls and frees."""
        self._answers("sync", [device])
        return int(self._answers("held", [device])[device])

    def record(self) -> dict[int, int]:
        """Start recording steps on the devices. Returns by device how far its clock is ahead of this one's, in ns."""
        asked_ns = time.monotonic_ns()
        answers = self._answers("record", range(len(self.devices)))
        middle_ns = (asked_ns + time.monotonic_ns()) // 2
        return {device: ns - middle_ns if self.host(device) else 0 for device, ns in answers.items()}

    def recorded(self, within_s: float) -> dict[int, tuple[bytes, int] | None]:
        """End the recording. Returns by device its records, see `worker.recording`, and the number of dropped ones.

        Args:
            within_s: devices that have not answered by then, or are lost, are left out; -1 for no limit.
        """
        alive = [link.device for link in self._waiting.open_dispatcher().links if not link.lost]
        request = self._waiting.ask("recorded", alive)
        with contextlib.suppress(RemoteError, RuntimeStateError):
            self._waiting.wait([request], within_s)
        return {device: answer for device, (answer, _) in dict(request.answers).items()}

    def handed(self) -> dict[int, list[tuple[str, int, int]]]:
        """The exchanges of each device since the last call: (name, with gloo its own; group size; operand bytes)."""
        return self._answers("handed", range(len(self.devices)))

    def _answers(self, kind: str, device_ids: Iterable[int], what: Any = None) -> dict[int, Any]:
        """Send a request to devices, and block until all have answered."""
        request = self._waiting.ask(kind, device_ids, what)
        self._waiting.wait([request])
        return {device: answer for device, (answer, _) in request.answers.items()}

    def cancel(self, where: Where) -> None:
        """Cancel all unfinished calls, for an interrupt at `where`; values that were sent or are computed stay."""
        self._dispatcher.post(Cancel(str(where)))

    def pid(self, device: int) -> int:
        """The process id of a device's worker."""
        self._waiting.open_dispatcher()
        link = self._dispatcher.links[device]
        if link.lost:
            raise lost_error(device, link.lost, self._platform)
        return link.pid

    def host(self, device: int) -> str | None:
        """The address of a device's machine; None if it is this one."""
        return self._starter.host(device)

    @property
    def is_alive(self) -> bool:
        """Whether calls can be made: the pool is not shut down, and no device is lost."""
        dispatcher = self._dispatcher
        return not dispatcher.closing and not dispatcher.broken and not dispatcher.calls.has_lost

    def shutdown(self) -> None:
        """End all workers; their values are lost. Idempotent; in a forked child it does nothing."""
        if os.getpid() != self._owner:
            return
        self._stop_watching_cells()
        self._dispatcher.close()
        atexit.unregister(self.shutdown)
        self._waiting.print_output()
