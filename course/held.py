"""The values that a device holds during a step of a program, the largest first: what `memory_analysis()` adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tinyshard.compile import memory
from tinyshard.core.program import Program

__all__ = ["Held", "held_during"]

INPUT = "input"


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
    ops = {n: each.op for each in program.steps for n in each.results}
    count: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for n in memory.held_during(program, step):
        meta = program.metas[n]
        if meta is not None:
            kind = ops.get(n, INPUT), str(meta)
            count[kind] += 1
            nbytes[kind] += meta.nbytes
    return [Held(op, type_, count[op, type_], size) for (op, type_), size in nbytes.most_common()]
