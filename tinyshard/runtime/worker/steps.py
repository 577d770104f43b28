"""Runs the steps of a program on one device: all of them as one function, or one after the other.

    ready.function(operands)     the fast path: code that is generated from the program (`device_code`)
    _one_by_one(...)             the slow path: from the step that has raised, or from the first one if memory is
                                 limited, results are checked or steps are recorded

A failed device continues in the slow path: it computes nothing more, and gives zeros to collectives, in which other
devices wait for it. Control flow among the steps runs the programs of its bodies in the same two ways.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.core.program import values_in
from tinyshard.runtime.collectives.base import PeerLostError
from tinyshard.runtime.failure import CODE_FILE, NO_MEMORY, Failure, failure_of, is_out_of_memory, leave
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.device_code import code_of
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, operands_of
from tinyshard.runtime.worker.flow import Flow
from tinyshard.runtime.worker.memory import Memory


class _Stop(Exception):
    """In a program's function: this step, which has not begun, is one for the slow path."""


class _FailedWithin(Exception):
    """In a program's function: a program that this step runs has failed, which has been told already."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class Steps:
    """Runs the steps of programs.

    Args:
        device: the device's id.
        call_control: which calls are cancelled.
        fail: notes the first failure of a call, and returns it.
        place: the GPU on which values are made; None for the CPU.
        has_arena: whether the devices share memory.
        memory: counts the device's memory; None without a limit.

    Attributes:
        number: the number of the present call.
        exchanges: the number of exchanges with other devices that it has begun.
    """

    def __init__(
        self,
        device: int,
        call_control: CallControl,
        fail: Callable[[int, Failure], Failure],
        place: torch.device | None,
        *,
        has_arena: bool,
        memory: Memory | None = None,
    ) -> None:
        self._device = device
        self._call_control = call_control
        self._fail = fail
        self._place = place
        self._has_arena = has_arena
        self._memory = memory
        self.number = 0
        self.exchanges = 0

    # ---- the fast path ------------------------------------------------------------------------------------------

    def joined(self, ready: ReadyProgram) -> ReadyProgram:
        """A program with its function, except where something must be done between two steps."""
        if self._place is not None or self._memory is not None or ready.program.checks_nans:
            return ready
        ready = replace(ready, steps=tuple(map(self._with_functions, ready.steps)))
        code = code_of(ready.program)
        functions = {name: self._function(ready.steps[k]) for name, k in code.functions.items()}
        function = code.compiled(f"{CODE_FILE} {ready.program.number}>", functions, self._check)
        return replace(ready, function=function, lines=code.steps)

    def _with_functions(self, step: ReadyStep) -> ReadyStep:
        """A step of control flow whose programs have their functions; any other step as it is."""
        if step.flow is None:
            return step
        flow: Callable[..., Flow] = step.flow
        bodies = tuple(map(self.joined, step.bodies))
        return replace(step, flow=functools.partial(flow, bodies=bodies), bodies=bodies)

    def _function(self, step: ReadyStep) -> Callable[..., Any]:
        """What a step calls in a program's function."""
        if step.perform is not None:
            return self._exchange(step)
        if step.function is not None:
            return step.function
        numbers, is_one = [v.number for v in values_in((step.step.args, step.step.kwargs))], len(step.results) == 1

        def call(*operands: Any) -> Any:
            values: Any = dict(zip(numbers, operands, strict=True))
            if step.flow is None:
                assert step.call is not None
                results = step.call(values)
            elif failed := self._rounds(self.number, step, values, None):
                raise _FailedWithin(failed)
            else:
                results = [values[slot] for slot in step.results]
            return results[0] if is_one else results

        return call

    def _exchange(self, step: ReadyStep) -> Callable[[Any], Any]:
        control, request, perform, communicates = self._call_control, step.request, step.perform, step.step.communicates
        assert perform is not None and request is not None
        are_several = bool(request.several)

        def exchange(*operands: Any) -> Any:
            if control.lost is not None or self.number <= control.cancelled_upto:
                raise _Stop
            moment = self.number, self.exchanges
            # a step of a single device, as to read its position, may run more often than on other devices
            self.exchanges += communicates
            control.current = moment, request
            result = perform(operands if are_several else operands[0], moment)
            control.current = None
            return result

        return exchange

    def _check(self) -> None:
        if self.number <= self._call_control.cancelled_upto:
            raise _Stop

    def go_on(self, number: int, ready: ReadyProgram, values: list[Any], error: Exception) -> Failure | None:
        """After a program's function has raised: run the rest in the slow path; returns as `run`.

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
        failed, after = None, max(0, ready.lines[raised.tb_lineno])
        if not isinstance(error, _Stop):
            step, after = ready.steps[after], after + 1
            failed = (
                error.failure if isinstance(error, _FailedWithin) else self._raised(number, step, values, error, None)
            )
            for slot in step.dead:
                values[slot] = None
        traceback.clear_frames(error.__traceback__)  # they hold values
        return self._one_by_one(number, ready, values, failed, after)

    # ---- the slow path ------------------------------------------------------------------------------------------

    def run(self, number: int, ready: ReadyProgram, values: list[Any], failed: Failure | None) -> Failure | None:
        """Run a call's program; returns the failure of the call, if it has failed by then.

        After a step raises, or the call is cancelled, the collectives get zeros: other devices wait in them.

        Args:
            values: those of the program, of which the operands are there.
        """
        if ready.function is None or failed or number <= self._call_control.cancelled_upto:
            return self._one_by_one(number, ready, values, failed)
        operands = values[: ready.program.num_inputs]
        values[: len(operands)] = [None] * len(operands)  # the function drops each after its last use
        try:
            results = ready.function(operands)
        except Exception as error:
            return self.go_on(number, ready, values, error)
        for slot, result in zip(ready.program.outputs, results, strict=True):
            values[slot] = result
        return None

    def _one_by_one(
        self, number: int, ready: ReadyProgram, values: list[Any], failed: Failure | None, first: int = 0
    ) -> Failure | None:
        call_control, memory = self._call_control, self._memory
        for step in ready.steps[first:]:
            if memory is not None and not failed:
                failed = self._checked(number, step, values, memory)
            if number <= call_control.cancelled_upto and not failed:
                failed = self._fail(number, call_control.cancelled(self._device))
            try:
                if step.perform is not None and step.request is not None:
                    moment = number, self.exchanges
                    # a step of a single device, as to read its position, may run more often than on other devices
                    self.exchanges += step.step.communicates
                    call_control.current = moment, step.request
                    if call_control.lost is not None:
                        raise PeerLostError("the collective is not started: a device is lost")
                    result = step.perform(operands_of(step, values, failed, self._place), moment)
                    for slot, x in zip(step.results, result if step.request.several else (result,), strict=True):
                        values[slot] = x
                elif step.flow is not None:
                    failed = self._rounds(number, step, values, failed)
                elif not failed:
                    assert step.call is not None
                    for slot, result in zip(step.results, step.call(values), strict=False):
                        if slot >= 0:
                            values[slot] = result
            except Exception as error:
                failed = self._raised(number, step, values, error, failed)
            call_control.current = None
            if memory is not None:
                failed = self._counted(number, step, values, memory, failed)
            for slot in step.dead:
                values[slot] = None
        return failed

    def _rounds(self, number: int, step: ReadyStep, values: list[Any], failed: Failure | None) -> Failure | None:
        """Run a step of control flow, and store its results in the program; returns as `run`."""
        assert step.flow is not None
        flow, memory = step.flow(values), self._memory
        before: list[Any] = []  # the values of the last round, whose carry is in use
        stacks: Sequence[Any] = ()
        if not failed:
            try:
                stacks = flow.begin()
            except Exception as error:
                failed = self._raised(number, step, values, error, failed)
        if memory is not None:
            memory.hold(stacks)
        while True:
            try:
                following = flow.next(bool(failed))
            except Exception as error:
                failed = self._raised(number, step, values, error, failed)
                following = flow.next(True)
            if following is None:
                break
            if memory is not None:
                memory.hold(following[1])
                memory.let_go(before)
                before = following[1]
            failed = self.run(number, *following, failed)
            try:
                flow.take(following[1], bool(failed))
            except Exception as error:
                failed = self._raised(number, step, values, error, failed)
        if not failed:
            for slot, result in zip(step.results, flow.results(), strict=True):
                values[slot] = result
        if memory is not None:
            memory.hold(() if failed else map(values.__getitem__, step.results))
            memory.let_go(before)
            memory.let_go(stacks)
        return failed

    def _checked(self, number: int, step: ReadyStep, values: list[Any], memory: Memory) -> Failure | None:
        """The failure of a call if the results of a step are over the limit: they are not made."""
        try:
            memory.check(step.makes_nbytes)
        except MemoryError as error:  # a device that exchanges zeros from now on: it has not run out of memory
            return self._fail(number, failure_of(self._device, step.describe(values), error))
        return None

    def _counted(
        self, number: int, step: ReadyStep, values: list[Any], memory: Memory, failed: Failure | None
    ) -> Failure | None:
        """Count the results of a step, and stop counting dead values; returns as `_checked`."""
        if step.flow is None and not failed:  # one that has failed exchanges zeros, and keeps nothing
            memory.hold(values[slot] for slot in step.results if slot >= 0)
        try:  # of results whose size was not known before
            memory.check()
        except MemoryError as error:
            failed = failed or self._fail(number, failure_of(self._device, step.describe(values), error))
        memory.let_go(values[slot] for slot in step.dead)
        return failed

    def _raised(
        self, number: int, step: ReadyStep, values: list[Any], error: Exception, failed: Failure | None
    ) -> Failure:
        """The failure of the call after a step has raised an error."""
        failure = failure_of(self._device, step.describe(values), error, step.line)
        # with shared memory it still arrives at the barrier, and reports there that it has no memory
        if step.request is not None and is_out_of_memory(failure) and not self._has_arena:
            leave(NO_MEMORY)
        if failed:
            return failed
        lost = self._call_control.why_broken(error) if step.request is not None else None
        return self._fail(number, lost or failure)
