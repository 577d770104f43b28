"""Steps of one kind that do not wait for each other become one step of several operands.

Each exchange costs the time in which all its devices come together, each op the time of its call, however little is to
be done. A step of SGD on two devices, whose gradients are partial sums, before and after:

    %8 = aten.mul.Tensor(%5, 0.1)
    %9 = all_reduce(%8, over=d, op=sum)
    %10 = aten.sub.Tensor(%0, %9)
    %11 = aten.mul.Tensor(%6, 0.1)
    %12 = all_reduce(%11, over=d, op=sum)
    %13 = aten.sub.Tensor(%1, %12)

    %8, %9 = aten._foreach_mul.Scalar([%5, %6], 0.1)
    %10, %11 = all_reduce(%8, %9, over=d, op=sum)
    %12, %13 = aten._foreach_sub.List([%0, %1], [%10, %11])

Two things are done, in this order:

    early    what reduces, and the ops between it and the value that it reduces, stands where that value is made: so
             gradients are summed as early as the backward pass allows
    groups   a step joins one before it of its kind, as long as both together are no more than the flag
             `combine_nbytes`, or a reduce_scatter over n devices an n-th of that. The group stands where its last
             member stood, if no step before needs a result; or it stays where it is, as what is gathered for FSDP,
             if the results that are made earlier now do not raise the program's peak of memory

No result changes by a bit: each operand is reduced as it is alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinyshard.compile.memory import held_nbytes
from tinyshard.compile.simplify import Written, numbered_anew
from tinyshard.core import config
from tinyshard.core.collectives import COLLECTIVES, group_size
from tinyshard.core.program import Eqn, Program, Value, find_op, has_op, is_view
from tinyshard.partition.foreach import OF_LISTS, SINGLE

_REDUCE = {"all_reduce", "reduce_scatter"}  # whose results are no larger than their operands

# of larger tensors the call takes a small part of the time, and one by one they stay in the processor's cache
_SMALL_NBYTES = 1 << 18


def combined(program: Program) -> Program:
    """A program with steps of several operands in place of single ones, in its bodies too.

    Communication: none; the program sends as many bytes as before.
    """
    limit = config.read("combine_nbytes")
    if limit and any(step.bodies for step in program.steps):
        steps = tuple(replace(s, bodies=tuple(map(combined, s.bodies))) if s.bodies else s for s in program.steps)
        program = replace(program, steps=steps)
    if not limit:
        return program
    for kinds in (_collectives, _small_ops):
        candidates = {k: kind for k, step in enumerate(program.steps) if (kind := kinds(program, k, step)) is not None}
        if len(set(candidates.values())) < len(candidates):
            program = _Grouping(program, candidates, limit).result()
    return program


def _collectives(program: Program, number: int, step: Eqn) -> Hashable | None:
    """The kind of a collective: those of one kind are one exchange."""
    if step.op not in COLLECTIVES or not COLLECTIVES[step.op].communicates:
        return None
    meta = program.metas[step.args[0].number]
    reason = next(((r.op, r.why) for k, r in program.reasons if k == number), None)
    return None if meta is None else (step.op, repr(sorted(step.kwargs.items())), meta.dtype, reason)


def _small_ops(program: Program, number: int, step: Eqn) -> Hashable | None:
    """The kind of an op on a small tensor: those of one kind, of one line of the user's, are one op."""
    if step.op not in SINGLE or program.checks_nans:  # a NaN is found in the op that made it
        return None
    metas = [program.metas[n] for n in (*step.operands, *step.results)]
    dtypes = {meta and meta.dtype for meta in metas}
    if len(dtypes) > 1 or any(m is None or not m.dtype.is_floating_point or m.nbytes > _SMALL_NBYTES for m in metas):
        return None
    of_lists = OF_LISTS.get((step.op, tuple(isinstance(a, Value) for a in step.args)))
    if of_lists is None or not of_lists[1].issuperset(step.kwargs):
        return None
    line = program.lines[number] if program.lines else None
    numbers = [None if isinstance(a, Value) else (type(a), a) for a in step.args]
    return step.op, repr(numbers), repr(step.kwargs), dtypes.pop(), line


def _joined(steps: Sequence[Eqn]) -> Eqn:
    """One step in place of several of one kind."""
    first, results = steps[0], tuple(n for step in steps for n in step.results)
    if len(steps) == 1:
        return first
    if first.op not in SINGLE:
        return replace(first, args=tuple(x for step in steps for x in step.args), results=results)
    args: list[Any] = [list(a) if isinstance(a[0], Value) else a[0] for a in zip(*(s.args for s in steps), strict=True)]
    op, _ = OF_LISTS[first.op, tuple(isinstance(a, list) for a in args)]
    return replace(first, op=op, args=tuple(args), results=results)


@dataclass
class _Group:
    """Steps that become one.

    Attributes:
        members: their places in the order.
        at: where the group stands.
        nbytes: of operands or results, whichever are more.
        first_use: the first step that needs a result.
    """

    members: list[int]
    at: int
    nbytes: int
    first_use: float


