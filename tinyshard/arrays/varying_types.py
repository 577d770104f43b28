"""Types by which a value may differ between devices: those of a shard_map, unless check_vma=False.

    in_specs P(), P("x")       w does not vary, v varies along x
    w * v                      pcast(w, "x") * v, which varies along x
    psum(w * v, "x")           does not

Each call of torch takes operands that vary along the same axes: one that varies along fewer gets a mark, `pcast`, whose
gradient is the sum over the axes. So the gradient of a value varies as the value does: that of w is the sum over all
devices, and that of psum's operand is psum's own, without a further sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from tinyshard.core.primitive import primitive_of
from tinyshard.core.thread_state import current_recorder, innermost

Names = frozenset[str]


class VaryingTypes:
    """Along which axes the values of a trace vary; those that it does not know vary along none.

    Args:
        arguments: of each argument of the traced function.
        axes: those of the mesh, but for those of size 1.
        mark: makes of a value, and axes, one that varies along them.
        around: the types of the trace around this one, whose values it closes over.
        least: along these all that it closes over varies, too.
    """

    mesh = None
    says_what_varies = True

    def __init__(
        self,
        arguments: Sequence[Names],
        axes: Names,
        mark: Callable[[torch.Tensor, Sequence[str]], torch.Tensor],
        around: VaryingTypes | None = None,
        least: Names = frozenset(),
    ) -> None:
        self.arguments = arguments
        self.axes = axes
        self._mark = mark
        self._around = around
        self._least = least
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def within(self, values: Sequence[Any], least: Names = frozenset()) -> VaryingTypes:
        """The types of a body that is given these values, and is a part of this trace."""
        return VaryingTypes([self.names(x) for x in values], self.axes, self._mark, self, least)

    def of(self, arguments: Sequence[Names]) -> VaryingTypes:
        """The types of a function that is traced for itself, whose arguments vary along these axes."""
        return VaryingTypes(arguments, self.axes, self._mark)

    def names(self, x: Any) -> Names:
        """The axes along which a value varies."""
        found: Names | None = self._names.get(innermost(x)) if isinstance(x, torch.Tensor) else frozenset()
        if found is None:
            return self._least if self._around is None else self._around.names(x) | self._least
        return found

    def cast(self, x: torch.Tensor, names: Names) -> torch.Tensor:
        """The value, varying along these axes, too."""
        missing = (names & self.axes) - self.names(x)
        if not missing:
            return x
        marked = self._mark(x, sorted(missing))
        numbers = current_recorder().numbers
        if x in numbers:
            numbers[marked] = None
        return marked

    def alike(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a call of torch, all varying along the axes along which any does."""
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if len(tensors) < 2 or function in _BY_IDENTITY or _has_types_of_its_own(function):
            return args, kwargs
        found = [self.names(x) for x in tensors]
        every = frozenset().union(*found)
        if all(names == every for names in found):
            return args, kwargs

        def alike(x: torch.Tensor) -> torch.Tensor:
            return self.cast(x, every) if x.is_floating_point() or x.is_complex() else x

        if not is_in_place(function):
            out = {"out": kwargs["out"]} if "out" in kwargs else {}
            args, kwargs = tree_map_only(torch.Tensor, alike, (args, kwargs))
            return args, {**kwargs, **out}
        target, rest = args[0], tree_map_only(torch.Tensor, alike, args[1:])
        marked = alike(target)
        if marked is not target:  # it stays the same tensor
            target.copy_(marked)
            self._names[innermost(target)] = every
        return (target, *rest), kwargs

    # ---- what a trace asks and tells, as of `arrays.explicit.Types` ------------------------------------------------

    def sharding_of(self, x: Any) -> None:
        """How a value is cut along explicit axes: within a shard_map there are none."""

    def note_arguments(self, stand_ins: Sequence[torch.Tensor]) -> None:
        """The stand-ins for the arguments of the traced function."""
        for x, names in zip(stand_ins, self.arguments, strict=False):
            self._names[x] = names

    def note_captured(self, stand_in: torch.Tensor, x: Any) -> None:
        """The stand-in for a value that the function closes over."""
        self._names[stand_in] = self.names(x)

    def of_results(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Along which axes the results of an op vary: names for all, or a list with those of each."""
        given = [self.names(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        primitive = primitive_of(op)
        return frozenset().union(*given) if primitive is None else primitive.varies(given, args)

    def note_results(self, results: Any, names: Any) -> None:
        """What an op made varies so."""
        leaves = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        each: Iterable[Names] = names if isinstance(names, list) else [names] * len(leaves)
        for x, found in zip(leaves, each, strict=False):
            self._names[x] = found & self.axes


def described(names: Names) -> str:
    """In words, along which axes a value varies."""
    return f"varying along {', '.join(map(repr, sorted(names)))}" if names else "the same on all devices"


def is_in_place(function: Any) -> bool:
    """Whether a function of torch writes into its first argument: `add_`, `__iadd__`, `__setitem__`."""
    name = getattr(function, "__name__", "")
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def _has_types_of_its_own(function: Any) -> bool:
    """Whether it is a primitive, or what binds one, as a loop: its body says what its operands are cast to."""
    return isinstance(function, torch._ops.HigherOrderOperator) or primitive_of(function) is not None


_BY_IDENTITY = {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward}  # of this and by that very tensor
_OPERATORS = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)
_IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in _OPERATORS)}
