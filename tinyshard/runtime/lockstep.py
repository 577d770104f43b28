"""One call of a program, run for all its devices in this process, step by step in lockstep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.effects import EFFECT, Effects
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Request
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.failure import failure_of
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, operands_of
from tinyshard.runtime.worker.one_by_one import OneByOne, Rows
from tinyshard.runtime.worker.recording import Recording
from tinyshard.runtime.worker.values import Memory


class Lockstep(OneByOne):
    """One call.

    Args:
        run: the call.
        ready: its program.
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
        handed: Sequence[deque[tuple[str, int, int]]],
        memories: Sequence[Memory],
        recordings: Sequence[Recording],
    ) -> None:
        super().__init__({p: memories[device] for p, device in enumerate(run.devices)} if memories else {})
        self.failed = {p for p, d in enumerate(run.devices) if any(d in r.failures for r in run.parents)}
        if recordings:
            self.recordings = {p: recordings[device] for p, device in enumerate(run.devices)}
        for recording in self.recordings.values():
            recording.begin(run.number)
        self.effects = Effects(ready.program.effects, run.devices)
        self._run = run
        self._handed = handed

    def _computed(self, step: ReadyStep, row: list[Any], position: int) -> Sequence[Any]:
        if step.step.op != EFFECT:
            return super()._computed(step, row, position)
        operands, site = step.step.args
        self.effects.take(self._run.devices[position], site, [row[x.number].clone() for x in operands])
        return ()

    def _exchange(
        self, step: ReadyStep, rows: Rows, positions: Sequence[int], number: int
    ) -> Iterable[tuple[int, Sequence[Any]]]:
        assert step.request is not None
        try:
            shards = {p: operands_of(step, rows[p], p in self.failed) for p in positions}
            return self._exchanged(step.request, shards).items()
        except Exception as error:
            for p in positions:
                self._fail(step, rows, p, error)
            return ()

    def _exchanged(self, request: Request, shards: dict[int, list[Any]]) -> dict[int, Sequence[Any]]:
        """By position, the results of a collective or a transfer; `shards` are the operands."""
        if request.name == "transfer":
            moved = _transfer([x for (x,) in shards.values()], request.result, **request.params)
            return dict(zip(shards, ([x] for x in moved), strict=True))
        does, params = COLLECTIVES[request.name], request.params
        results: dict[int, Sequence[Any]] = {}
        for position in shards:
            if position in results:
                continue
            group = request.positions(position)
            if does.own is not None:  # no other device is involved
                results[position] = [does.own(x, group.index(position), len(group), **params) for x in shards[position]]
                continue
            operands = [shards[p] for p in group]
            if len(group) > 1:
                note = request.name, len(group), sum(x.nbytes for x in operands[0])
                for p in group:
                    self._handed[request.devices[p]].append(note)
            assert does.form is not None
            wholes = [does.form(torch.stack(parts), **params).unbind(0) for parts in zip(*operands, strict=True)]
            results.update(zip(group, zip(*wholes, strict=True), strict=True))
        return results

    def _fail(self, step: ReadyStep, rows: Rows, position: int, error: Exception) -> None:
        if position not in self.failed:
            run, device = self._run, self._run.devices[position]
            run.failures[device] = (failure_of(device, step.describe(rows[position]), error, step.line), run.where)
            self.failed.add(position)


def _transfer(shards: list[Any], result: ShapedType | None, *, moves: Any) -> list[Tensor | None]:
    assert result is not None
    targets = {target for _, target, _, _ in moves}
    out = [torch.empty(result.shape, dtype=result.dtype) if p in targets else None for p in range(len(shards))]
    for source, target, cut, place in moves:
        block = out[target]
        assert block is not None
        block[place] = shards[source][cut]
    return out
