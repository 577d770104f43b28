"""A scan: one traced body for all rounds, from a carry and a row of operands to the next carry and a row of results.

    body    f32[4] carry, f32[3] row, f32[3] closed over  ->  f32[4] carry, f32[2] row
    scan    f32[4], f32[10, 3], f32[3]                    ->  f32[4], f32[10, 2]

`transforms.scan_rules` has the primitive: how it is partitioned, differentiated and vmapped.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.tracing import Traced
from tinyshard.core.types import ShapedType

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Scan:
    """A scan.

    Attributes:
        body: its graph; the placeholders are the carry, a row of each operand, and the tensors that it closes over.
        carried: the number of tensors in the carry.
        rows: the number of operands that are scanned by rows.
        length: the number of rounds.
        reverse: whether the last row comes first.
        keeps: whether the last results are the carries at the start of each round, for a gradient.
        derived: what was made of it: its derivatives.
    """

    body: Traced
    carried: int
    rows: int
    length: int
    reverse: bool
    keeps: bool = False
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def taken(self) -> list[ShapedType]:
        """Shape and dtype of each input of the body."""
        return [shaped_type_of(node.meta["val"]) for node in self.body.inputs]

    @property
    def given(self) -> list[ShapedType]:
        """Shape and dtype of each result of the body."""
        return [shaped_type_of(node.meta["val"]) for node in self.body.results]

    def parts(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The carry, the operands that are scanned by rows, and the tensors that the body closes over."""
        end = self.carried + self.rows
        return operands[: self.carried], operands[self.carried : end], operands[end:]

    def stacked(self, row: ShapedType) -> ShapedType:
        """Shape and dtype of all rows."""
        return ShapedType((self.length, *row.shape), row.dtype)

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each result."""
        given = self.given
        return [*given[: self.carried], *map(self.stacked, given[self.carried :])]

    def used(self, node: torch.fx.Node) -> tuple[int, ...]:
        """The results that a program has: the carry, and the rows that a graph with this scan as a node uses.

        Without the others: the gradient of a scan is a scan that could be differentiated again, and would return the
        carry of each round for that.
        """
        taken = {user.args[1] for user in node.users if user.target is operator.getitem}
        count = len(self.body.results)
        return tuple(i for i in range(count) if i < self.carried or i in taken or len(taken) < len(node.users))

    def with_gaps(self, used: Sequence[int], results: Iterable[T]) -> list[T | None]:
        """All results, from the used ones: None for each other."""
        found = dict(zip(used, results, strict=True))
        return [found.get(i) for i in range(len(self.body.results))]
