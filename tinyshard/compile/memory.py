"""The memory of a program: how many bytes a device holds during each step, counted from the steps alone.

What is counted: the inputs, from the first step to the last, since whoever calls the program holds them; every other
value from the step that makes it to the last step that needs it; results to the end. A view (a transpose, a slice, an
expanded number) takes no memory of its own and keeps alive what it looks at.

What is not: what an op needs for itself while it runs, and what the library that exchanges the blocks keeps for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Eqn, Program, values_in
from tinyshard.runtime.worker.executor import find_op

# a slice of what the device has: tinyshard's own way to say `narrow`; and a reshape that torch does not call a view
_VIEWS = {"local_slice", "aten._unsafe_view.default"}


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step, and what a device holds while it runs.

    Attributes:
        op: as in the program's text, "aten.mm.default" or "all_gather".
        result: "%5: f32[16, 4]", as in the program's text; "" where a step makes nothing.
        communicates: whether data crosses between devices.
        nbytes: held while the step runs, its operands and its result included.
    """

    op: str
    result: str
    communicates: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """What one device holds while a program runs, in bytes. Made by `Compiled.memory_analysis()`.

    Attributes:
        argument_nbytes: the arguments alone, closed-over tensors included, before the first step.
        output_nbytes: the results.
        steps: what is held during each step, in order.
    """

    argument_nbytes: int
    output_nbytes: int
    steps: tuple[StepMemory, ...]

    @property
    def peak_nbytes(self) -> int:
        """The most that is held at once."""
        return max((step.nbytes for step in self.steps), default=self.argument_nbytes)

    @property
    def peak_step(self) -> int:
        """The first step at which the most is held, counted from 0; -1 in a program without steps."""
        return next((k for k, step in enumerate(self.steps) if step.nbytes == self.peak_nbytes), -1)

    def __str__(self) -> str:
        lines = [
            f"arguments {self.argument_nbytes:,} bytes a device, results {self.output_nbytes:,}, "
            f"peak {self.peak_nbytes:,}"
        ]
        for k, step in enumerate(self.steps):
            peak = "  <- peak" if k == self.peak_step else ""
            lines.append(f"{step.nbytes:>15,}  {step.op}  {step.result}".rstrip() + peak)
        return "\n".join(lines)


def memory_of(program: Program) -> MemoryAnalysis:
    """Count what a device holds during each step of a program.

    Communication: none.
    """
    owners = _owners(program)
    last = _last_use(program, owners)
    held = set(range(program.num_inputs))
    argument_nbytes = sum(_nbytes(program, n) for n in held)
    steps = []
    for k, step in enumerate(program.steps):
        held |= {owners[n] for n in step.results if n >= 0}
        nbytes = sum(_nbytes(program, n) for n in held) + _within(program, step)
        steps.append(StepMemory(step.op, program.made_by(step), step.communicates, nbytes))
        held = {n for n in held if last[n] > k}
    return MemoryAnalysis(argument_nbytes, sum(_nbytes(program, n) for n in program.outputs), tuple(steps))


def _within(program: Program, step: Eqn) -> int:
    """What the bodies of control flow hold at most, beside their inputs.

    Of a carry two are held at once, what a round is given and what it makes: one is among the results of the step.
    """
    return max((body.peak_nbytes - body.argument_nbytes for body in map(memory_of, step.bodies)), default=0)


def held_during(program: Program, step: int) -> list[int]:
    """The numbers of the values that a device holds during one step, views left out, in the order they are made.

    Communication: none.
    """
    owners = _owners(program)
    last = _last_use(program, owners)
    results = [n for each in program.steps[: step + 1] for n in each.results if n >= 0]
    return [n for n in [*range(program.num_inputs), *results] if owners[n] == n and last[n] >= step]


def _owners(program: Program) -> dict[int, int]:
    """Value → the value whose memory it takes: itself, unless it is a view."""
    owners = {n: n for n in range(program.num_inputs)}
    for step in program.steps:
        operands = [v.number for v in values_in(step.args)]
        is_view = bool(operands) and _is_view(step)
        for n in step.results:
            owners[n] = owners[operands[0]] if is_view else n
    return owners


def _is_view(step: Eqn) -> bool:
    if step.op in _VIEWS:
        return True
    is_op = step.op not in COLLECTIVES and step.op not in ("literal", "transfer") and not step.bodies
    return is_op and bool(find_op(step.op).is_view)


def _last_use(program: Program, owners: dict[int, int]) -> dict[int, float]:
    """Owner → the last step that needs it; inputs and results are needed to the end."""
    last: dict[int, float] = {}
    for k, step in enumerate(program.steps):
        for n in [*(v.number for v in values_in((step.args, step.kwargs))), *(n for n in step.results if n >= 0)]:
            last[owners[n]] = k
    for n in [*range(program.num_inputs), *program.outputs]:
        last[owners[n]] = math.inf
    return last


def _nbytes(program: Program, number: int) -> int:
    meta = program.metas[number]
    return 0 if meta is None else meta.nbytes
