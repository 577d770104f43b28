"""A program without the steps that compute nothing new, before it is sent to the devices.

    %5 = aten.t(%4); %6 = aten.t(%5)            %4 stands for %6
    %5 = aten.t(%4); %9 = aten.t(%4)            %5 stands for %9; so of numbers without dims, whatever computes them
    %5 = aten.clone(%4)                         %4 stands for %5: no step writes into a value
    %5 = aten.reshape(%4); %6 = aten.reshape(%5)   %6 = aten.reshape(%4), if only that uses %5
    %5 = aten.squeeze(%4); %6 = all_reduce(%5); %7 = aten.unsqueeze(%6)   %7 = all_reduce(%4), as in each pmap
    in a scan: %5 = aten._to_copy(%4), of a constant of the loop: computed once, before the loop

A value of more than one number is not shared with a later step that computes it again: that may be so to save memory,
as `ts.checkpoint` does. For the same reason nothing leaves a loop that is larger than what it is made of, or gathered.
Results of the program stay as they are: each of them has memory of its own.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tinyshard.core.cache import frozen
from tinyshard.core.program import Cut, Eqn, Program, Reason, Value, find_op, has_op, is_view
from tinyshard.core.types import ShapedType

# views that keep the order of the elements
_IN_ORDER = {"aten.reshape.default", "aten.view.default", "aten.squeeze.dim", "aten.unsqueeze.default"}
_CLONE, _RESHAPE, _TRANSPOSE = "aten.clone.default", "aten.reshape.default", "aten.t.default"


def simplified(program: Program) -> Program:
    """The same program in fewer steps: its results, its exchanges and their order are the same.

    Args:
        program: of shards; its bodies are simplified, too.
    """
    if len(program.steps) < 2 and not any(step.bodies for step in program.steps):
        return program
    return _Simplifying(program).run()


@dataclass
class Written:
    """Steps as they are written, and what belongs to each."""

    steps: list[Eqn] = field(default_factory=list)
    lines: list[Any] = field(default_factory=list)
    reasons: list[Reason | None] = field(default_factory=list)

    def add(self, step: Eqn, line: Any, reason: Reason | None = None) -> None:
        """Add a step, its user's line, and why it gathers, if it does."""
        self.steps.append(step)
        self.lines.append(line)
        self.reasons.append(reason)


