"""The memory line of a program: how many bytes a device holds during each step, counted from the steps alone.

What is counted: the inputs, from the first step to the last, since whoever calls the program holds them; every other
value from the step that makes it to the last step that needs it; results to the end. A view (a transpose, a slice, an
expanded number) takes no memory of its own and keeps alive what it looks at.

What is not: what an op needs for itself while it runs, and what the library that exchanges the blocks keeps for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Eqn, Program, values_in
from tinyshard.runtime.worker.executor import find_op

__all__ = ["MemoryLine", "Moment", "memory_line"]

# a slice of what the device has: tinyshard's own way to say `narrow`; and a reshape that torch does not call a view
_LOOKS_AT_ITS_OPERAND = {"local_slice", "aten._unsafe_view.default"}


@dataclass(frozen=True, slots=True)
class Moment:
    """One step, and what a device holds while it runs.

    Attributes:
        op: as in the program's text, "aten.mm.default" or "all_gather".
        result: "%5: f32[16, 4]", as in the program's text; "" where a step makes nothing.
        is_exchange: whether data crosses between devices.
        nbytes: held while the step runs, its operands and its result included.
    """

    op: str
    result: str
    is_exchange: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What a device holds, step by step.

    Attributes:
        inputs_nbytes: the inputs alone, before the first step.
        moments: one for each step.
    """

    inputs_nbytes: int
    moments: tuple[Moment, ...]

    @property
    def peak_nbytes(self) -> int:
        """The most that is held at once."""
        return max((m.nbytes for m in self.moments), default=self.inputs_nbytes)

    @property
    def peak_step(self) -> int:
        """The first step at which the most is held, counted from 0; -1 in a program without steps."""
        return next((k for k, m in enumerate(self.moments) if m.nbytes == self.peak_nbytes), -1)


def memory_line(program: Program) -> MemoryLine:
    """Count what a device holds during each step of a program.

    Args:
        program: for example `ts.jit(f).lower(x).compile().program`, also one for an AbstractMesh.

    Returns:
        One moment for each step.

    Communication: none.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> rows = ts.NamedSharding(ts.AbstractMesh((2,), "d"), ts.P("d"))
        >>> x = ts.ShapeDtypeStruct((8, 4), torch.float32, sharding=rows)
        >>> line = memory_line(ts.jit(lambda x: torch.sin(x).T + 1).lower(x).compile().program)
        >>> line.inputs_nbytes, [(m.op, m.nbytes) for m in line.moments]
        (64, [('aten.sin.default', 128), ('aten.permute.default', 128), ('aten.add.Tensor', 192)])
    """
    owners = _owners(program)
    last = _last_use(program, owners)
    held = set(range(program.num_inputs))
    inputs_nbytes = sum(_nbytes(program, n) for n in held)
    moments = []
    for k, step in enumerate(program.steps):
        held |= {owners[n] for n in step.results if n >= 0}
        nbytes = sum(_nbytes(program, n) for n in held)
        moments.append(Moment(step.op, _result(program, step), _is_exchange(step), nbytes))
        held = {n for n in held if last[n] > k}
    return MemoryLine(inputs_nbytes, tuple(moments))


def _owners(program: Program) -> dict[int, int]:
    """Value → the value whose memory it lies in: itself, unless it is a view."""
    owners = {n: n for n in range(program.num_inputs)}
    for step in program.steps:
        operands = [v.number for v in values_in(step.args)]
        is_view = bool(operands) and _is_view(step)
        for n in step.results:
            owners[n] = owners[operands[0]] if is_view else n
    return owners


def _is_view(step: Eqn) -> bool:
    if step.op in _LOOKS_AT_ITS_OPERAND:
        return True
    return step.op not in COLLECTIVES and step.op != "literal" and bool(find_op(step.op).is_view)


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


def _is_exchange(step: Eqn) -> bool:
    return step.op in COLLECTIVES and COLLECTIVES[step.op].communicates


def _result(program: Program, step: Eqn) -> str:
    made: Sequence[int] = [n for n in step.results if n >= 0]
    return ", ".join(f"%{n}: {program.metas[n] or '?'}" for n in made)
