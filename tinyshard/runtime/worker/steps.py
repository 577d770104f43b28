"""Runs the steps of a program on one device in order; control flow among them runs the steps of its bodies."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.runtime.collectives.base import PeerLostError
from tinyshard.runtime.failure import NO_MEMORY, Failure, failure_of, is_out_of_memory
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep, operands_of
from tinyshard.runtime.worker.memory import Memory

_LIBC = ctypes.CDLL(None)


class Steps:
    """Runs the steps of programs.

    Args:
        device: the device's id.
        call_control: which calls are cancelled.
        fail: notes the first failure of a call, and returns it.
        place: the GPU on which values are made; None for the CPU.
        has_arena: whether the devices share memory.
        memory: counts the device's memory; None without a limit.
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
        self._exchanges = 0  # of the present call, so far

    def run(self, number: int, ready: ReadyProgram, values: list[Any], failed: Failure | None) -> Failure | None:
        """Run a call's program; returns the failure of the call, if it has failed by then.

        After a step raises, or the call is cancelled, the collectives get zeros: other devices wait in them.
        """
        self._exchanges = 0
        return self._run(number, ready, values, failed)

    def _run(self, number: int, ready: ReadyProgram, values: list[Any], failed: Failure | None) -> Failure | None:
        call_control, memory = self._call_control, self._memory
        for step in ready.steps:
            if memory is not None and not failed:
                failed = self._checked(number, step, values, memory)
            if number <= call_control.cancelled_upto and not failed:
                failed = self._fail(number, call_control.cancelled(self._device))
            try:
                if step.perform is not None and step.request is not None:
                    moment = number, self._exchanges
                    # a step of a single device, as to read its position, may run more often than on other devices
                    self._exchanges += step.step.communicates
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
            failed = self._run(number, *following, failed)
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


def leave(code: int) -> None:
    """End this process, which cannot take part in a collective: its end wakes the devices that wait in it."""
    flush()
    os._exit(code)


def flush() -> None:
    """Flush the output of Python and C code, so that the controller gets it before the answer."""
    sys.stdout.flush()
    _LIBC.fflush(None)


def trim() -> None:
    """Return freed memory of C code to the system."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
