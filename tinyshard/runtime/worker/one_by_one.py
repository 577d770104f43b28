"""Runs the steps of a program one by one: for one device, or in lockstep for several devices of one process.

Around each step it does what a program's function leaves out: it counts memory, records the step, and checks the
results for NaN. A device that has failed computes nothing more, and goes on with the collectives in which other devices
wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep
from tinyshard.runtime.worker.flow import Flow
from tinyshard.runtime.worker.recording import NO_EXCHANGE, Recording
from tinyshard.runtime.worker.values import Memory

Rows = Sequence[list[Any]]  # by position of a device, the values of a program
# ops whose results are not written yet
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")


class OneByOne:
    """Runs steps for the devices of a call. A position numbers a device among them.

    Args:
        memories: the memory of each device, if it is limited.

    Attributes:
        failed: the positions of devices that have failed.
        exchanges: the number of exchanges with other devices so far.
        recordings: the recording of each device, while a trace is on.
    """

    def __init__(self, memories: Mapping[int, Memory]) -> None:
        self.failed: set[int] = set()
        self.exchanges = 0
        self.recordings: Mapping[int, Recording] = {}
        self._memories = memories

    # ---- what differs between one device and several ------------------------------------------------------------

    def _fail(self, step: ReadyStep, rows: Rows, position: int, error: Exception) -> None:
        """Note that a device has failed, unless it had failed before: a step raised this error."""
        raise NotImplementedError

    def _exchange(
        self, step: ReadyStep, rows: Rows, positions: Sequence[int], number: int
    ) -> Iterable[tuple[int, Sequence[Any]]]:
        """Run a collective, or a transfer, of these devices. Its errors are failures.

        Args:
            number: the number of exchanges in the call before it.

        Returns:
            Positions, each with the results of its device; failed devices take part with zeros.
        """
        raise NotImplementedError

    def _computed(self, step: ReadyStep, row: list[Any], position: int) -> Sequence[Any]:
        """The results of an op."""
        assert step.call is not None
        return step.call(row)

    def run(self, ready: ReadyProgram, rows: Rows, positions: Sequence[int]) -> None:
        """Run a program of the call, or of a step of control flow in it."""
        self._run_steps(ready, rows, positions)

    def _before_step(self, step: ReadyStep, rows: Rows) -> None:
        """Called before each step."""

    # ---- steps --------------------------------------------------------------------------------------------------

    def _run_steps(self, ready: ReadyProgram, rows: Rows, positions: Sequence[int], first: int = 0) -> None:
        """Run the steps of a program, from the one with this number on; all devices do if they communicate."""
        memories = [(p, self._memories[p]) for p in positions if p in self._memories]
        for number in range(first, len(ready.steps)):
            step = ready.steps[number]
            self._before_step(step, rows)
            for p, memory in memories:
                if p not in self.failed:
                    self._tried(step, rows, p, memory.check, step.makes_nbytes)
            if step.flow is not None:
                for together in [positions] if step.step.communicates else [[p] for p in positions]:
                    self._run_rounds(step, rows, together)
            elif step.request is not None:
                self._run_exchange(ready, number, rows, positions)
            else:
                for p in positions:
                    if p not in self.failed:
                        self._run_op(ready, number, rows, p)
            for p, memory in memories:
                if step.flow is None and p not in self.failed:  # one that has failed keeps nothing
                    memory.hold(rows[p][slot] for slot in step.results if slot >= 0)
                self._tried(step, rows, p, memory.check)  # of results whose size was not known before
                memory.let_go(rows[p][slot] for slot in step.dead)
            for p in positions:
                for slot in step.dead:
                    rows[p][slot] = None

    def _run_op(self, ready: ReadyProgram, number: int, rows: Rows, position: int) -> None:
        step, start_ns = ready.steps[number], time.monotonic_ns() if self.recordings else 0
        try:
            _store(ready, step, rows[position], self._computed(step, rows[position], position))
        except Exception as error:
            self._fail(step, rows, position, error)
        if self.recordings:
            self.recordings[position].note(ready.program.number, number, NO_EXCHANGE, start_ns)

    def _run_exchange(self, ready: ReadyProgram, number: int, rows: Rows, positions: Sequence[int]) -> None:
        step, start_ns, exchange = ready.steps[number], time.monotonic_ns(), self.exchanges
        communicates = step.step.communicates
        # a step of a single device, as to read its position, may run more often than on other devices
        self.exchanges += communicates
        for p, results in self._exchange(step, rows, positions, exchange):
            self._tried(step, rows, p, _store, ready, step, rows[p], results)
        for p in positions if self.recordings else ():
            self.recordings[p].note(ready.program.number, number, exchange if communicates else NO_EXCHANGE, start_ns)

    def _run_rounds(self, step: ReadyStep, rows: Rows, positions: Sequence[int]) -> None:
        """Run a step of control flow, and store its results in the program."""
        assert step.flow is not None
        failed, flows = self.failed, {p: step.flow(rows[p]) for p in positions}
        memories = [(p, self._memories[p]) for p in positions if p in self._memories]
        before: dict[int, Any] = {}  # the values of the last round, whose carry is in use
        stacks = {p: () if p in failed else self._tried(step, rows, p, flow.begin) or () for p, flow in flows.items()}
        for p, memory in memories:
            memory.hold(stacks[p])
        inner: list[list[Any]] = [[] for _ in rows]  # the values of a round's body
        while (body := self._next_round(step, rows, flows, inner)) is not None:
            for p, memory in memories:
                memory.hold(inner[p])
                memory.let_go(before.get(p, ()))
                before[p] = inner[p]
            self.run(body, inner, positions)
            for p, flow in flows.items():
                self._tried(step, rows, p, flow.take, [inner[p][slot] for slot in body.program.outputs], p in failed)
        for p, flow in flows.items():
            if p not in failed:
                for slot, result in zip(step.results, flow.results(), strict=True):
                    rows[p][slot] = result
        for p, memory in memories:
            memory.hold(() if p in failed else [rows[p][slot] for slot in step.results])
            memory.let_go(before.get(p, ()))
            memory.let_go(stacks[p])

    def _next_round(
        self, step: ReadyStep, rows: Rows, flows: Mapping[int, Flow], inner: list[list[Any]]
    ) -> ReadyProgram | None:
        """The body of the next round, whose inputs become the first of its values in `inner`; None at the end."""
        body = None
        for p, flow in flows.items():
            try:
                following = flow.next(p in self.failed)
            except Exception as error:
                self._fail(step, rows, p, error)
                following = flow.next(True)
            if following is not None:
                body = step.bodies[following[0]]
                inner[p] = [*following[1], *[None] * (body.size - len(following[1]))]
        return body

    def _tried(self, step: ReadyStep, rows: Rows, position: int, does: Callable[..., Any], *args: Any) -> Any:
        """The result of a call; None if it raises: then the device fails."""
        try:
            return does(*args)
        except Exception as error:
            self._fail(step, rows, position, error)
            return None


def _store(ready: ReadyProgram, step: ReadyStep, row: list[Any], results: Sequence[Any]) -> None:
    """Put the results of a step into their slots. Raises FloatingPointError for a NaN, if the program checks that."""
    if ready.program.checks_nans and not step.step.op.startswith(_UNWRITTEN):
        for x in results:
            is_float = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
            if is_float and (nans := int(x.isnan().sum())):
                raise FloatingPointError(f"invalid value (nan) encountered in {step.step.op}: {nans} of {x.numel()}")
    for slot, result in zip(step.results, results, strict=False):
        if slot >= 0:
            row[slot] = result
