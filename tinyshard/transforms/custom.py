"""The base of custom_vjp and custom_jvp: a function whose derivative the user defines, and the errors of that."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from tinyshard.arrays.placement import as_tensor
from tinyshard.compile.signature import Bound, Signature
from tinyshard.core.errors import DtypeError
from tinyshard.core.types import ShapedType
from tinyshard.transforms.called import Called


class Custom(Called):
    """A function whose derivative the user defines.

    Attributes:
        takes: how the derivative is passed, for errors.
    """

    takes: str

    def __init__(self, function: Callable[..., Any], nondiff: tuple[int, ...]) -> None:
        super().__init__(function, nondiff)
        self._order = nondiff
        self._rules: Any = None

    def _define(self, rules: Any) -> None:
        self._rules = rules
        self._entries = self._known_traces()

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        if self._rules is None:
            raise DtypeError(
                f"a {self.what} without a derivative is called",
                got=self._name,
                rule="its derivative is given before it is called",
                try_=f"{self._name}.{self.takes}",
            )
        if kwargs:  # the rules take arguments by position
            known = inspect.signature(self._function).bind(*args, **kwargs)
            known.apply_defaults()
            args, kwargs = known.args, known.kwargs
        if kwargs:
            raise DtypeError(
                f"a {self.what} is called with an argument that can only be given by name",
                got=", ".join(f"{key}=" for key in kwargs),
                rule="its derivative is given the arguments by position",
            )
        return super()._bind(args, kwargs)

    def _nondiff(self, signature: Signature) -> list[Any]:
        """The arguments that are not differentiated, in the order of nondiff_argnums."""
        static = {key: value for key, _, value in signature.static}
        count = len(static) + len(signature.tree.children()[0].children())
        return [static[n % count] for n in self._order]


def flat(tree: Any) -> tuple[list[torch.Tensor], TreeSpec]:
    """The leaves of a result as tensors, and its tree."""
    leaves, form = tree_flatten(tree)
    return [x if isinstance(x, torch.Tensor) else as_tensor(x) for x in leaves], form


def pair_of(rule: str, custom: Custom, returned: Any, returns: str) -> tuple[Any, Any]:
    """The result of a rule, as a pair. Raises DtypeError."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise DtypeError(
            f"{rule} of {custom._name}, a {custom.what}, does not return a pair",
            got=type(returned).__name__ + (f" of {len(returned)}" if isinstance(returned, tuple | list) else ""),
            rule=f"it returns {returns}",
        )
    return returned[0], returned[1]


def check_alike(what: str, types: Sequence[ShapedType], wanted: Sequence[ShapedType]) -> None:
    """Raise DtypeError for values whose shapes or dtypes differ from the wanted ones."""
    if list(types) != list(wanted):
        raise DtypeError(
            f"{what} returns values of another shape or dtype",
            got=", ".join(map(str, types)) or "nothing",
            rule=f"{', '.join(map(str, wanted)) or 'nothing'}, as the function has them",
        )


def check_not_closed_over(what: str, function: str, numbers: Sequence[int], count: int) -> None:
    """Refuse to differentiate with respect to a closed-over value: the function's rule does not cover it."""
    if any(i >= count for i in numbers):
        raise DtypeError(
            f"a {what} closes over a value that is differentiated",
            got=function,
            rule="its rule covers only the derivative with respect to the arguments",
            try_="the value as an argument of the function; or ts.lax.stop_gradient(value)",
        )
