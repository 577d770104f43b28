"""The layout of each operand and result of an op, by its rule: one procedure for all ops.

Each axis of the mesh cuts one factor of the rule, or none.

    mm    i k, k j -> i j +k    x cut along i by axis 0, w whole       axis 0 cuts i: nothing moves
                                x along k by 0, w along k by 0         axis 0 cuts k: the result is partial
                                x along i by 0, w along k by 0         i, k or neither: the one that sends fewest bytes

Where the operands agree, that is the assignment. Else all assignments of axes to the factors that they cut now are
compared by the bytes sent to move the operands and to reduce partial results; among equals the one of most parts wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from tinyshard.core.layout import Axes
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import Dims, ShardedVar, bytes_between
from tinyshard.partition.rule import SAME, Dim, Rule

STAYS_PARTIAL = "+"  # assigned to an axis along which the operands stay partial
Assignment = Mapping[int, str | None]  # axis -> the factor that it cuts, STAYS_PARTIAL, or None


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of an op's operands and results under an assignment of axes to factors.

    Attributes:
        operands: in the layouts that they must have.
        results: in the layouts that the op gives them, with number 0.
        cut: factor -> the axes that cut it.
    """

    operands: tuple[ShardedVar, ...]
    results: tuple[ShardedVar, ...]
    cut: Mapping[str, Axes]


def choose(
    rule: Rule, operands: Sequence[ShardedVar], results: Sequence[ShapedType], axes: Axes, *, moves: bool
) -> Layouts:
    """The layouts that the operands of a call must have, and those of its results.

    Args:
        rule: of the call.
        operands: in their present layouts.
        results: the types of the results.
        axes: sizes of the program's axes.
        moves: whether an operand that is cut along a dim that must be whole may be cut along another one in its place:
            an all_to_all sends less than a gather.
    """
    return _Choice(rule, operands, results, axes, moves).best()


