"""Small products of 16 bits that share an operand become one, as those of attention's query, key and value do.

torch prepares each product of 16 bits anew, and that takes longer than a small product itself.

    mm(x, a), mm(x, b)       of a layer                    mm(x, cat([a, b], 1)), which is split
    mm(a, x), mm(b, x)       of its weights' gradients     mm(cat([a, b], 0), x), which is split
    mm(a, b) + mm(c, d)      of x's gradient               mm(cat([a, c], 1), cat([b, d], 0))

To join operands takes a copy; of a scan's constants, as weights are, it takes one before the loop (`simplify`). The sum
is rounded once, where each product and each addition was. A product that is computed again, as `ts.checkpoint` does to
save memory, does not join the first one. The flag `combine_nbytes` turns this off, too. XLA's pass is `DotMerger`.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from tinyshard.compile.memory import owners_in
from tinyshard.compile.simplify import Written, numbered_anew, simplified
from tinyshard.core import config
from tinyshard.core.program import Eqn, Program, Value
from tinyshard.core.types import HALVES, ShapedType

_MM, _T, _RESHAPE, _ADD = "aten.mm.default", "aten.t.default", "aten.reshape.default", "aten.add.Tensor"
# of an operand, joined or not, and of the results: of larger ones the copy, and the product itself, take their time
_SMALL_NBYTES = 1 << 18
_Sum = tuple[list[int], list[int]]  # the positions of its products; of the steps between these and the addition


def with_joined_products(program: Program) -> Program:
    """A simplified program with one product in place of several small ones, in its bodies too.

    Communication: none; the program's exchanges are those that it had.
    """
    if program.checks_nans or not config.read("combine_nbytes"):  # a NaN is found in the op that made it
        return program
    joined = _joined(program)
    return program if joined is program else simplified(joined)


def _joined(program: Program) -> Program:
    steps = tuple(map(_with_joined_bodies, program.steps))
    if any(map(operator.is_not, steps, program.steps)):
        program = replace(program, steps=steps)
    small = {k for k, step in enumerate(program.steps) if step.op == _MM and _is_small(program, step)}
    return _Joining(program, small).result() if len(small) > 1 else program


def _with_joined_bodies(step: Eqn) -> Eqn:
    bodies = tuple(map(_joined, step.bodies))
    return replace(step, bodies=bodies) if any(map(operator.is_not, bodies, step.bodies)) else step


def _is_small(program: Program, step: Eqn) -> bool:
    """Whether a product is small, and of 16 bits."""
    metas = [program.metas[n] for n in (*step.operands, *step.results)]
    return all(m is not None and m.dtype in HALVES and 0 < m.nbytes <= _SMALL_NBYTES for m in metas)


@dataclass
class _Group:
    """Products that become one.

    Attributes:
        members: their positions in the program.
        at: where the one stands.
        side: the operand that is joined, 0 or 1; None for a sum: both are joined, and the one replaces the addition.
    """

    members: list[int]
    at: int
    side: int | None


class _Joining:
    """Finds the groups of a program, and writes it with one product for each.

    Args:
        small: the positions of its small products.
    """

    def __init__(self, program: Program, small: Set[int]) -> None:
        self._program = program
        self._steps = program.steps
        self._metas: list[Any] = list(program.metas)
        self._makers = {n: k for k, step in enumerate(program.steps) for n in step.results}
        self._uses: dict[int, list[int]] = defaultdict(list)
        for k, step in enumerate(program.steps):
            for n in step.operands:
                self._uses[n].append(k)
        owners = owners_in(program)
        returned = {owners[n] for n in program.outputs}  # each has memory of its own
        self._products = [k for k in sorted(small) if returned.isdisjoint(program.steps[k].results)]
        self._groups: dict[int, _Group] = {}  # by the position of a product
        self._gone: set[int] = set()  # positions of steps that lead from products to their sum
        self._cats: dict[Any, int] = {}
        self._written = Written()

    def result(self) -> Program:
        """The program with the groups' products."""
        self._add_sums()
        for side in (1, 0):
            self._add_sharing([k for k in self._products if k not in self._groups], side)
        if not self._groups:
            return self._program
        at = {group.at: group for group in self._groups.values()}
        reasons = dict(self._program.reasons)
        for k, step in enumerate(self._steps):
            line = self._program.lines[k] if self._program.lines else None
            if k in at:
                self._write_product(at[k], line)
            elif k not in self._groups and k not in self._gone:
                self._written.add(step, line, reasons.get(k))
        new = [None] * (len(self._metas) - len(self._program.metas))
        cuts = (*self._program.cuts, *new) if self._program.cuts else ()
        return numbered_anew(replace(self._program, metas=tuple(self._metas), cuts=cuts), self._written)

    def _operands(self, members: Sequence[int], side: int) -> list[int]:
        return [self._steps[k].args[side].number for k in members]

    def _are_small(self, numbers: Sequence[int]) -> bool:
        return sum(self._metas[n].nbytes for n in numbers) <= _SMALL_NBYTES

    # ---- the groups ---------------------------------------------------------------------------------------------

    def _add_sums(self) -> None:
        """Groups of the products that an addition adds up, where there is nothing else in the sum."""
        sums: dict[int, _Sum] = {k: ([k], []) for k in self._products}
        for k, step in enumerate(self._steps):
            if step.op == _ADD and (found := self._terms(step, sums)) is not None:
                sums[k] = found
        for k, (members, leading) in reversed(sums.items()):
            is_small = all(self._are_small(self._operands(members, side)) for side in (0, 1))
            if k not in self._gone and len(members) > 1 and is_small:
                self._gone.update(leading)
                self._groups.update(dict.fromkeys(members, _Group(members, k, None)))

    def _terms(self, step: Eqn, sums: Mapping[int, _Sum]) -> _Sum | None:
        """The products whose sum an addition makes, and the steps between; None if there is something else in the sum.

        Args:
            sums: by position, those of the additions before; and each product alone.
        """
        made = self._metas[step.results[0]]
        if len(step.operands) < 2 or step.kwargs or made is None or any(self._metas[n] != made for n in step.operands):
            return None
        members: list[int] = []
        leading: list[int] = []
        for n in step.operands:
            maker = self._maker(n, leading)
            if maker not in sums:
                return None
            members += sums[maker][0]
            leading += [maker, *sums[maker][1]]
        shapes = {self._metas[self._steps[k].results[0]].shape for k in members}
        return (members, leading) if len(shapes) == 1 else None

    def _maker(self, number: int, leading: list[int]) -> int:
        """The position of the step that makes a value for one other step alone, through reshapes; -1 if none does."""
        while len(self._uses[number]) == 1 and number in self._makers and number not in self._program.outputs:
            maker = self._makers[number]
            if self._steps[maker].op != _RESHAPE:
                return maker
            leading.append(maker)
            number = self._steps[maker].operands[0]
        return -1

    def _add_sharing(self, products: Sequence[int], side: int) -> None:
        """Groups of products that share an operand; those on this side are joined."""
        last: dict[Any, _Group] = {}
        joined: dict[Any, set[int]] = defaultdict(set)  # of what shares an operand: those before the first is back
        for k in products:
            (operand,) = self._operands([k], side)
            key = self._steps[k].args[1 - side], self._is_transposed(operand)
            is_again = self._root(operand) in joined[key]
            if is_again:
                joined[key].clear()
            joined[key].add(self._root(operand))
            if is_again or key not in last or not self._joins(last[key], k, side):
                last[key] = _Group([k], k, side)
            self._groups[k] = last[key]
        for k in products:
            if len(self._groups[k].members) == 1:
                del self._groups[k]

    def _joins(self, group: _Group, k: int, side: int) -> bool:
        """Let a product join a group, if they can stand where all operands are there, and no result is needed yet."""
        members = [*group.members, k]
        results = [self._steps[m].results[0] for m in members]
        if not self._are_small(self._operands(members, side)) or not self._are_small(results):
            return False
        operand = self._root(*self._operands([k], side))
        first_use = min((use for n in results[:-1] for use in self._uses[n]), default=k + 1)
        maker = self._makers.get(operand, -1)
        if first_use > k:
            group.at = k
        elif (self._groups[maker].at if maker in self._groups else maker) < group.at:
            self._uses[operand].append(group.at)
        else:
            return False
        group.members = members
        return True

    def _is_transposed(self, number: int) -> bool:
        return number in self._makers and self._steps[self._makers[number]].op == _T

    def _root(self, number: int) -> int:
        """The value that another is a transposed view of, or itself."""
        return self._steps[self._makers[number]].operands[0] if self._is_transposed(number) else number

    # ---- what is written ----------------------------------------------------------------------------------------

    def _write_product(self, group: _Group, line: Any) -> None:
        numbers = [self._operands(group.members, side) for side in (0, 1)]
        results = tuple(self._steps[k].results[0] for k in group.members)
        if group.side is None:
            x, y = (self._write_joined(each, 1 - side, line) for side, each in enumerate(numbers))
            product = self._write(_MM, (Value(x), Value(y)), self._metas[results[0]].shape, line)
            total = self._steps[group.at].results
            self._written.add(Eqn(_RESHAPE, (Value(product), list(self._metas[total[0]].shape)), {}, total), line)
            return
        args = [Value(each[0]) for each in numbers]
        args[group.side] = Value(self._write_joined(numbers[group.side], group.side, line))
        sizes = [self._metas[n].shape[group.side] for n in results]
        shape = list(self._metas[results[0]].shape)
        shape[group.side] = sum(sizes)
        product = self._write(_MM, tuple(args), shape, line)
        split = Eqn("aten.split_with_sizes.default", (Value(product), sizes, group.side), {}, results)
        self._written.add(split, line)

    def _write_joined(self, numbers: Sequence[int], dim: int, line: Any) -> int:
        """The operands in one, along a dim. Those that are transposed are joined before, along the other."""
        is_transposed = all(map(self._is_transposed, numbers))
        numbers = list(map(self._root, numbers)) if is_transposed else numbers
        along = 1 - dim if is_transposed else dim
        key = tuple(numbers), along
        if key not in self._cats:
            shape = list(self._metas[numbers[0]].shape)
            shape[along] = sum(self._metas[n].shape[along] for n in numbers)
            self._cats[key] = self._write("aten.cat.default", (list(map(Value, numbers)), along), shape, line)
        joined = self._cats[key]
        return self._write(_T, (Value(joined),), self._metas[joined].shape[::-1], line) if is_transposed else joined

    def _write(self, op: str, args: tuple[Any, ...], shape: Sequence[int], line: Any) -> int:
        """Write a step that makes a new value, of the dtype of its first operand."""
        number, step = len(self._metas), Eqn(op, args, {}, (len(self._metas),))
        self._metas.append(ShapedType(tuple(shape), self._metas[step.operands[0]].dtype))
        self._written.add(step, line)
        return number
