"""One call of a program, run for all its devices in this process, step by step in lockstep."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.effects import EFFECT, Effects
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Request
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.failure import failure_of
from tinyshard.runtime.worker import nans
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, operands_of
from tinyshard.runtime.worker.memory import Memory
from tinyshard.runtime.worker.recording import NO_EXCHANGE, Recording

Rows = list[list[Any]]  # by position of a device, the values of a program
_UNRECORDED = contextlib.nullcontext()


class Lockstep:
    """One call.

    Args:
        run: the call.
        ready: its program.
        failed: the positions of the devices that have failed before.
        handed: by device, its last collectives: (name, group size, operand bytes).
        memories: by device, its memory counter; empty without a limit.
        recordings: while a trace is on, one for each device; else none.

    Attributes:
        effects: the blocks that the devices have sent for the program's effects.
    """

    def __init__(
        self,
        run: Run,
        ready: ReadyProgram,
        failed: set[int],
        handed: Sequence[deque[tuple[str, int, int]]],
        memories: Sequence[Memory],
        recordings: Sequence[Recording],
    ) -> None:
        self.effects = Effects(ready.program.effects, run.devices)
        self._run = run
        self._failed = failed
        self._handed = handed
        self._memories = memories
        self._recordings = recordings
        self._exchanges = 0  # so far

    def _memory_of(self, positions: Sequence[int]) -> list[tuple[int, Memory]]:
        """The memory counters of the devices at these positions."""
        return [(p, self._memories[self._run.devices[p]]) for p in positions] if self._memories else []

    def run(self, ready: ReadyProgram, rows: Rows) -> None:
        """Run the call's program."""
        for device in self._run.devices if self._recordings else ():
            self._recordings[device].begin(self._run.number)
        self._steps(ready, rows, range(len(rows)))

    def _steps(self, ready: ReadyProgram, rows: Rows, positions: Sequence[int]) -> None:
        """Run the steps of a program for the devices at these positions: for all, if they communicate."""
        memories = self._memory_of(positions)
        for number, step in enumerate(ready.steps):
            for position, memory in memories:
                if position not in self._failed:
                    try:
                        memory.check(step.makes_nbytes)
                    except MemoryError as error:
                        self._fail(step, rows, [position], error)
            self._step(ready, number, rows, positions)
            for position, memory in memories:
                row = rows[position]
                if step.flow is None and position not in self._failed:
                    memory.hold(row[slot] for slot in step.results if slot >= 0)
                try:  # of results whose size was not known before
                    memory.check()
                except MemoryError as error:
                    self._fail(step, rows, [position], error)
                memory.let_go(row[slot] for slot in step.dead)
            for position in positions:
                for slot in step.dead:
                    rows[position][slot] = None

    def _step(self, ready: ReadyProgram, number: int, rows: Rows, positions: Sequence[int]) -> None:
        step = ready.steps[number]
        if step.flow is not None:
            together = [positions] if step.step.communicates else [[p] for p in positions]
            for some in together:
                self._rounds(step, rows, some)
        elif step.request is not None:
            with self._recorded(ready, number, positions):
                self._exchange(ready, step, rows, positions)
        else:
            for position in positions:
                if position not in self._failed:
                    with self._recorded(ready, number, [position]):
                        self._op(step, rows, position)

    def _recorded(self, ready: ReadyProgram, number: int, positions: Sequence[int]) -> Any:
        """A block that is a step of a program on the devices at these positions."""
        if not self._recordings:
            return _UNRECORDED
        exchange = NO_EXCHANGE
        if ready.steps[number].step.communicates:
            exchange, self._exchanges = self._exchanges, self._exchanges + 1
        recorded = contextlib.ExitStack()
        for position in positions:
            recording = self._recordings[self._run.devices[position]]
            recorded.enter_context(recording.step(ready.program.number, number, exchange))
        return recorded

    def _op(self, step: ReadyStep, rows: Rows, position: int) -> None:
        assert step.call is not None
        try:
            if step.step.op == EFFECT:
                operands, site = step.step.args
                blocks = [rows[position][x.number].clone() for x in operands]
                self.effects.take(self._run.devices[position], site, blocks)
                return
            for slot, result in zip(step.results, step.call(rows[position]), strict=False):
                if slot >= 0:
                    rows[position][slot] = result
        except Exception as error:
            self._fail(step, rows, [position], error)

    def _exchange(self, ready: ReadyProgram, step: ReadyStep, rows: Rows, positions: Sequence[int]) -> None:
        assert step.request is not None
        try:
            self._collective(step.request, step, rows, positions)
            if ready.program.checks_nans:
                nans.check(step.step.op, [rows[p][slot] for slot in step.results for p in positions])
        except Exception as error:
            self._fail(step, rows, positions, error)

    def _rounds(self, step: ReadyStep, rows: Rows, positions: Sequence[int]) -> None:
        """Run a step of control flow for these devices in lockstep."""
        assert step.flow is not None
        failed, flows = self._failed, {p: step.flow(rows[p]) for p in positions}

        def tried(position: int, does: Callable[..., Any], *args: Any) -> Any:
            try:
                return does(*args)
            except Exception as error:
                self._fail(step, rows, [position], error)
                return None

        memories = self._memory_of(positions)
        before: dict[int, list[Any]] = {}  # the values of the last round, whose carry is in use
        stacks = {p: () if p in failed else tried(p, flow.begin) or () for p, flow in flows.items()}
        for p, memory in memories:
            memory.hold(stacks[p])
        while True:
            following: dict[int, Any] = {}
            for p, flow in flows.items():
                outputs = tried(p, flow.next, p in failed)
                following[p] = flow.next(True) if outputs is None and p in failed else outputs
            bodies = [outputs[0] for outputs in following.values() if outputs is not None]
            if not bodies:
                break
            within: Rows = [[]] * len(rows)
            for p, outputs in following.items():
                within[p] = outputs[1]
            for p, memory in memories:
                memory.hold(within[p])
                memory.let_go(before.get(p, ()))
                before[p] = within[p]
            self._steps(bodies[0], within, positions)
            for p, flow in flows.items():
                tried(p, flow.take, within[p], p in failed)
        for p, flow in flows.items():
            results = None if p in failed else tried(p, flow.results)
            for slot, result in zip(step.results, results or (), strict=False):
                rows[p][slot] = result
        for p, memory in memories:
            memory.hold(() if p in failed else [rows[p][slot] for slot in step.results])
            memory.let_go(before.get(p, ()))
            memory.let_go(stacks[p])

    def _collective(self, request: Request, step: ReadyStep, rows: Rows, positions: Sequence[int]) -> None:
        shards = {p: operands_of(step, rows[p], p in self._failed) for p in positions}
        slot = step.results[0]
        if request.name == "transfer":
            for row, out in zip(rows, _transfer(list(shards.values()), request.result, **request.params), strict=True):
                row[slot] = out
            return
        does = COLLECTIVES[request.name]
        params = request.arguments
        done: set[int] = set()
        for position in positions:
            if position in done:
                continue
            group = request.positions(position)
            if does.own is not None:  # no other device is involved
                rows[position][slot] = does.own(shards[position], group.index(position), len(group), **params)
                continue
            operands = [shards[p] if request.several else [shards[p]] for p in group]
            if len(group) > 1:
                for p in group:
                    note = request.name, len(group), sum(x.nbytes for x in operands[0])
                    self._handed[request.devices[p]].append(note)
            assert does.form is not None
            for target, *parts in zip(step.results, *operands, strict=True):
                for p, x in zip(group, does.form(torch.stack(parts), **params).unbind(0), strict=True):
                    rows[p][target] = x
            done.update(group)

    def _fail(self, step: ReadyStep, rows: Rows, at: Sequence[int], error: Exception) -> None:
        """Note that a step raised for the devices at these positions; a device that failed before keeps its failure."""
        run = self._run
        for position in set(at) - self._failed:
            device = run.devices[position]
            run.failures[device] = (failure_of(device, step.describe(rows[position]), error, step.line), run.where)
        self._failed.update(at)


def _transfer(shards: list[Any], result: ShapedType | None, *, moves: Any) -> list[Tensor | None]:
    assert result is not None
    targets = {target for _, target, _, _ in moves}
    out = [torch.empty(result.shape, dtype=result.dtype) if p in targets else None for p in range(len(shards))]
    for source, target, cut, place in moves:
        block = out[target]
        assert block is not None
        block[place] = shards[source][cut]
    return out
