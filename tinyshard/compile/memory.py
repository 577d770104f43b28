"""The memory of a program: how many bytes a device holds during each step, counted from the steps alone.

Inputs count from the first step to the last, since the caller holds them, donated ones to the last step that needs
them; every other value counts from the step that makes it to the last step that needs it; results count to the end. A
view (a transpose, a slice, an expanded number) takes no memory and keeps the viewed value alive.

Not counted are the temporary memory of an op and the buffers of the library that communicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.core.program import Eqn, Program, is_view
from tinyshard.draw.tables import memory_html


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step, and the bytes that a device holds while it runs.

    Attributes:
        op: as in the program's text, "aten.mm.default" or "all_gather".
        result: "%5: f32[16, 4]", as in the program's text; "" for a step without a result.
        communicates: whether data crosses between devices.
        nbytes: held while the step runs, its operands and its result included.
    """

    op: str
    result: str
    communicates: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """The bytes that one device holds while a program runs. Made by `Compiled.memory_analysis()`.

    Attributes:
        argument_nbytes: the arguments alone, closed-over tensors included, before the first step.
        output_nbytes: the results.
        steps: the bytes held during each step, in order.
        alias_size_in_bytes: of the donated arguments whose place results take, as JAX calls it.
    """

    argument_nbytes: int
    output_nbytes: int
    steps: tuple[StepMemory, ...]
    alias_size_in_bytes: int = 0

    @property
    def peak_nbytes(self) -> int:
        """The most that is held at once."""
        return max((step.nbytes for step in self.steps), default=self.argument_nbytes)

    @property
    def peak_step(self) -> int:
        """The first step at which the most is held, counted from 0; -1 in a program without steps."""
        return next((k for k, step in enumerate(self.steps) if step.nbytes == self.peak_nbytes), -1)

    @property
    def _heading(self) -> str:
        return (
            f"arguments {self.argument_nbytes:,} bytes a device, results {self.output_nbytes:,}, "
            f"peak {self.peak_nbytes:,}"
        )

    def _repr_html_(self) -> str:
        return memory_html(self._heading, [(short_name(s.op), s.result, s.communicates, s.nbytes) for s in self.steps])

    def __str__(self) -> str:
        lines = [self._heading]
        for k, step in enumerate(self.steps):
            peak = "  <- peak" if k == self.peak_step else ""
            lines.append(f"{step.nbytes:>15,}  {step.op}  {step.result}".rstrip() + peak)
        return "\n".join(lines)


def memory_of(program: Program, donated: Sequence[int] = ()) -> MemoryAnalysis:
    """Count the bytes that a device holds during each step of a program; it frees donated inputs at their last use.

    Communication: none.
    """
    held = held_nbytes(program, donated)
    steps = [
        StepMemory(step.op, program.made_by(step), step.communicates, nbytes)
        for step, nbytes in zip(program.steps, held, strict=True)
    ]
    argument_nbytes = sum(_nbytes(program, n) for n in range(program.num_inputs))
    output_nbytes = sum(_nbytes(program, n) for n in program.outputs)
    return MemoryAnalysis(argument_nbytes, output_nbytes, tuple(steps), sum(_nbytes(program, n) for n in donated))


def short_name(op: str) -> str:
    """An op as a notebook shows it.

    Example:
        >>> short_name("aten.mm.default"), short_name("all_gather")
        ('mm', 'all_gather')
    """
    return op.split(".")[1] if "." in op else op


def held_nbytes(program: Program, donated: Sequence[int] = ()) -> list[int]:
    """The bytes that a device holds during each step, in order; it frees donated inputs at their last use.

    Communication: none.
    """
    owners = owners_in(program)
    ending: dict[float, list[int]] = {}
    for n, k in _last_use(program, owners, donated).items():
        ending.setdefault(k, []).append(n)
    nbytes = sum(_nbytes(program, n) for n in range(program.num_inputs))
    found = []
    for k, step in enumerate(program.steps):
        nbytes += sum(_nbytes(program, n) for n in step.results if n >= 0 and owners[n] == n)
        found.append(nbytes + _within(program, step))
        nbytes -= sum(_nbytes(program, n) for n in ending.get(k, ()))
    return found


def _within(program: Program, step: Eqn) -> int:
    """The peak of the bodies of control flow, without their inputs and the results of the step."""
    extra = max([m.peak_nbytes - m.argument_nbytes for m in memory_of_bodies(step)], default=0)
    branch_nbytes = sum(_nbytes(program, n) for n in step.results) if step.op == "cond" else 0
    return max(0, extra - branch_nbytes)  # a branch makes the results themselves


def memory_of_bodies(step: Eqn) -> list[MemoryAnalysis]:
    """What a device holds in each body of control flow.

    A round of a loop is passed the carry of the round before, one of the results, and frees it at its last use.

    Communication: none.
    """
    carry = range(len(step.args[0])) if step.op in ("scan", "while") else ()
    last = len(step.bodies) - 1  # the test of a while comes before it and frees nothing
    return [memory_of(body, carry if k == last else ()) for k, body in enumerate(step.bodies)]


def held_during(program: Program, step: int, donated: Sequence[int] = ()) -> list[int]:
    """The numbers of the values that a device holds during one step, views left out, in the order they are made.

    Communication: none.
    """
    owners = owners_in(program)
    last = _last_use(program, owners, donated)
    results = [n for each in program.steps[: step + 1] for n in each.results if n >= 0]
    return [n for n in [*range(program.num_inputs), *results] if owners[n] == n and last[n] >= step]


def owners_in(program: Program) -> dict[int, int]:
    """Value → the value whose memory it takes: itself, unless it is a view.

    Communication: none.
    """
    owners = {n: n for n in range(program.num_inputs)}
    for step in program.steps:
        looks_at = owners[step.operands[0]] if step.operands and is_view(step) else None
        for n in step.results:
            owners[n] = n if looks_at is None else looks_at
    return owners


def _last_use(program: Program, owners: dict[int, int], donated: Sequence[int] = ()) -> dict[int, float]:
    """Owner → the last step that needs it; results, and inputs but donated ones, are needed to the end."""
    last: dict[int, float] = dict.fromkeys(donated, math.inf)  # those that no step uses, too
    for k, step in enumerate(program.steps):
        for n in [*step.operands, *(n for n in step.results if n >= 0)]:
            last[owners[n]] = k
    kept = (n for n in range(program.num_inputs) if n not in donated)
    for n in [*kept, *program.outputs]:
        last[owners[n]] = math.inf
    return last


def _nbytes(program: Program, number: int) -> int:
    meta = program.metas[number]
    return 0 if meta is None else meta.nbytes
