"""The values that a device holds during a step of a program, the largest first: what `memory_analysis()` adds up."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Eqn, Program, values_in
from tinyshard.runtime.worker.executor import find_op

__all__ = ["Held", "held_during"]

INPUT = "input"
NOT_TORCHS = {*COLLECTIVES, "literal", "transfer"}


@dataclass(frozen=True)
class Held:
    """Values of one type that one kind of step made.

    Attributes:
        op: the kind of step, as in the program's text; "input" for what the program is given.
        type: dtype and shape, "f32[16, 4]".
        count: how many are held.
        nbytes: of all of them.
    """

    op: str
    type: str
    count: int
    nbytes: int


def held_during(program: Program, step: int) -> list[Held]:
    """What a device holds during one step, those with the most bytes first.

    Args:
        program: of a compiled function, `compiled.program`.
        step: its number, from 0.

    Communication: none; nothing is run.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> compiled = ts.jit(lambda x: torch.sin(x) + x.sum()).lower(torch.zeros(256)).compile()
        >>> for each in held_during(compiled.program, 2):
        ...     print(each.count, each.type, each.nbytes, each.op)
        1 f32[256] 1024 input
        1 f32[256] 1024 aten.sin.default
        1 f32[256] 1024 aten.add.Tensor
        1 f32[] 4 aten.sum.default
    """
    made = [(INPUT, n, n) for n in range(program.num_inputs)]  # op, value, the value whose memory it takes
    owner = {n: n for n in range(program.num_inputs)}
    needed: dict[int, float] = {}  # value → the last step that needs its memory
    for k, each in enumerate(program.steps):
        operands = [value.number for value in values_in((each.args, each.kwargs))]
        for n in [n for n in each.results if n >= 0]:
            owner[n] = owner[operands[0]] if operands and _is_view(each) else n
            needed[owner[n]] = k
            if k <= step:
                made.append((each.op, n, owner[n]))
        needed.update((owner[n], k) for n in operands)
    needed.update((owner[n], math.inf) for n in [*range(program.num_inputs), *program.outputs])

    count: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for op, n, memory in made:
        meta = program.metas[n]
        if n == memory and meta is not None and needed[n] >= step:
            count[op, str(meta)] += 1
            nbytes[op, str(meta)] += meta.nbytes
    return [Held(op, type_, count[op, type_], size) for (op, type_), size in nbytes.most_common()]


def _is_view(step: Eqn) -> bool:
    """Whether a step makes no memory of its own: a slice, a transpose."""
    if step.op in ("local_slice", "aten._unsafe_view.default"):
        return True
    return step.op not in NOT_TORCHS and bool(find_op(step.op).is_view)
