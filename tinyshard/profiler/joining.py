"""From the rows that devices record, and the spans of the controller, to events."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyshard.compile.cost import bytes_sent, flops_of
from tinyshard.core.activity import Log, Span
from tinyshard.core.collectives import group_positions
from tinyshard.core.program import Eqn, Program, is_view
from tinyshard.profiler.events import Call, Events, Step
from tinyshard.runtime.worker.recording import CALL, FIELDS, NO_EXCHANGE

Row = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Model:
    """A program's information about one of its steps.

    Attributes:
        op: its name.
        flops, nbytes: its cost.
        line: the user's line; None where that is the line of the call.
    """

    op: str
    flops: int
    nbytes: int
    line: Any


class Programs:
    """The programs that were called in a trace, and their information about steps."""

    def __init__(self, called: Sequence[tuple[Any, Program]]) -> None:
        self._runs = {run.number: run for run, _ in called}
        self._programs: dict[int, Program] = {}
        for _, program in called:
            self._add(program)
        self._models: dict[tuple[int, int], Model] = {}
        self._groups: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def _add(self, program: Program) -> None:
        if program.number not in self._programs:
            self._programs[program.number] = program
            for step in program.steps:
                for body in step.bodies:
                    self._add(body)

    def __contains__(self, number: int) -> bool:
        return number in self._programs

    def line(self, call: int) -> str:
        """The user's line that called a program."""
        run = self._runs.get(call)
        return "" if run is None else str(run.where)

    def name(self, number: int) -> str:
        """The name of a program in a trace."""
        steps = self._programs[number].steps
        return steps[0].op if len(steps) == 1 else f"{len(steps)} steps"

    def model(self, number: int, step: int) -> Model:
        """The information about a step."""
        key = number, step
        if key not in self._models:
            program = self._programs[number]
            eqn = program.steps[step]
            line = program.lines[step] if program.lines else None
            flops = flops_of(program, eqn) if eqn.is_torch_op else 0
            nbytes = bytes_sent(program, eqn) if eqn.communicates else _touched(program, eqn)
            self._models[key] = Model(eqn.op, flops, nbytes, line)
        return self._models[key]

    def group(self, number: int, step: int, device: int) -> tuple[int, ...]:
        """The devices that exchange data in a step with this one."""
        key = number, step, device
        if key not in self._groups:
            program = self._programs[number]
            eqn = program.steps[step]
            positions: Sequence[int] = range(len(program.devices))
            if eqn.op != "transfer":
                at = program.devices.index(device)
                positions = group_positions(program.axes, eqn.kwargs["axes"], at, eqn.kwargs.get("groups"))
            self._groups[key] = tuple(program.devices[p] for p in positions)
        return self._groups[key]


def _touched(program: Program, step: Eqn) -> int:
    """The bytes of the operands and results of an op; 0 for a view."""
    if is_view(step):
        return 0
    numbers = [*step.operands, *(n for n in step.results if n >= 0)]
    metas = [program.metas[n] for n in dict.fromkeys(numbers)]
    return sum(m.nbytes for m in metas if m is not None)


def joined(
    log: Log,
    rows: Mapping[int, bytes],
    ahead_ns: Mapping[int, int],
    start_ns: int,
    end_ns: int,
    devices: Sequence[int],
    platform: str,
    notes: Sequence[str],
) -> Events:
    """The events of a trace.

    Args:
        log: the controller's spans.
        rows: by device, its records.
        ahead_ns: by device, how far its clock is ahead of the controller's.
        start_ns, end_ns: of the trace; it ends with the last call, if that is later.
        devices, platform: all devices.
        notes: about missing records so far.
    """
    programs = Programs([span.call for span in log.spans if span.call is not None])
    known = {
        device: [row for row in _rows(taken, start_ns + ahead_ns[device]) if row[1] in programs]
        for device, taken in rows.items()
    }
    steps = _with_waits(_steps(known, programs), known, programs)
    calls = [
        Call(device, number, programs.name(program), start, end, programs.line(number))
        for device, several in known.items()
        for number, program, step, _, start, end in several
        if step == CALL
    ]
    ends = [*(call.end_ns for call in calls), *(step.end_ns for step in steps)]
    wall_ns = max([end_ns - start_ns, *ends])
    spans = [replace(s, start_ns=s.start_ns - start_ns, end_ns=s.end_ns - start_ns) for s in log.spans]
    return Events(
        tuple(devices),
        platform,
        wall_ns,
        tuple(sorted(steps, key=lambda s: (s.device, s.start_ns))),
        tuple(sorted(calls, key=lambda c: (c.device, c.start_ns))),
        tuple(sorted(map(_named(programs), spans), key=lambda s: (s.start_ns, -s.end_ns))),
        tuple(notes),
    )


def _rows(taken: bytes, start_ns: int) -> Iterator[Row]:
    numbers = array("q")
    numbers.frombytes(taken)
    for i in range(0, len(numbers), FIELDS):
        call, program, step, exchange, start, end = numbers[i : i + FIELDS]
        yield call, program, step, exchange, start - start_ns, end - start_ns


def _named(programs: Programs) -> Any:
    """A function that names a dispatch by its program, and drops the reference to the program."""

    def named(span: Span) -> Span:
        if span.call is None:
            return replace(span, where=str(span.where))
        run, program = span.call
        return replace(span, name=programs.name(program.number), where=str(run.where), call=run.number)

    return named


def _steps(known: Mapping[int, Sequence[Row]], programs: Programs) -> list[Step]:
    joined = []
    for device, several in known.items():
        for call, program, step, exchange, start, end in several:
            if step != CALL:
                model = programs.model(program, step)
                line = programs.line(call) if model.line is None else str(model.line)
                cost = model.flops, model.nbytes
                joined.append(Step(device, call, model.op, start, end, exchange != NO_EXCHANGE, 0, 0, *cost, line))
    return joined


def _with_waits(steps: list[Step], known: Mapping[int, Sequence[Row]], programs: Programs) -> list[Step]:
    """The steps; an exchange has its wait, until the last device of the group has started it."""
    rows = [(d, row) for d, several in known.items() for row in several if row[2] != CALL]
    groups: dict[Any, list[int]] = {}
    for i, (device, (call, program, step, exchange, _, _)) in enumerate(rows):
        if exchange != NO_EXCHANGE:
            groups.setdefault((call, exchange, programs.group(program, step, device)), []).append(i)
    for members in groups.values():
        last = max(members, key=lambda i: steps[i].start_ns)
        waits = {i: max(0, min(steps[last].start_ns, steps[i].end_ns) - steps[i].start_ns) for i in members}
        for i, wait in waits.items():
            steps[i] = replace(steps[i], wait_ns=wait)
        if len(members) > 1:
            steps[last] = replace(steps[last], held_up_ns=sum(waits.values()) // (len(members) - 1))
    return steps
