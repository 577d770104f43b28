"""The local runtime: all devices in this process, step by step in lockstep.

It runs the same Programs as the workers, with collectives as plain functions of the stacked shards. It starts at once
and is deterministic: an oracle for tests, a runtime for debuggers, and a fallback if processes cannot be started.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.activity import current_log
from tinyshard.core.devices import Device
from tinyshard.core.effects import Effects
from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.program import Program
from tinyshard.core.thread_state import default_keys
from tinyshard.core.types import ShapedType, default_dtype
from tinyshard.core.users_line import users_line
from tinyshard.runtime.collectives.base import MOST_HANDED
from tinyshard.runtime.controller.lineage import Buffer, Run, add_check, ancestry, input_runs, settle
from tinyshard.runtime.controller.refs import Buffers, Wanted, Watched, by_devices, put_together
from tinyshard.runtime.controller.remote_errors import error_of
from tinyshard.runtime.failure import failure_of
from tinyshard.runtime.lockstep import Lockstep
from tinyshard.runtime.worker.executor import ReadyProgram, make_ready
from tinyshard.runtime.worker.recording import Recording
from tinyshard.runtime.worker.values import Memory, Values, meta_of


class LocalRuntime:
    """All devices in one process.

    Args:
        count: number of devices.
        limit_nbytes: the largest number of bytes that each may hold; None for no limit.

    Attributes:
        is_alive: whether calls can be made: it is not shut down.

    Communication: none.
    """

    kind = "local"

    def __init__(self, count: int, limit_nbytes: int | None = None) -> None:
        self.devices = tuple(Device(i, "cpu") for i in range(count))
        self._numbers = itertools.count(1)
        self._buffers = Buffers()
        self._memories = [] if limit_nbytes is None else [Memory(limit_nbytes) for _ in self.devices]
        memories: list[Memory | None] = [*self._memories] or [None] * count
        self._values = [Values(device, None, None, memory) for device, memory in enumerate(memories)]
        self._programs: dict[int, ReadyProgram] = {}
        self._watched = Watched()  # these programs
        self.is_alive = True
        self._recordings: list[Recording] = []  # while a trace is on, one for each device
        self._handed: list[deque[tuple[str, int, int]]] = [deque(maxlen=MOST_HANDED) for _ in self.devices]

    def put(self, blocks: dict[int, Tensor]) -> Buffer:
        """Give a block to each device."""
        self.check_open()
        self._drop_released()
        run = Run(next(self._numbers), tuple(blocks), False, users_line(), settled=True)
        block = next(iter(blocks.values()))
        meta = ShapedType(tuple(block.shape), block.dtype)
        buffer = self._buffers.make(run, self, meta)
        for device, block in blocks.items():
            try:
                if self._memories:
                    self._memories[device].check(meta.nbytes)
                self._values[device].keep(buffer.number, block)
            except MemoryError as error:
                run.failures[device] = (failure_of(device, f"placing {meta}", error), run.where)
        return buffer

    def run(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        *,
        guards: bool = False,
        donated: Sequence[Buffer] = (),
    ) -> list[Buffer]:
        """Run a program now. An error is raised when the value is read, as on worker processes.

        The devices free the donated inputs at their last use; their handles become unusable.
        """
        self.check_open()
        self._drop_released()
        ready = self._programs.get(program.number)
        if ready is None:
            ready = self._programs[program.number] = make_ready(copy.copy(program))
            self._watched.watch(program, program.number, ())
        run = Run(next(self._numbers), program.devices, program.communicates, users_line(), input_runs(inputs))
        buffers = [self._buffers.make(run, self, program.metas[number]) for number in program.outputs]
        numbers = [b.number for b in inputs]
        for buffer in donated:
            buffer.delete()
        log, start_ns = current_log(), time.monotonic_ns()
        with torch.no_grad(), default_keys(), default_dtype(program.default_dtype):
            effects = self._execute(ready, run, numbers, [b.number for b in buffers], [b.number for b in donated])
        settle(run)
        if log is not None:
            log.note("dispatch", "", start_ns, (run, program))
        effects.perform(is_over=True)
        if guards:
            for buffer in inputs:
                add_check(buffer.run, run)
        return buffers

    def _execute(
        self, ready: ReadyProgram, run: Run, inputs: list[int], outputs: list[int], donated: list[int]
    ) -> Effects:
        devices = ready.program.devices
        extra = [None] * (ready.size - len(inputs))
        values: list[list[Any]] = [[self._values[d].by_number.get(i) for i in inputs] + extra for d in devices]
        if self._memories:
            for device, row in zip(devices, values, strict=True):
                self._memories[device].hold(row)
        self._free(devices, donated)
        call = Lockstep(run, ready, self._handed, self._memories, self._recordings)
        call.run(ready, values, range(len(devices)))
        for position, device in enumerate(devices):
            for number, slot in zip(outputs, ready.program.outputs, strict=True):
                if position not in call.failed and values[position][slot] is not None:
                    self._values[device].keep(number, values[position][slot])
            if self._memories:
                self._memories[device].let_go(values[position])
        return call.effects

    def fetch(self, buffer: Buffer, device_ids: Sequence[int]) -> dict[int, Tensor]:
        """The blocks on these devices. Raises RemoteError if they could not be computed."""
        self.wait(buffer, device_ids)
        return {d: self._values[d].by_number[buffer.number].clone() for d in device_ids}

    def snapshot(self, host: Tensor) -> Tensor:
        """A copy for `put`."""
        return host.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)

    def gather(self, wanted: Sequence[Wanted]) -> list[Tensor]:
        """Each value as one tensor, assembled from its blocks. Raises as `fetch` does."""
        return [put_together(self.fetch(w.buffer, list(w.places)), w) for w in wanted]

    def wait(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        """Raise RemoteError if the blocks on these devices could not be computed."""
        self.check_open()
        failures = ancestry(buffer.run, device_ids).failures
        if failures:
            raise error_of(failures, "cpu", self._buffers)

    def is_ready(self, buffer: Buffer, device_ids: Sequence[int]) -> bool:
        """Always true: a call computes at once."""
        return True

    def describe(self, buffers: Sequence[Buffer], device: int) -> list[ShapedType | None]:
        """Shapes and dtypes of values, where they are known only after the run."""
        for buffer in buffers:
            self.wait(buffer, [device])
        return [meta_of(self._values[device].by_number.get(b.number)) for b in buffers]

    def held(self, device: int) -> int:
        """The number of values that a device holds."""
        self._drop_released()
        return len(self._values[device].by_number)

    def record(self) -> dict[int, int]:
        """Start recording the steps of all devices. Returns by device how far its clock is ahead: 0."""
        self._recordings = [Recording() for _ in self.devices]
        return dict.fromkeys(range(len(self.devices)), 0)

    def recorded(self, within_s: float) -> dict[int, tuple[bytes, int] | None]:
        """End the recording. Returns by device its records, and the number of dropped ones."""
        recordings, self._recordings = self._recordings, []
        return {device: recording.taken() for device, recording in enumerate(recordings)}

    def handed(self) -> dict[int, list[tuple[str, int, int]]]:
        """The collectives of each device since the last call of this: (name, group size, operand bytes)."""
        answer = {device: list(handed) for device, handed in enumerate(self._handed)}
        for handed in self._handed:
            handed.clear()
        return answer

    def host(self, device: int) -> str | None:
        """None: this machine."""
        return None

    def pid(self, device: int) -> int | None:
        """None: the devices do not have processes."""
        return None

    def shutdown(self) -> None:
        """Drop all values."""
        self.is_alive = False
        for values in self._values:
            values.by_number.clear()
        self._programs.clear()

    def _drop_released(self) -> None:
        released = self._buffers.released()
        self._buffers.drop(released)
        for devices, numbers in by_devices(released).items():
            self._free(devices, numbers)
        unused = self._watched.released()
        self._watched.drop(unused)
        for watch in unused:
            self._programs.pop(watch.number, None)

    def _free(self, devices: Sequence[int], numbers: Sequence[int]) -> None:
        for device in devices:
            self._values[device].free(numbers)

    def delete(self, buffer: Buffer) -> None:
        """Free a value although it has handles, which become unusable."""
        devices = self._buffers.devices_of(buffer.number)
        buffer.delete()
        self._free(devices, [buffer.number])

    def memory_stats(self, device: int) -> dict[str, int] | None:
        """The memory that a device holds and has held; None without a limit."""
        self._drop_released()
        return self._memories[device].stats() if self._memories else None

    def check_open(self) -> None:
        """Raise RuntimeStateError if it has been shut down."""
        if not self.is_alive:
            raise RuntimeStateError(
                "the runtime that held this value has been shut down",
                rule="values live on the devices and end with them",
                try_="ts.init() starts fresh devices; make the arrays again there",
            )
