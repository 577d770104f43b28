"""The cost of a program: floating-point operations and bytes, counted from its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.core.collectives import nbytes_sent
from tinyshard.core.program import CROSSING, Eqn, Program, Value, find_op
from tinyshard.draw.tables import cost_html, counts_html


@dataclass(frozen=True, slots=True)
class CollectiveCount:
    """Collectives of one kind along the same axes of the mesh.

    Attributes:
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", or "transfer".
        axes: the names of the mesh axes, each listed even where the plan merges several into one.
        count: how many of them.
        nbytes: bytes that the busiest device of each sends, by the model of `bytes_sent`, added up.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    nbytes: int

    def __str__(self) -> str:
        times, together = ("once", "") if self.count == 1 else (f"{self.count} times", " together")
        return f"{self.kind} over {'*'.join(self.axes)}: {times}, {self.nbytes:,} bytes{together}"


class CollectiveCounts(tuple[CollectiveCount, ...]):
    """A tuple with a CollectiveCount for each kind and axes; printed, it is a line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no collectives"

    def _repr_html_(self) -> str:
        return counts_html([(each.kind, each.axes, each.count, each.nbytes) for each in self])


@dataclass(frozen=True, slots=True)
class Gathers:
    """All-gathers of operands that an op needs in fewer parts than they have; the traffic includes them.

    Attributes:
        op: the op.
        why: the layout that it needs, or why no rule keeps its operands sharded.
        count: how many of them.
        nbytes: bytes that the busiest device of each sends, by the model of `bytes_sent`, added up.
    """

    op: str
    why: str
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one call for each device.

    Attributes:
        flops: multiplications and additions of matrix products, convolutions and attention (torch's own formulas).
        traffic: the collectives, by kind and axes, in the order of the program.
        gathers: those of the traffic for ops that cannot keep their operands sharded, by op.
    """

    flops: int
    traffic: CollectiveCounts
    gathers: tuple[Gathers, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that the busiest device sends, by the model of `bytes_sent`, added up over the collectives."""
        return sum(t.nbytes for t in self.traffic)

    def count(self, op: str) -> int:
        """How many collectives of this kind there are."""
        return sum(t.count for t in self.traffic if t.kind == op)

    @property
    def _heading(self) -> str:
        return f"{self.flops:,} flops a device, {self.nbytes:,} bytes sent by the busiest device"

    def _repr_html_(self) -> str:
        counts = [(each.kind, each.axes, each.count, each.nbytes) for each in self.traffic]
        return cost_html(self._heading, counts, [(g.op, g.why, g.count, g.nbytes) for g in self.gathers])

    def __str__(self) -> str:
        lines = [self._heading]
        lines += [f"  {count}" for count in self.traffic]
        lines += [f"  of these {g.nbytes:,} bytes gather operands of {g.op}: {g.why}" for g in self.gathers]
        return "\n".join(lines)


def bytes_sent(program: Program, step: Eqn) -> int:
    """Bytes that the busiest device sends in a collective: a model, and a lower bound, not a measurement.

    Blocks are cut in as many equal pieces as the group has devices, which go around a ring (all_reduce); a permutation
    counts a whole block, however few of the devices send one. In a transfer devices may send different amounts.
    """
    if step.op == "transfer":
        return _transferred(program, step)
    operands: Any = [program.metas[x.number] for x in step.args]
    return sum(nbytes_sent(step.op, operand, program.axes, step.kwargs) for operand in operands)


def _transferred(program: Program, step: Eqn) -> int:
    operand = program.metas[step.args[0].number]
    assert operand is not None
    sent = dict.fromkeys(range(len(program.devices)), 0)
    for source, target, cut, _ in step.kwargs["moves"]:
        if source != target:
            shape = (len(range(*s.indices(n))) for s, n in zip(cut, operand.shape, strict=True))
            sent[source] += math.prod(shape) * operand.dtype.itemsize
    return max(sent.values())


def cost_of(program: Program, mesh_axes: Sequence[tuple[str, ...]]) -> Cost:
    """Count a program's steps.

    Args:
        mesh_axes: for each axis of the program the names of the mesh axes that it is.

    Communication: none.
    """
    flops = 0
    traffic: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    gathers: dict[tuple[str, str], list[int]] = {}
    for part, times in with_bodies(program):
        for step in part.steps:
            if step.op in CROSSING:
                over = step.kwargs.get("axes", range(len(part.axes)))
                key = (step.op, tuple(name for a in over for name in mesh_axes[a]))
                _add(traffic.setdefault(key, [0, 0]), times, bytes_sent(part, step))
            elif step.is_torch_op:
                flops += times * flops_of(part, step)
        for number, reason in part.reasons:
            _add(gathers.setdefault((reason.op, reason.why), [0, 0]), times, bytes_sent(part, part.steps[number]))
    return Cost(
        flops,
        CollectiveCounts(CollectiveCount(*key, *total) for key, total in traffic.items()),
        tuple(Gathers(op, why, count, nbytes) for (op, why), (count, nbytes) in gathers.items()),
    )


def _add(total: list[int], times: int, nbytes: int) -> None:
    total[0] += times
    total[1] += times * nbytes


def with_bodies(program: Program, times: int = 1, *, every: bool = False) -> Iterator[tuple[Program, int]]:
    """A program and the bodies of its control flow, each with how often it runs, in the order of the text.

    The number of rounds of a while loop is not known: one is counted. Of several branches the most expensive counts.

    Args:
        every: all branches.
    """
    yield program, times
    for step in program.steps:
        is_choice = step.op == "cond" and not every
        for body in [max(step.bodies, key=_weight)] if is_choice else step.bodies:
            yield from with_bodies(body, times * int(step.kwargs.get("length", 1)), every=every)


def _weight(program: Program) -> tuple[int, int, int]:
    """A program's cost, for comparisons: operations, bytes sent, steps."""
    cost = cost_of(program, [(str(axis),) for axis in range(len(program.axes))])
    return cost.flops, cost.nbytes, len(program.steps)


def flops_of(program: Program, step: Eqn) -> int:
    """Multiplications and additions of one step, by torch's own formulas; 0 for an op without a formula."""
    from torch.utils.flop_counter import flop_registry

    op = find_op(step.op)
    formula = flop_registry.get(op.overloadpacket)
    if formula is None:
        return 0

    def empty(value: Value) -> torch.Tensor:
        meta = program.metas[value.number]
        assert meta is not None
        return torch.empty(meta.shape, dtype=meta.dtype, device="meta")

    args, kwargs = tree_map_only(Value, empty, (step.args, step.kwargs))
    outputs: Any = [empty(Value(n)) for n in step.results if n >= 0]
    return int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else outputs))
