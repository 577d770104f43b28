"""A scan: one traced body for all rounds, from a carry and a row of operands to the next carry and a row of results.

    body    f32[4] carry, f32[3] row, f32[3] closed over  ->  f32[4] carry, f32[2] row
    scan    f32[4], f32[10, 3], f32[3]                    ->  f32[4], f32[10, 2]

`transforms.scan_rules` has the primitive: how it is partitioned, differentiated and vmapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.tracing import Traced
from tinyshard.core.types import ShapedType


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
