"""One call of an op, as a rule reads it: its arguments by name, and the shapes of its operands and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils._pytree import tree_leaves

from tinyshard.core.types import ShapedType
from tinyshard.partition.rule import Dim, Passes, Rule, Shape, parsed, settled


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op.

    Attributes:
        op: the op.
        arguments: its arguments by name, with the defaults of those that are not passed.
        operands: its tensors, those in lists too, in order: each argument that has a shape and a dtype.
        results: the type of each result; None for a result that is None.
    """

    op: Any
    arguments: Mapping[str, Any]
    operands: tuple[Any, ...]
    results: tuple[ShapedType | None, ...]

    @classmethod
    def of(cls, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[ShapedType | None]) -> Call:
        """The call of an op with these arguments and results."""
        schema = op._schema.arguments
        given = {a.name: a.default_value for a in schema}
        given.update(zip(given, args, strict=False))
        given.update(kwargs)
        return cls(op, given, tuple(x for x in tree_leaves((args, kwargs)) if is_tensor(x)), tuple(results))

    def __getitem__(self, name: str) -> Any:
        """An argument by its name."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument by its name; None if the op does not have it."""
        return self.arguments.get(name, default)

    @property
    def shape(self) -> Shape:
        """The shape of the first operand."""
        first: Shape = self.operands[0].shape
        return first

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the operands."""
        return [x.shape for x in self.operands]

    @property
    def result_shapes(self) -> list[Shape]:
        """The shapes of the results that are not None."""
        return [r.shape for r in self.results if r is not None]

    def dims(self, name: str, rank: int | None = None) -> set[int]:
        """The dims that an argument names, counted from the front; None and [] name all.

        Args:
            name: of the argument.
            rank: the number of dims that negative ones count from; by default the first operand's.
        """
        rank = len(self.shape) if rank is None else rank
        value = self.get(name)
        named = [value] if isinstance(value, int) else value or range(rank)
        return {d % rank for d in named} if rank else set()

    def rule(
        self,
        operands: Sequence[Sequence[Dim]],
        results: Sequence[Sequence[Dim]],
        combined: Sequence[Mapping[str, str]] | None = None,
        **more: Any,
    ) -> Rule:
        """A rule for this call, from factors: `settled`."""
        combined = [{}] * len(results) if combined is None else combined
        return settled(operands, results, combined, self.shapes, self.result_shapes, **more)

    def text(self, text: str, **more: Any) -> Rule:
        """A rule for this call, from a text: `parsed`. One entry in the text describes all tensors of a list."""
        shapes: list[Shape | None] = []
        left, right = text.split("->")
        tensors = iter(left.split(","))
        written = []
        for argument in self.op._schema.arguments:
            if "Tensor" not in str(argument.type):
                continue
            value, tensor = self.arguments[argument.name], next(tensors, "*")
            each = value if isinstance(value, list | tuple) else [value]
            shapes += [None if x is None else x.shape for x in each]
            written += [tensor] * len(each)
        results = [None if r is None else r.shape for r in self.results]
        return parsed(f"{','.join(written)} -> {right}", shapes, results, **more)


Family = Callable[[Call], Rule | None]
Row = str | Family


def is_tensor(x: Any) -> bool:
    """Whether an argument is an operand: it has a shape and a dtype."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def singles(names: Sequence[str]) -> list[Dim]:
    """A dim for each factor."""
    return [(name,) for name in names]


def tail(dims: Sequence[Dim], count: int) -> list[Dim]:
    """The last `count` dims."""
    return list(dims[len(dims) - count :])


def written(text: str, *, passes: Passes = "", **arguments: str) -> Family:
    """A rule from a text.

    Args:
        text: as `partition.rule` has it.
        passes: as `Rule` has it.
        **arguments: arguments that are sizes, by the factors of their dims: `input_size="n c"`.
    """
    sizes = {name: tuple((f,) for f in dims.split()) for name, dims in arguments.items()}
    return lambda call: call.text(text, passes=passes, arguments=sizes)
