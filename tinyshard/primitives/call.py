"""A call: a function whose gradient is not the one of its ops in their order, as one op of a trace.

    checkpoint    f32[4] x  ->  f32[2]                  its gradient computes the function again
    custom_vjp    f32[4] x  ->  f32[2]                  its gradient is another function of the user's
    for both      f32[4] x  ->  f32[2], saved values    where a gradient should be taken

Its ops are written into the program around it. `transforms.call_rules` has the primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinyshard.compile.tracing import Traced
from tinyshard.core.types import ShapedType
from tinyshard.primitives.branching import types_of

Positions = tuple[int | None, ...]  # for each operand where it has the mapped dim


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
        """The same for the vmapped function."""
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
        body: the function's graph; the placeholders are the operands, and what it closes over.
        derivation: how its derivatives are made.
        count: how many of the results are the function's; those after them are saved for its gradient.
        operands: how many of its operands `backwards` takes, of a call that saves values.
        wanted: those of which `backwards` makes gradients.
        backwards: makes the gradients from what was saved; None if nothing was.
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
    """The numbers of those that are floating-point or complex."""
    return [i for i, m in enumerate(metas) if m.dtype.is_floating_point or m.dtype.is_complex]
