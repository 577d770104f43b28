"""A while loop, and branches: control flow that depends on a value on the devices.

    while       test    f32[4] carry, f32[] closed over  ->  bool[]
                body    f32[4] carry, f32[4] closed over ->  f32[4] carry
    branches    each    f32[4], and the closed-over tensors of all  ->  f32[2]

Devices that communicate inside must have the same value. `transforms.while_rules` and `transforms.branch_rules`
have the primitives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.tracing import Traced
from tinyshard.core.errors import ShardingError
from tinyshard.core.evaluate import evaluate
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import collective
from tinyshard.primitives.collective import exchanges
from tinyshard.primitives.varying import Names, Varying


@dataclass(frozen=True, eq=False)
class While:
    """A while loop.

    Attributes:
        test: whether there is another round; its placeholders are the carry, and the tensors that it closes over.
        body: a round; its placeholders likewise.
        carried: the number of tensors in the carry.
        derived: what was made of it: its derivatives.
    """

    test: Traced
    body: Traced
    carried: int
    derived: dict[Any, Any] = field(default_factory=dict)

    def parts(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The carry, and the tensors that the test and the body close over."""
        end = len(self.test.inputs)
        return operands[: self.carried], operands[self.carried : end], operands[end:]

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each result."""
        return types_of(self.body.results)


@dataclass(frozen=True, eq=False)
class Branches:
    """Functions of the same operands; one of them is called.

    Attributes:
        branches: their graphs; the placeholders of each are the operands, and the closed-over tensors of all.
        derived: what was made of it: its derivatives.
    """

    branches: tuple[Traced, ...]
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each result."""
        return types_of(self.branches[0].results)


def types_of(nodes: Sequence[torch.fx.Node]) -> list[ShapedType]:
    """Shapes and dtypes of the results of nodes."""
    return [shaped_type_of(node.meta["val"]) for node in nodes]


def agreed(builder: Builder, number: int) -> int:
    """Make devices agree on a number or a bool that all of them have: a device that has failed contributes 0.

    Communication: an all_reduce of 4 bytes.
    """
    meta = ShapedType((), torch.int32)
    (x,) = builder.emit("aten._to_copy.default", (Value(number),), {"dtype": torch.int32}, [meta])
    return collective(builder, "all_reduce", x, tuple(range(len(builder.axes))), op="min")


_uneven: ContextVar[set[torch.fx.GraphModule] | None] = ContextVar("tinyshard_uneven", default=None)


@contextlib.contextmanager
def noting_uneven() -> Iterator[set[torch.fx.GraphModule]]:
    """A block that notes the graphs that some devices may run, and others not, as `check_same` is asked for them."""
    found: set[torch.fx.GraphModule] = set()
    token = _uneven.set(found)
    try:
        yield found
    finally:
        _uneven.reset(token)


def check_same(what: str, names: Names, graphs: Sequence[torch.fx.GraphModule]) -> None:
    """Refuse control flow in which devices with different values would reach different collectives."""
    if names and (noted := _uneven.get()) is not None:
        noted.update(graphs)
    if names and any(map(exchanges, graphs)):
        raise uneven_error(what, ", ".join(map(repr, sorted(names))))


def uneven_error(what: str, over: str) -> ShardingError:
    """The error for control flow that exchanges data, and depends on a value that differs along some axes."""
    return ShardingError(
        f"what a {what} asks for may differ between devices, and a collective follows",
        got=f"it depends on a value that differs along {over}",
        rule="devices that exchange data run the same steps",
        try_=f"a psum, pmax or pmin over {over} of it; or torch.where in place of the {what}",
    )


def settled(graph: torch.fx.GraphModule, given: Sequence[Names], carried: int, at_least: Names = frozenset()) -> Any:
    """How the results of a body differ between devices, at the fixed point where its carry differs as its results do.

    Returns:
        The names for each part of the carry, and for each result.
    """
    inputs = [*(names | at_least for names in given[:carried]), *given[carried:]]
    while True:
        outputs = evaluate(graph, Varying(), inputs)
        carry = [a | b for a, b in zip(inputs, outputs[:carried], strict=False)]
        if carry == inputs[:carried]:
            return carry, outputs
        inputs[:carried] = carry
