"""The local runtime: all devices in this process, step by step in lockstep.

It runs the same Programs as the workers, with collectives as plain functions of the stacked shards. It starts at once
and is deterministic: an oracle for tests, a runtime for debuggers, and a fallback where no process can be started.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.devices import Device
from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.program import Program
from tinyshard.core.torch_state import default_keys
from tinyshard.core.types import ShapedType, default_dtype
from tinyshard.runtime.collectives.base import MOST_HANDED, Request
from tinyshard.runtime.controller.lineage import Buffer, Run, Where, add_check, ancestry, input_runs, settle
from tinyshard.runtime.controller.refs import Buffers, Wanted, by_devices, put_together
from tinyshard.runtime.controller.remote_errors import remote_error
from tinyshard.runtime.failure import failure_of
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, make_ready, zeros_for


class LocalRuntime:
    """All devices in one process.

    Args:
        count: number of devices.
        platform: "cpu".

    Communication: none.
    """

    kind = "local"

    def __init__(self, count: int, platform: str = "cpu") -> None:
        self.devices = tuple(Device(i, platform) for i in range(count))
        self._platform = platform
        self._numbers = itertools.count(1)
        self._buffers = Buffers()
        self._stores: list[dict[int, Tensor]] = [{} for _ in self.devices]
        self._programs: dict[int, ReadyProgram] = {}
        self._watches: dict[int, weakref.ref[Program]] = {}  # which end with this runtime, as finalizers would not
        self._closed = False
        self._handed: list[deque[tuple[str, int, int]]] = [deque(maxlen=MOST_HANDED) for _ in self.devices]

    def put(self, blocks: dict[int, Tensor], where: Where) -> Buffer:
        """Give a block to each device."""
        self.check_open()
        self._drop_released()
        buffer = self._buffers.make(Run(next(self._numbers), tuple(blocks), False, where, settled=True), self)
        for device, block in blocks.items():
            self._stores[device][buffer.number] = block
        return buffer

    def run(self, program: Program, inputs: Sequence[Buffer], where: Where, *, guards: bool = False) -> list[Buffer]:
        """Run a program now. An error is raised when the value is read, as on worker processes."""
        self.check_open()
        self._drop_released()
        ready = self._programs.get(program.number)
        if ready is None:
            caches = self._programs, self._watches
            ready = self._programs[program.number] = make_ready(copy.copy(program))
            self._watches[program.number] = weakref.ref(program, partial(_forget, program.number, caches))
        run = Run(next(self._numbers), program.devices, program.communicates, where, input_runs(inputs))
        buffers = [self._buffers.make(run, self) for _ in program.outputs]
        with torch.no_grad(), default_keys(), default_dtype(program.default_dtype):
            self._execute(ready, run, [b.number for b in inputs], [b.number for b in buffers])
        settle(run)
        if guards:
            for buffer in inputs:
                add_check(buffer.run, run)
        return buffers

    def _execute(self, ready: ReadyProgram, run: Run, inputs: list[int], outputs: list[int]) -> None:
        devices = ready.program.devices
        extra = [None] * (ready.size - len(inputs))
        values: list[list[Any]] = [[self._stores[d].get(i) for i in inputs] + extra for d in devices]
        failed = {p for p, d in enumerate(devices) if any(d in r.failures for r in run.parents)}
        self._steps(ready, run, values, failed, range(len(devices)))
        for position, device in enumerate(devices):
            for number, slot in zip(outputs, ready.program.outputs, strict=True):
                if position not in failed and values[position][slot] is not None:
                    self._stores[device][number] = values[position][slot]

    def _steps(
        self, ready: ReadyProgram, run: Run, values: list[list[Any]], failed: set[int], positions: Sequence[int]
    ) -> None:
        """Run the steps of a program for the devices at these positions: for all, if they communicate."""
        for step in ready.steps:
            if step.request is not None:
                try:
                    self._collective(step.request, step, values, failed, positions)
                except Exception as error:
                    _fail(run, step, values, failed, positions, error)
                continue
            if step.flow is not None:
                together = [positions] if step.step.communicates else [[p] for p in positions]
                for some in together:
                    self._rounds(step, run, values, failed, some)
                continue
            assert step.call is not None
            for position in positions:
                if position in failed:
                    continue
                try:
                    for slot, result in zip(step.results, step.call(values[position]), strict=False):
                        if slot >= 0:
                            values[position][slot] = result
                except Exception as error:
                    _fail(run, step, values, failed, [position], error)

    def _rounds(
        self, step: ReadyStep, run: Run, values: list[list[Any]], failed: set[int], positions: Sequence[int]
    ) -> None:
        """Run a step of control flow for these devices in lockstep."""
        assert step.flow is not None
        flows = {p: step.flow(values[p]) for p in positions}

        def tried(position: int, does: Callable[..., Any], *args: Any) -> Any:
            try:
                return does(*args)
            except Exception as error:
                _fail(run, step, values, failed, [position], error)
                return None

        while True:
            following: dict[int, Any] = {}
            for p, flow in flows.items():
                outputs = tried(p, flow.next, p in failed)
                following[p] = flow.next(True) if outputs is None and p in failed else outputs
            bodies = [outputs[0] for outputs in following.values() if outputs is not None]
            if not bodies:
                break
            rows: list[list[Any]] = [[]] * len(values)
            for p, outputs in following.items():
                rows[p] = outputs[1]
            self._steps(bodies[0], run, rows, failed, positions)
            for p, flow in flows.items():
                tried(p, flow.take, rows[p], p in failed)
        for p, flow in flows.items():
            results = None if p in failed else tried(p, flow.results)
            for slot, result in zip(step.results, results or (), strict=False):
                values[p][slot] = result

    def _collective(
        self, request: Request, step: ReadyStep, values: list[list[Any]], failed: set[int], positions: Sequence[int]
    ) -> None:
        shards = {p: zeros_for(request.meta) if p in failed else values[p][step.operand] for p in positions}
        slot = step.results[0]
        if request.name == "transfer":
            for row, out in zip(
                values, _transfer(list(shards.values()), request.result, **request.params), strict=True
            ):
                row[slot] = out
            return
        does = COLLECTIVES[request.name]
        params = request.arguments
        done: set[int] = set()
        for position in positions:
            if position in done:
                continue
            group = request.positions(position)
            if does.own is not None:  # no other device takes part
                values[position][slot] = does.own(shards[position], group.index(position), len(group), **params)
                continue
            if len(group) > 1:
                for p in group:
                    self._handed[request.devices[p]].append((request.name, len(group), shards[p].nbytes))
            assert does.form is not None
            results = does.form(torch.stack([shards[p] for p in group]), **params).unbind(0)
            for p, x in zip(group, results, strict=True):
                values[p][slot] = x
            done.update(group)

    def fetch(self, buffer: Buffer, device_ids: Sequence[int]) -> dict[int, Tensor]:
        """The blocks on these devices. Raises RemoteError if they could not be computed."""
        self.wait(buffer, device_ids)
        return {d: self._stores[d][buffer.number].clone() for d in device_ids}

    def snapshot(self, host: Tensor) -> Tensor:
        """A copy for `put`."""
        return host.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)

    def gather(self, wanted: Sequence[Wanted]) -> list[Tensor]:
        """Each value as one tensor, put together from its blocks. Raises as `fetch` does."""
        return [put_together(self.fetch(w.buffer, list(w.places)), w) for w in wanted]

    def wait(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        """Raise RemoteError if the blocks on these devices could not be computed."""
        self.check_open()
        failures = ancestry(buffer.run, device_ids).failures
        if failures:
            raise remote_error(failures, self._platform)

    def is_ready(self, buffer: Buffer, device_ids: Sequence[int]) -> bool:
        """Always true: a call computes at once."""
        return True

    def describe(self, buffers: Sequence[Buffer], device: int) -> list[ShapedType | None]:
        """Shapes and dtypes of values, where they are known only after the run."""
        for buffer in buffers:
            self.wait(buffer, [device])
        found = (self._stores[device].get(b.number) for b in buffers)
        return [None if x is None else ShapedType(tuple(x.shape), x.dtype) for x in found]

    def held(self, device: int) -> int:
        """How many values a device holds."""
        self._drop_released()
        return len(self._stores[device])

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
        """None: the devices have no process of their own."""
        return None

    @property
    def is_alive(self) -> bool:
        """Whether calls can be made: not shut down."""
        return not self._closed

    def shutdown(self) -> None:
        """Drop all values."""
        self._closed = True
        self._stores = [{} for _ in self.devices]
        self._watches.clear()
        self._programs.clear()

    def _drop_released(self) -> None:
        released = self._buffers.released()
        self._buffers.drop(released)
        for devices, numbers in by_devices(released).items():
            for device, number in itertools.product(devices, numbers):
                self._stores[device].pop(number, None)

    def check_open(self) -> None:
        """Raise RuntimeStateError if it has been shut down."""
        if self._closed:
            raise RuntimeStateError(
                "the runtime that held this value has been shut down",
                rule="values live on the devices and end with them",
                try_="ts.init() starts fresh devices; make the arrays again there",
            )


def _fail(
    run: Run, step: ReadyStep, values: list[list[Any]], failed: set[int], devices: Sequence[int], error: Exception
) -> None:
    """Note that a step raised for the devices at these positions; what failed before keeps its first failure."""
    for position in set(devices) - failed:
        device = run.devices[position]
        run.failures[device] = (failure_of(device, step.describe(values[position]), error), run.where)
    failed.update(devices)


def _forget(number: int, caches: tuple[dict[int, Any], ...], program: weakref.ref[Program]) -> None:
    for by_number in caches:
        by_number.pop(number, None)


def _transfer(shards: list[Any], result: ShapedType | None, *, moves: Any) -> list[Tensor | None]:
    assert result is not None
    targets = {target for _, target, _, _ in moves}
    out = [torch.empty(result.shape, dtype=result.dtype) if p in targets else None for p in range(len(shards))]
    for source, target, cut, place in moves:
        block = out[target]
        assert block is not None
        block[place] = shards[source][cut]
    return out