class _Grouping:
    """Puts the steps of a program into groups. At any time the order is one in which the program could run.

    Args:
        candidates: position of a step -> its kind.
        limit_nbytes: of a group.
    """

    def __init__(self, program: Program, candidates: dict[int, Hashable], limit_nbytes: int) -> None:
        self._program = program
        self._limit_nbytes = limit_nbytes
        self._order = _early(program)
        self._steps = [program.steps[k] for k in self._order]
        self._kinds = {at: candidates[k] for at, k in enumerate(self._order) if k in candidates}
        ordered = replace(program, steps=tuple(self._steps))  # whose inputs the caller keeps, or donates
        self._held_nbytes = [held_nbytes(ordered, donated) for donated in ((), range(program.num_inputs))]
        self._peaks = [max(held) for held in self._held_nbytes]
        self._makers = {n: at for at, step in enumerate(self._steps) for n in step.results}
        self._uses: dict[int, list[int]] = {}
        for at, step in enumerate(self._steps):
            for n in step.operands:
                self._uses.setdefault(n, []).append(at)
        self._open: dict[Hashable, _Group] = {}
        self._group_of: dict[int, _Group] = {}

    def result(self) -> Program:
        """The program with a step for each group."""
        for at, kind in self._kinds.items():
            self._add(at, kind)
        rows = [[at] for at in range(len(self._steps)) if at not in self._group_of]
        rows += {id(group): group.members for group in self._group_of.values()}.values()
        rows.sort(key=lambda members: self._place(members[0]))
        written, program, reasons = Written(), self._program, dict(self._program.reasons)
        for members in rows:
            first = self._order[members[0]]
            line = program.lines[first] if program.lines else None
            written.add(_joined([self._steps[m] for m in members]), line, reasons.get(first))
        return numbered_anew(program, written)

    def _place(self, at: int) -> int:
        """Where a step stands now."""
        return self._group_of[at].at if at in self._group_of else at

    def _add(self, at: int, kind: Hashable) -> None:
        """Put a step into the open group of its kind, or open another."""
        step, metas = self._steps[at], self._program.metas
        operands = step.operands
        nbytes = max(sum(m.nbytes for n in some if (m := metas[n])) for some in (operands, step.results))
        uses = [use for n in step.results for use in self._uses.get(n, ())]
        alone = _Group([at], at, nbytes, min(uses, default=math.inf))
        group = self._open.get(kind)
        if group is None or not self._joins(group, alone, operands):
            group = self._open[kind] = alone
        self._group_of[at] = group

    def _joins(self, group: _Group, alone: _Group, operands: Sequence[int]) -> bool:
        """Let a step join a group, if it can."""
        step = self._steps[alone.at]
        # what waits to be scattered holds that many times what is left of it
        parts = group_size(self._program.axes, step.kwargs) if step.op == "reduce_scatter" else 1
        if group.nbytes + alone.nbytes > self._limit_nbytes // parts:
            return False
        makers = [self._makers[n] for n in operands if n in self._makers]
        if group.first_use > alone.at:
            group.at = alone.at
        elif all(self._place(maker) < group.at for maker in makers) and self._makes_earlier(step, alone.at, group.at):
            for maker in makers:  # its result is needed earlier now
                if maker in self._group_of:
                    self._group_of[maker].first_use = min(self._group_of[maker].first_use, group.at)
        else:
            return False
        group.members += alone.members
        group.nbytes += alone.nbytes
        group.first_use = min(group.first_use, alone.first_use)
        return True

    def _makes_earlier(self, step: Eqn, at: int, earlier: int) -> bool:
        """Let a step make its results earlier, if the peak of memory stays what it is."""
        nbytes = sum(meta.nbytes for n in step.results if (meta := self._program.metas[n]))
        pairs = zip(self._held_nbytes, self._peaks, strict=True)
        if any(max(held[earlier:at]) + nbytes > peak for held, peak in pairs):
            return False
        for held in self._held_nbytes:
            held[earlier:at] = [each + nbytes for each in held[earlier:at]]
        return True


def _early(program: Program) -> list[int]:
    """The steps in an order in which what reduces, and what leads to it, comes as early as its operand is there."""
    makers = {n: k for k, step in enumerate(program.steps) for n in step.results}
    counts: dict[int, int] = {}
    for step in program.steps:
        for n in step.operands:
            counts[n] = counts.get(n, 0) + 1
    kept = {*program.outputs, *range(program.num_inputs)}
    early: set[int] = set()
    for k in reversed(range(len(program.steps))):
        step = program.steps[k]
        if step.op in _REDUCE:
            early.add(k)
        if k in early:
            for n in step.operands:
                if counts[n] == 1 and n not in kept:
                    maker = makers[n]
                    if _leads_to_a_sum(program, program.steps[maker], counts):
                        early.add(maker)
    places: list[int] = []
    for k, step in enumerate(program.steps):
        operands = [places[makers[n]] for n in step.operands if n in makers]
        places.append(max(operands, default=-1) if k in early else k)
    return sorted(range(len(places)), key=lambda k: (places[k], k))


def _leads_to_a_sum(program: Program, step: Eqn, counts: dict[int, int]) -> bool:
    """Whether an op may come as early as its operands: it is the last to use one that is as large as what it makes."""
    if not step.is_torch_op or not has_op(step.op) or len(step.results) != 1 or step.kwargs:
        return False
    made = program.metas[step.results[0]]
    is_cheap = is_view(step) or torch.Tag.pointwise in find_op(step.op).tags
    last = [m for n in step.operands if counts[n] == 1 and (m := program.metas[n])]
    return bool(is_cheap and made and any(m.nbytes >= made.nbytes for m in last))
