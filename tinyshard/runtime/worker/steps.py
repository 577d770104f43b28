"""Runs the steps of a program on one device: all of them as one function, or one after the other.

    ready.function(operands)     the fast path: code that is generated from the program (`device_code`)
    _run_steps(...)              the slow path (`one_by_one`): after the step that has raised; or all of them, in a
                                 program's first call, on a GPU, if memory is limited, results are checked or steps are
                                 recorded, and in a call that is cancelled or has a failed operand

A failed device continues in the slow path: it computes nothing more, and gives zeros to collectives, in which other
devices wait for it. Control flow among the steps runs the programs of its bodies in the same two ways.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.runtime.collectives.base import PeerLostError
from tinyshard.runtime.failure import CODE_FILE, NO_MEMORY, Failure, failure_of, is_out_of_memory, leave
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.device_code import code_of
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, operands_of
from tinyshard.runtime.worker.one_by_one import OneByOne, Rows
from tinyshard.runtime.worker.values import Memory


class _Stop(Exception):
    """In a program's function: this step, which has not begun, is one for the slow path."""


class _FailedWithin(Exception):
    """In a program's function: a program that this step runs has failed, which has been told already."""


class Steps(OneByOne):
    """Runs the steps of programs, whose values are the only row of `OneByOne`.

    Args:
        device: the device's id.
        call_control: which calls are cancelled.
        fail: notes the first failure of a call.
        place: the GPU on which values are made; None for the CPU.
        has_arena: whether the devices share memory.
        memory: counts the device's memory; None without a limit.

    Attributes:
        number: the number of the present call.
        failure: its failure, if it has failed.
    """

    def __init__(
        self,
        device: int,
        call_control: CallControl,
        fail: Callable[[int, Failure], object],
        place: torch.device | None,
        has_arena: bool,
        memory: Memory | None = None,
    ) -> None:
        super().__init__({} if memory is None else {0: memory})
        self._device = device
        self._call_control = call_control
        self._note_failed = fail
        self._place = place
        self._has_arena = has_arena
        self.number = 0
        self.failure: Failure | None = None

    def begin(self, number: int, failure: Failure | None) -> None:
        """Begin a call, with the failure of an operand, if there is one."""
        self.number, self.exchanges, self.failure = number, 0, failure
        self.failed = {0} if failure else set()

    # ---- the fast path ------------------------------------------------------------------------------------------

    def joined(self, ready: ReadyProgram) -> ReadyProgram:
        """A program with its function, except where something must be done between two steps."""
        if self._place is not None or self._memories or ready.program.checks_nans:
            return ready
        steps = (replace(step, bodies=tuple(map(self.joined, step.bodies))) for step in ready.steps)
        ready = replace(ready, steps=tuple(steps))
        code = code_of(ready.program)
        functions = {name: self._function(ready.steps[k]) for name, k in code.functions.items()}
        function = code.compiled(f"{CODE_FILE} {ready.program.number}>", functions, self._check)
        return replace(ready, function=function, lines=code.steps)

    def _function(self, step: ReadyStep) -> Callable[..., Any]:
        """What a step calls in a program's function."""
        if step.perform is not None:
            return self._exchange_function(step)
        if step.function is not None:
            return step.function
        numbers, is_one = step.step.operands, len(step.results) == 1

        def call(*operands: Any) -> Any:
            values: Any = dict(zip(numbers, operands, strict=True))
            if step.flow is None:
                assert step.call is not None
                results = step.call(values)
            else:
                self._run_rounds(step, [values], [0])
                if self.failed:
                    raise _FailedWithin
                results = [values[slot] for slot in step.results]
            return results[0] if is_one else results

        return call

    def _exchange_function(self, step: ReadyStep) -> Callable[[Any], Any]:
        control, request, perform, communicates = self._call_control, step.request, step.perform, step.step.communicates
        assert perform is not None and request is not None
        is_one = len(step.results) == 1

        def exchange(*operands: Any) -> Any:
            if control.lost is not None or self.number <= control.cancelled_upto:
                raise _Stop
            moment = self.number, self.exchanges
            # a step of a single device, as to read its position, may run more often than on other devices
            self.exchanges += communicates
            control.current = moment, request
            results = perform(operands, moment)
            control.current = None
            return results[0] if is_one else results

        return exchange

    def _check(self) -> None:
        if self.number <= self._call_control.cancelled_upto:
            raise _Stop

    def go_on(self, ready: ReadyProgram, values: list[Any], error: Exception) -> None:
        """After a program's function has raised: run the rest in the slow path.

        Args:
            values: room for all values of the program.
        """
        assert ready.function is not None
        self._call_control.current = None
        raised = error.__traceback__
        while raised is not None and raised.tb_frame.f_code is not ready.function.__code__:
            raised = raised.tb_next
        assert raised is not None, "the function is in the traceback of its error"
        for name, value in raised.tb_frame.f_locals.items():
            if name.startswith("v"):
                values[int(name[1:])] = value
        after = max(0, ready.lines[raised.tb_lineno])
        if not isinstance(error, _Stop):
            step, after = ready.steps[after], after + 1
            if step.request is not None:
                self._exchange_failed(step, values, error)
            elif not isinstance(error, _FailedWithin):
                self._fail(step, [values], 0, error)
            for slot in step.dead:
                values[slot] = None
        traceback.clear_frames(error.__traceback__)  # they hold values
        self._run_steps(ready, [values], [0], after)

    # ---- the slow path ------------------------------------------------------------------------------------------

    def run(self, ready: ReadyProgram, rows: Rows, positions: Sequence[int]) -> None:
        """Run a program of the call; `failure` is there if the call has failed by then.

        After a step raises, or the call is cancelled, the collectives get zeros: other devices wait in them.

        Args:
            rows: the values of the program, of one device; the operands are there.
        """
        (values,) = rows
        if ready.function is None or self.failed or self.recordings or self.number <= self._call_control.cancelled_upto:
            self._run_steps(ready, rows, positions)
            return
        operands = values[: ready.program.num_inputs]
        values[: len(operands)] = [None] * len(operands)  # the function drops each after its last use
        try:
            results = ready.function(operands)
        except Exception as error:
            self.go_on(ready, values, error)
        else:
            for slot, result in zip(ready.program.outputs, results, strict=True):
                values[slot] = result

    def _before_step(self, step: ReadyStep, rows: Rows) -> None:
        if self.number <= self._call_control.cancelled_upto and not self.failed:
            self.note(Failure(self._device, interrupt=self._call_control.cancelled_by))

    def _exchange(
        self, step: ReadyStep, rows: Rows, positions: Sequence[int], number: int
    ) -> Iterable[tuple[int, Sequence[Any]]]:
        assert step.perform is not None and step.request is not None
        moment = self.number, number
        self._call_control.current = moment, step.request
        try:
            if self._call_control.lost is not None:
                raise PeerLostError("the collective is not started: a device is lost")
            return [(0, step.perform(operands_of(step, rows[0], bool(self.failed), self._place), moment))]
        except Exception as error:
            self._exchange_failed(step, rows[0], error)
            return ()
        finally:
            self._call_control.current = None

    def _exchange_failed(self, step: ReadyStep, values: list[Any], error: Exception) -> None:
        """Note that a device has failed in an exchange, perhaps since another device is lost."""
        failure = failure_of(self._device, step.describe(values), error, step.line)
        # with shared memory it still arrives at the barrier, and reports there that it has no memory
        if is_out_of_memory(failure) and not self._has_arena:
            leave(NO_MEMORY)
        if not self.failed:
            self.note(self._call_control.why_broken(error) or failure)

    def _fail(self, step: ReadyStep, rows: Rows, position: int, error: Exception) -> None:
        if not self.failed:
            self.note(failure_of(self._device, step.describe(rows[0]), error, step.line))

    def note(self, failure: Failure) -> None:
        """Note the failure of the call."""
        self.failure = failure
        self.failed.add(0)
        self._note_failed(self.number, failure)
