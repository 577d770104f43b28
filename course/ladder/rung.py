"""A rung: what each device is given and must end with, and par; and the score of an answer, counted from its program.

An answer is a function of one device's blocks, with collectives over a named axis. The program that eight devices run
for it is compiled once: it is run for the values, and read for what it costs. So an answer that gathers everything is
seen to do so, however it does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils._pytree import tree_flatten

import tinyshard as ts
from course.exercises.compare import difference
from tinyshard.compile.compiled import Compiled
from tinyshard.core import config
from tinyshard.core.program import CROSSING, Program, values_in

__all__ = ["DEVICES", "PERMUTES", "Answer", "Counts", "Par", "Rung", "counts_of", "rounds_of"]

DEVICES = 8
EXACT, CLOSE = 0.0, 1e-5
PERMUTES = ("collective_permute",)

Answer = Callable[..., Any]
Row = tuple[str, tuple[tuple[str, ...], ...]]


@dataclass(frozen=True)
class Counts:
    """What the busiest device uses.

    Attributes:
        nbytes: bytes that it sends.
        peak_nbytes: the most bytes that it holds at once.
        rounds: exchanges, each of which waits for the one before: the longest such chain.
        flops: operations of matrix products.
    """

    nbytes: int
    peak_nbytes: int
    rounds: int
    flops: int


@dataclass(frozen=True)
class Par:
    """What an answer may use; None for what the rung does not count."""

    nbytes: int
    peak_nbytes: int
    rounds: int | None = None
    flops: int | None = None


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder.

    Attributes:
        id: of its exercise, "18.1".
        name: in a few words.
        given, wanted: the picture: names of values, and for each what each of the eight devices holds of it.
        par: what an answer may use.
        inputs: makes the whole values; the devices get their blocks by `in_specs`.
        want: from the whole inputs to the whole results, on one device.
        in_specs, out_specs: as for `ts.shard_map`.
        mesh: its shape and axis names.
        kinds: the collectives that may occur; empty for all.
        tolerance: by how much an element may be off; 0 where the inputs are such that sums are exact.
        read: from the results to the part that is compared.
    """

    id: str
    name: str
    given: tuple[Row, ...]
    wanted: tuple[Row, ...]
    par: Par
    inputs: Callable[[], tuple[Any, ...]]
    want: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    mesh: tuple[tuple[int, ...], tuple[str, ...]] = ((DEVICES,), ("d",))
    kinds: tuple[str, ...] = ()
    tolerance: float = EXACT
    read: Callable[[Any], Any] = lambda results: results

    def compile(self, answer: Answer) -> Compiled:
        """The program of eight devices, each exchange as it is written."""
        mapped = ts.shard_map(
            answer, mesh=ts.make_mesh(*self.mesh), in_specs=self.in_specs, out_specs=self.out_specs, check_vma=False
        )
        before = config.read("combine_nbytes")
        config.update("combine_nbytes", 0)
        try:
            compiled: Compiled = mapped.lower(*self.inputs()).compile()
        finally:
            config.update("combine_nbytes", before)
        return compiled

    def differs(self, compiled: Compiled) -> str:
        """What is wrong with the values; empty where nothing is.

        Communication: what the program sends.
        """
        inputs = self.inputs()
        got, shape = tree_flatten(self.read(ts.device_get(compiled(*inputs))))
        want, wanted_shape = tree_flatten(self.want(*inputs))
        if len(got) != len(want):
            return f"it returns {_count(shape.num_leaves)}; the task asks for {_count(wanted_shape.num_leaves)}"
        for number, (one, other) in enumerate(zip(got, want, strict=True), start=1):
            what = "the result" if len(want) == 1 else f"result {number} of {len(want)}"
            if one is None:
                return f"{what} is None"
            told = difference(one, other, what, self.tolerance)
            if told:
                return told.splitlines()[0]
        return ""

    def over_par(self, counts: Counts) -> list[str]:
        """The names of the counts that are above par, in the order in which they are scored."""
        return [name for name, most in vars(self.par).items() if most is not None and getattr(counts, name) > most]

    def unwanted(self, compiled: Compiled) -> str:
        """The first kind of collective that the rung does not allow; empty where there is none."""
        found = [count.kind for count in compiled.cost_analysis().traffic]
        return next((kind for kind in found if self.kinds and kind not in self.kinds), "")


def _count(n: int) -> str:
    return f"{n} value{'' if n == 1 else 's'}"


def counts_of(compiled: Compiled) -> Counts:
    """What a device uses, read from the program.

    Communication: none.
    """
    cost = compiled.cost_analysis()
    return Counts(
        cost.nbytes, compiled.memory_analysis().peak_nbytes, max(rounds_of(compiled.program), default=0), cost.flops
    )


def rounds_of(program: Program) -> list[int]:
    """For each value, how many exchanges came before it, each of which waited for the one before.

    Communication: none.

    Example:
        >>> import torch
        >>> ts.init(devices=2, runtime="local")
        >>> there_and_back = lambda x: ts.lax.ppermute(ts.lax.ppermute(x, "d", [(0, 1)]), "d", [(1, 0)])
        >>> f = ts.shard_map(there_and_back, mesh=ts.make_mesh((2,), ("d",)), in_specs=ts.P("d"), out_specs=ts.P("d"))
        >>> max(rounds_of(f.lower(torch.zeros(2)).compile().program))
        2
        >>> ts.shutdown()
    """
    rounds = [0] * len(program.metas)
    for step in program.steps:
        before = max((rounds[v.number] for v in values_in((step.args, step.kwargs))), default=0)
        within = max((max(rounds_of(body), default=0) for body in step.bodies), default=0)
        here = (step.op in CROSSING) + within * int(step.kwargs.get("length", 1))
        for n in step.results:
            if n >= 0:
                rounds[n] = before + here
    return rounds
