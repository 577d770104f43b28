"""The steps of a program for all devices in this process: step by step, in lockstep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import MOST_HANDED, Request
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.failure import failure_of
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, zeros_for
from tinyshard.runtime.worker.memory import Memory


class Lockstep:
    """Runs the steps of programs.

    Args:
        count: number of devices.
        memories: by device, what counts its memory; none where that is not limited.

    Attributes:
        handed: by device, the collectives of late: (name, group size, operand bytes).
    """

    def __init__(self, count: int, memories: Sequence[Memory]) -> None:
        self.handed: list[deque[tuple[str, int, int]]] = [deque(maxlen=MOST_HANDED) for _ in range(count)]
        self._memories = memories

    def _memory_of(self, run: Run, positions: Sequence[int]) -> list[tuple[int, Memory]]:
        """Of these positions, what counts the memory of their devices."""
        return [(p, self._memories[run.devices[p]]) for p in positions] if self._memories else []

    def run(
        self, ready: ReadyProgram, run: Run, values: list[list[Any]], failed: set[int], positions: Sequence[int]
    ) -> None:
        """Run the steps of a program for the devices at these positions: for all, if they communicate."""
        for step in ready.steps:
            memories = self._memory_of(run, positions)
            for position, memory in memories:
                if position not in failed:
                    try:
                        memory.check(step.makes_nbytes)
                    except MemoryError as error:
                        _fail(run, step, values, failed, [position], error)
            self._step(step, run, values, failed, positions)
            for position, memory in memories:
                row = values[position]
                if step.flow is None and position not in failed:
                    memory.hold(row[slot] for slot in step.results if slot >= 0)
                try:  # of results whose size was not known before
                    memory.check()
                except MemoryError as error:
                    _fail(run, step, values, failed, [position], error)
                memory.let_go(row[slot] for slot in step.dead)
            for position in positions:
                for slot in step.dead:
                    values[position][slot] = None

    def _step(
        self, step: ReadyStep, run: Run, values: list[list[Any]], failed: set[int], positions: Sequence[int]
    ) -> None:
        if step.request is not None:
            try:
                self._collective(step.request, step, values, failed, positions)
            except Exception as error:
                _fail(run, step, values, failed, positions, error)
            return
        if step.flow is not None:
            together = [positions] if step.step.communicates else [[p] for p in positions]
            for some in together:
                self._rounds(step, run, values, failed, some)
            return
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

        memories = self._memory_of(run, positions)
        before: dict[int, list[Any]] = {}  # the values of the last round, of which the carry is in use
        stacks = {p: () if p in failed else tried(p, flow.begin) or () for p, flow in flows.items()}
        for p, memory in memories:
            memory.hold(stacks[p])
        while True:
            following: dict[int, Any] = {}
            for p, flow in flows.items():
                made = tried(p, flow.next, p in failed)
                following[p] = flow.next(True) if made is None and p in failed else made
            bodies = [made[0] for made in following.values() if made is not None]
            if not bodies:
                break
            rows: list[list[Any]] = [[]] * len(values)
            for p, made in following.items():
                rows[p] = made[1]
            for p, memory in memories:
                memory.hold(rows[p])
                memory.let_go(before.get(p, ()))
                before[p] = rows[p]
            self.run(bodies[0], run, rows, failed, positions)
            for p, flow in flows.items():
                tried(p, flow.take, rows[p], p in failed)
        for p, flow in flows.items():
            results = None if p in failed else tried(p, flow.results)
            for slot, result in zip(step.results, results or (), strict=False):
                values[p][slot] = result
        for p, memory in memories:
            memory.hold(() if p in failed else [values[p][slot] for slot in step.results])
            memory.let_go(before.get(p, ()))
            memory.let_go(stacks[p])

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
                    self.handed[request.devices[p]].append((request.name, len(group), shards[p].nbytes))
            assert does.form is not None
            made = does.form(torch.stack([shards[p] for p in group]), **params).unbind(0)
            for p, x in zip(group, made, strict=True):
                values[p][slot] = x
            done.update(group)


def _fail(
    run: Run, step: ReadyStep, values: list[list[Any]], failed: set[int], at: Sequence[int], error: Exception
) -> None:
    """Note that a step raised for the devices at these positions; what failed before keeps its first failure."""
    for position in set(at) - failed:
        device = run.devices[position]
        run.failures[device] = (failure_of(device, step.describe(values[position]), error), run.where)
    failed.update(at)


def _transfer(shards: list[Any], made: ShapedType | None, *, moves: Any) -> list[Tensor | None]:
    assert made is not None
    targets = {target for _, target, _, _ in moves}
    out = [torch.empty(made.shape, dtype=made.dtype) if p in targets else None for p in range(len(shards))]
    for source, target, cut, place in moves:
        block = out[target]
        assert block is not None
        block[place] = shards[source][cut]
    return out
