"""A call: a function whose gradient is not simply that of its ops, as one op of a trace.

    checkpoint    f32[4] x  ->  f32[2]                  its gradient recomputes the function
    custom_vjp    f32[4] x  ->  f32[2]                  its gradient is another function of the user
    both          f32[4] x  ->  f32[2], saved values    where a gradient is taken

Its ops are written into the program around it. `transforms.call_rules` has the primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinyshard.compile.tracing import Traced
from tinyshard.core.types import ShapedType
from tinyshard.primitives.branching import types_of

Positions = tuple[int | None, ...]  # the position of the mapped dim in each operand


class Derivation(Protocol):
    """How the derivatives of a call are made.

    Attributes:
        name: of the function that made the call, for the text of a graph and for errors.
        is_apart: whether steps of its program are never merged with equal steps outside.
        saves: whether values are saved for the gradient when the function is called.
        tells_results: whether `tangent` makes the results too, which are those of the function then, as for a jvp.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_apart(self) -> bool: ...

    @property
    def saves(self) -> bool: ...

    @property
    def tells_results(self) -> bool: ...

    def split(self, call: Call, wanted: tuple[int, ...]) -> Split:
        """The function in two parts, for the gradients of the wanted operands."""
        ...

    def tangent(self, call: Call, moved: tuple[int, ...]) -> Call:
        """A call of the operands and of tangents of the moved ones; its last results are the tangents."""
        ...

    def batched(self, call: Call, in_axes: Positions, size: int, name: str | None) -> Derivation:
        """The derivation for the vmapped function."""
        ...


@dataclass(frozen=True)
class Split:
    """A function in two parts.

    Attributes:
        forwards: from the operands to the results, and then the values that are saved.
        backwards: from the saved values, the operands and the gradients of the continuous results to the gradients.
    """

    forwards: Traced
    backwards: Traced


@dataclass(frozen=True, eq=False)
class Call:
    """A call.

    Attributes:
        body: the function's graph; the placeholders are the operands, and the tensors that it closes over.
        derivation: how its derivatives are made.
        count: the number of the function's results; those after them are saved for its gradient.
        operands: the number of its operands that `backwards` takes, for a call that saves values.
        wanted: the operands whose gradients `backwards` computes.
        backwards: computes the gradients from the saved values; None if there are none.
        derived: what was made of it: its derivatives.
    """

    body: Traced
    derivation: Derivation
    count: int
    operands: int = 0
    wanted: tuple[int, ...] = ()
    backwards: Call | None = None
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def taken(self) -> list[ShapedType]:
        """Shape and dtype of each operand."""
        return types_of(self.body.inputs)

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each result."""
        return types_of(self.body.results)

    @property
    def flowing(self) -> list[int]:
        """The numbers of the function's results that a gradient may flow from."""
        return continuous(self.outputs[: self.count])


def continuous(metas: Sequence[ShapedType]) -> list[int]:
    """The numbers of the floating-point and complex ones."""
    return [i for i, m in enumerate(metas) if m.dtype.is_floating_point or m.dtype.is_complex]