class _Simplifying:
    """The walk over the steps of a program, whose values keep their numbers until the end."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._metas = list(program.metas)
        self._cuts = list(program.cuts)
        self._results = set(program.outputs)
        self._uses = _uses(program.steps, program.outputs)
        self._instead: dict[int, int] = {}  # a value -> the one that stands for it
        self._makers: dict[int, Eqn] = {}  # of the values with one maker, as it is written
        self._computed: dict[Any, tuple[int, ...]] = {}
        self._written = Written()

    def run(self) -> Program:
        """The program that is written."""
        program, reasons = self._program, dict(self._program.reasons)
        lines = program.lines or (None,) * len(program.steps)
        for k, (step, line) in enumerate(zip(program.steps, lines, strict=True)):
            if step.bodies:
                step = replace(step, bodies=tuple(map(simplified, step.bodies)))
            if any(n in self._instead for n in step.operands):
                step = _of_others(step, self._now, step.results)
            if step.op == "scan" and step.kwargs["length"] > 1:
                step = self._without_constants(step)
            self._write(step, line, reasons.get(k))
        if len(self._metas) > len(program.metas):
            program = replace(program, metas=tuple(self._metas), cuts=tuple(self._cuts))
        return numbered_anew(program, self._written)

    def _now(self, number: int) -> int:
        return self._instead.get(number, number)

    def _write(self, step: Eqn, line: Any, reason: Reason | None = None) -> None:
        step = self._of_root(step)
        (result,) = step.results if len(step.results) == 1 else (-1,)
        if result >= 0 and result not in self._results:
            same = self._same(step)
            if same is not None:
                self._instead[result] = same
                return
        if self._is_shared(step):
            key = step.op, frozen((step.args, step.kwargs))
            known = self._computed.setdefault(key, step.results)
            if known is not step.results and self._results.isdisjoint(step.results):
                self._instead.update(zip(step.results, known, strict=True))
                return
        if self._is_around_a_sum(step):
            return
        self._makers.update(dict.fromkeys(step.results, step))
        self._written.add(step, line, reason)

    def _is_around_a_sum(self, step: Eqn) -> bool:
        """Let an all_reduce make the result of a view, if it reduces a view of a value of the same shape."""
        reduced = self._maker(step) if step.op in _IN_ORDER else None
        if reduced is None or reduced.op != "all_reduce" or len(reduced.args) > 1 or self._uses[reduced.results[0]] > 1:
            return False
        before = self._maker(reduced)
        if before is None or before.op not in _IN_ORDER or self._uses[before.results[0]] > 1:
            return False
        whole = before.args[0].number
        if self._metas[whole] is None or self._metas[whole] != self._metas[step.results[0]]:
            return False
        if reduced.results[0] in self._instead.values():  # it stands for a value that other steps may use
            return False
        at = next(k for k, other in enumerate(self._written.steps) if other is reduced)
        made = self._written.steps[at] = replace(reduced, args=before.args[:1], results=step.results)
        self._makers[step.results[0]] = made
        return True

    def _of_root(self, step: Eqn) -> Eqn:
        """A reshape of a reshape is one, if no other step has use for the first."""
        before = self._maker(step) if step.op == _RESHAPE else None
        if before is None or before.op != _RESHAPE or self._uses[before.results[0]] > 1:
            return step
        return replace(step, args=(before.args[0], *step.args[1:]))

    def _same(self, step: Eqn) -> int | None:
        """The value that the result of a step is equal to, if there is one."""
        if step.op == _CLONE and not step.kwargs:
            operand = step.args[0].number
            return operand if self._nbytes(self._owner(operand)) == self._nbytes(operand) else None
        if step.op == _RESHAPE and self._metas[step.args[0].number] == self._metas[step.results[0]]:
            return None if self._metas[step.results[0]] is None else step.args[0].number
        before = self._maker(step) if step.op == _TRANSPOSE else None
        return before.args[0].number if before is not None and before.op == _TRANSPOSE else None

    def _maker(self, step: Eqn) -> Eqn | None:
        return self._makers.get(step.args[0].number)

    def _owner(self, number: int) -> int:
        """The value whose memory a view keeps."""
        while (step := self._makers.get(number)) is not None and is_view(step):
            number = step.args[0].number
        return number

    def _nbytes(self, number: int) -> float:
        meta = self._metas[number]
        return math.nan if meta is None else meta.nbytes

    def _is_shared(self, step: Eqn) -> bool:
        """Whether the result may stand for that of a later step that is the same."""
        if not _is_pure(step):
            return False
        types = [self._metas[n] for n in step.results if n >= 0]
        return is_view(step) or all(t is not None and math.prod(t.shape) == 1 for t in types)

    # ---- loops --------------------------------------------------------------------------------------------------

    def _without_constants(self, scan: Eqn) -> Eqn:
        """A scan, after what its body computes from constants of the loop alone."""
        (body,) = scan.bodies
        carry, rows, constants = scan.args
        first = len(carry) + len(rows)
        outside = {first + i: x.number for i, x in enumerate(constants)}  # of the body -> of the program
        moved: dict[int, int] = {}
        kept = Written()
        reasons = dict(body.reasons)
        lines = body.lines or (None,) * len(body.steps)
        for k, (step, line) in enumerate(zip(body.steps, lines, strict=True)):
            known = {n: self._now(there) for n, there in (outside | moved).items()}
            if step.operands and all(n in known for n in step.operands) and self._may_leave(step, body.metas):
                results = tuple(self._new(body.metas[n], body.cuts[n] if body.cuts else None) for n in step.results)
                moved.update(zip(step.results, results, strict=True))
                self._write(_of_others(step, known.__getitem__, results), line)
            else:
                kept.add(step, line, reasons.get(k))
        used = _uses(kept.steps, body.outputs)
        staying = [n for n in outside if used[n]]
        entering = [n for n in moved if used[n]]
        inputs = [*range(first), *staying, *entering]
        of_program = [Value(self._now((outside | moved)[n])) for n in (*staying, *entering)]
        body = numbered_anew(body, kept, inputs)
        return replace(scan, args=(carry, rows, of_program), bodies=(body,))

    def _may_leave(self, step: Eqn, metas: Sequence[ShapedType | None]) -> bool:
        """Whether a step may be taken out of a loop: it makes no more than it takes, and asks no other device."""
        made = [metas[n] for n in step.results]
        taken = [metas[n] for n in step.operands]
        if not _is_pure(step) or -1 in step.results or None in (*made, *taken):
            return False
        return is_view(step) or sum(m.nbytes for m in made if m) <= sum(m.nbytes for m in taken if m)

    def _new(self, meta: ShapedType | None, cut: Cut | None) -> int:
        self._metas.append(meta)
        if self._cuts:
            self._cuts.append(cut)
        self._uses[len(self._metas) - 1] = 2  # how often is not known: more than once
        return len(self._metas) - 1


def _is_pure(step: Eqn) -> bool:
    """Whether a step gives the same whenever it computes the same: an op of torch's that draws and writes nothing."""
    if not step.op.startswith(("aten.", "prims.")) or not has_op(step.op):
        return False
    op = find_op(step.op)
    return torch.Tag.nondeterministic_seeded not in op.tags and not op._schema.is_mutable