class _Choice:
    """The choice of an assignment for one call; `choose` has the arguments."""

    def __init__(
        self, rule: Rule, operands: Sequence[ShardedVar], results: Sequence[ShapedType], axes: Axes, moves: bool
    ) -> None:
        self.rule = rule
        self.operands = operands
        self.results = results
        self.axes = axes
        self.moves = moves
        self.held = [_held(x, dims, rule, axes) for x, dims in zip(operands, rule.operands, strict=True)]
        self.partial = [dict(x.partial) for x in operands]

    def best(self) -> Layouts:
        """The layouts for the operands."""
        cutting = {a for x in self.operands for cut in x.dims for a in cut}
        used = sorted(cutting | {a for partial in self.partial for a in partial})
        options = {a: self._options(a) for a in used}
        if all(is_agreed for _, is_agreed in options.values()):
            agreed = self._layouts({a: factors[0] for a, (factors, _) in options.items()})
            if agreed is not None:
                return agreed
            return self._cheapest({a: [*factors, *self._others(factors)] for a, (factors, _) in options.items()})
        return self._cheapest({a: factors for a, (factors, _) in options.items()})

    def _options(self, a: int) -> tuple[list[str | None], bool]:
        """The possible assignments of an axis, and whether the operands agree on the first."""
        found: list[str | None] = list(dict.fromkeys(f for held in self.held for f, cut in held.items() if a in cut))
        is_partial = any(a in partial for partial in self.partial)
        is_refused = any(
            a in itertools.chain(*x.dims) and a not in itertools.chain(*held.values())
            for x, held in zip(self.operands, self.held, strict=True)
        )
        if not found and is_partial and self._may_stay_partial(a):
            found = [STAYS_PARTIAL]
            is_agreed = not is_refused
        else:
            is_agreed = not is_refused and (not found if is_partial else len(found) == 1)
        others = self._others(()) if is_refused and not found else []
        return [*found, None, *others], is_agreed

    def _others(self, factors: Sequence[str | None]) -> list[str | None]:
        """Factors that an axis may move to, if the op's operands move at all."""
        if not self.moves:
            return []
        ours = {f for dims in self.rule.operands for dim in dims for f in dim}
        return [f for f in self.rule.sizes if f in ours and f not in self.rule.whole and f not in factors]

    def _may_stay_partial(self, a: int) -> bool:
        """Whether the op may run on the parts of its operands along an axis, so that its results are partial too.

        A conversion rounds, wraps or clips, unless it is to a wider dtype: int8(200) and int8(100) are -56 and 100, and
        100 is not int8(200). Of a maximum only an op that moves elements keeps the parts: max(-inf, 2) + inf is inf,
        and max(-inf + inf, 2 + inf) is NaN. Integers wrap and round: of parts (1, 0) and (0, 1) the means are 0 and 0,
        and of their sum it is 1.
        """
        passes = self.rule.passes
        if passes == "unread":
            return True
        count = 1 if passes == "first" else len(self.operands)
        pairs = zip(self.operands, self.partial, strict=True)
        uses = [a in partial or a in itertools.chain(*x.dims) for x, partial in pairs]
        hows = {partial.get(a) for partial in self.partial[:count]}
        if not passes or len(hows) > 1 or any(uses[count:]) or (len(self.operands) == 1 and self._grows()):
            return False
        dtypes = {x.dtype for x in self.operands[:count]} | {r.dtype for r in self.results}
        if passes == "moved":
            return len(dtypes) == 1
        is_exact = len(dtypes) == 1 or all(widens(x.dtype, r.dtype) for x in self.operands for r in self.results)
        return hows <= {"sum", "avg"} and is_exact and all(d.is_floating_point or d.is_complex for d in dtypes)

    def _grows(self) -> bool:
        """Whether the results are larger than the operands, so that combining their parts later would send more."""
        sizes = [sum(math.prod(x.shape) for x in tensors) for tensors in (self.operands, self.results)]
        return sizes[1] > sizes[0]

    def _cheapest(self, options: Mapping[int, Sequence[str | None]]) -> Layouts:
        """The assignment that sends the fewest bytes; among equals the one of most parts."""
        has_inner = any(len(dim) > 1 for dims in (*self.rule.operands, *self.rule.results) for dim in dims)
        groups = [(a,) for a in options] if has_inner else list(_used_as_one(list(options), self.operands))
        ranked = []
        for number, factors in enumerate(itertools.product(*(options[group[0]] for group in groups))):
            assignment = {a: f for group, f in zip(groups, factors, strict=True) for a in group}
            layouts = self._layouts(assignment)
            if layouts is not None:
                parts = math.prod(self.axes[a] for a, f in assignment.items() if f)
                ranked.append((self._bytes(layouts), -parts, number, layouts))
        return min(ranked, key=lambda row: row[:3])[3]

    def _layouts(self, assignment: Assignment) -> Layouts | None:
        """The layouts under an assignment; None where its cuts are not even blocks."""
        cut: dict[str, Axes] = {}
        for f in dict.fromkeys(f for f in assignment.values() if f and f != STAYS_PARTIAL):
            ours = [a for a, g in assignment.items() if g == f]
            cut[f] = tuple(dict.fromkeys([*self._in_order_of_operands(f, ours), *ours]))
            if self.rule.sizes[f] % math.prod(self.axes[a] for a in cut[f]):
                return None
        staying = {a for a, f in assignment.items() if f == STAYS_PARTIAL}
        passed = {p for x in self.operands for p in x.partial if p[0] in staying and self.rule.passes != "unread"}
        operands, results = [], []
        for x, factors in zip(self.operands, self.rule.operands, strict=True):
            dims = self._cuts_of_dims(factors, cut)
            if dims is None:
                return None
            operands.append(replace(x, dims=dims, partial=tuple(p for p in x.partial if p[0] in staying)))
        for r, factors, combined in zip(self.results, self.rule.results, self.rule.combined, strict=True):
            dims = self._cuts_of_dims(factors, cut)
            if dims is None:
                return None
            partial = passed | {(a, how) for f, how in combined.items() if how != SAME for a in cut.get(f, ())}
            results.append(ShardedVar(0, r.shape, r.dtype, dims, tuple(sorted(partial))))
        return Layouts(tuple(operands), tuple(results), cut)

    def _in_order_of_operands(self, f: str, ours: Sequence[int]) -> Iterator[int]:
        """These axes in the order of the largest operand that they cut."""
        by_size = sorted(range(len(self.operands)), key=lambda i: -math.prod(self.operands[i].shape))
        return (a for i in by_size for a in self.held[i].get(f, ()) if a in ours)

    def _cuts_of_dims(self, factors: Sequence[Dim], cut: Mapping[str, Axes]) -> Dims | None:
        """The axes that cut each dim; None if a factor is cut, but one before it not into single elements."""
        dims = []
        for dim in factors:
            ours: Axes = ()
            is_whole_cut = True
            for f in dim:
                by = cut.get(f, ())
                if by and not is_whole_cut:
                    return None
                ours += by
                is_whole_cut = is_whole_cut and math.prod(self.axes[a] for a in by) == self.rule.sizes[f]
            dims.append(ours)
        return tuple(dims)

    def _bytes(self, layouts: Layouts) -> int:
        """Bytes that a device sends to move the operands, and at least to reduce partial results."""
        sent = sum(bytes_between(x, w, self.axes) for x, w in zip(self.operands, layouts.operands, strict=True))
        already = {a for partial in self.partial for a in partial}
        for r in layouts.results:
            parts = math.prod(self.axes[a] for a, _ in r.partial if a not in already)
            sent += r.local(self.axes).nbytes * (parts - 1) // parts
        return sent


def widens(dtype: torch.dtype, into: torch.dtype) -> bool:
    """Whether a floating-point dtype holds each number of another, and more of them."""
    is_floating = dtype.is_floating_point and into.is_floating_point
    return is_floating and dtype != into and torch.promote_types(dtype, into) == into


def _held(x: ShardedVar, dims: Sequence[Dim], rule: Rule, axes: Axes) -> dict[str, Axes]:
    """The axes that now cut each factor of an operand, without axes that cut none of them evenly."""
    held: dict[str, Axes] = {}
    for cut, dim in zip(x.dims, dims, strict=True):
        rest = cut
        for f in dim:
            if f in rule.whole:
                break
            parts = 1
            while rest and rule.sizes[f] % (parts * axes[rest[0]]) == 0:
                parts *= axes[rest[0]]
                held[f] = (*held.get(f, ()), rest[0])
                rest = rest[1:]
            if parts < rule.sizes[f]:
                break
    return held


def _used_as_one(used: Sequence[int], operands: Sequence[ShardedVar]) -> Iterator[Axes]:
    """Axes in groups: those of a group follow each other in all cuts, and are decided on together."""
    cuts = [cut for x in operands for cut in x.dims if cut]
    partial = [dict(x.partial) for x in operands]

    def follows(a: int, b: int) -> bool:
        return all((a, b) in pairwise(cut) for cut in cuts if a in cut or b in cut) and all(
            p.get(a) == p.get(b) for p in partial
        )

    left = list(used)
    while left:
        group: Axes = (left.pop(0),)
        while beside := [b for b in left if follows(group[-1], b) or follows(b, group[0])]:
            group = (*group, beside[0]) if follows(group[-1], beside[0]) else (beside[0], *group)
            left.remove(beside[0])
        yield group