def _uses(steps: Sequence[Eqn], outputs: Sequence[int]) -> Counter[int]:
    """How often each value is used."""
    uses = Counter(outputs)
    uses.update(n for step in steps for n in step.operands)
    return uses


def numbered_anew(program: Program, written: Written, inputs: Sequence[int] | None = None) -> Program:
    """The program of these steps, without those views that no step uses, and its values numbered from 0.

    Args:
        inputs: the values that are its inputs; None for those that it had.
    """
    used = set(program.outputs)
    kept: list[int] = []
    for k in reversed(range(len(written.steps))):
        step = written.steps[k]
        if used.isdisjoint(step.results) and _is_pure(step) and is_view(step):
            continue
        kept.append(k)
        used.update(step.operands)
    kept.reverse()
    if inputs is None:
        if len(kept) == len(program.steps) and all(map(operator.is_, written.steps, program.steps)):
            return program
        inputs = range(program.num_inputs)
    numbers = {number: i for i, number in enumerate(inputs)}
    for k in kept:
        for number in written.steps[k].results:
            if number >= 0:
                numbers[number] = len(numbers)
    steps = tuple(_with_numbers(written.steps[k], numbers) for k in kept)
    reasons = ((i, reason) for i, k in enumerate(kept) if (reason := written.reasons[k]) is not None)
    return replace(
        program,
        num_inputs=len(inputs),
        steps=steps,
        outputs=tuple(numbers[n] for n in program.outputs),
        metas=tuple(program.metas[n] for n in numbers),
        cuts=tuple(program.cuts[n] for n in numbers) if program.cuts else (),
        reasons=tuple(reasons),
        lines=tuple(written.lines[k] for k in kept) if program.lines else (),
    )


def _with_numbers(step: Eqn, numbers: Mapping[int, int]) -> Eqn:
    results = tuple([numbers.get(n, -1) for n in step.results])
    if results == step.results and all(numbers[n] == n for n in step.operands):
        return step
    return _of_others(step, numbers.__getitem__, results)


def _of_others(step: Eqn, number: Callable[[int], int], results: tuple[int, ...]) -> Eqn:
    """The step with other values: from the number of each operand to that of the one in its place; and results."""
    args, kwargs = (_renumbered(tree, number) for tree in (step.args, step.kwargs))
    return Eqn(step.op, args, kwargs, results, step.bodies)


def _renumbered(tree: Any, number: Callable[[int], int]) -> Any:
    if isinstance(tree, Value):
        return Value(number(tree.number))
    if isinstance(tree, list | tuple):
        return type(tree)([_renumbered(item, number) for item in tree])
    if isinstance(tree, dict):
        return {key: _renumbered(item, number) for key, item in tree.items()}
    return tree
