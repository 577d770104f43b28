"""The inputs of derivatives: functions of leaves, numbers as tensors, and tangents that fit their values leaf by leaf.

value 2.0           as_tensors      tensor(2.)
tangent 1           fitted          tensor(1.), in the dtype of its value: a Python number has no dtype
tangent f64[3]      fitted          DtypeError where the value is f32[3]
{"w": w, "b": None} OfLeaves        w alone: None stays None
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.signature import starred
from tinyshard.core import tree as trees
from tinyshard.core.errors import DtypeError
from tinyshard.core.leaves import is_opaque_leaf, named_leaves, without_none

_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True)
class Kinds:
    """The kinds of arguments with respect to which a function is differentiated.

    Attributes:
        holomorphic: only complex numbers, and the function is holomorphic; else only real numbers.
        allow_int: whether integers are allowed, too, whose derivative is zero.
    """

    holomorphic: bool = False
    allow_int: bool = False


REAL = Kinds()


class OfLeaves:
    """A function of trees as one of their tensors, for torch.func, to which None is a leaf that is not a tensor.

    Args:
        what: the calling function, for errors.
        fun: the function of the arguments.
        args: trees of tensors and None.
        has_aux: whether `fun` returns (result, anything else).

    Attributes:
        leaves: the tensors.

    Raises:
        DtypeError: no leaf is a tensor.
    """

    def __init__(self, what: str, fun: Callable[..., Any], args: Sequence[Any], has_aux: bool = False) -> None:
        self.leaves, self._tree = trees.flatten(tuple(args))
        self._fun, self._has_aux = fun, has_aux
        self._results: TreeSpec | None = None
        self._aux: tuple[list[Any], TreeSpec] | None = None
        if not self.leaves:
            got = f"{starred(self._tree)}, without a tensor"
            raise DtypeError(f"{what} has nothing to differentiate with respect to", got=got)

    def __call__(self, *leaves: torch.Tensor) -> Any:
        """The tensors of the result; with has_aux (these, the tensors of anything else)."""
        out = self.value(*leaves)
        found, self._results = tree_flatten(without_none(out[0] if self._has_aux else out))
        return (tuple(found), out[1]) if self._has_aux else tuple(found)

    def value(self, *leaves: torch.Tensor) -> Any:
        """The result; with has_aux (the result, the tensors of anything else): torch.func takes only tensors there."""
        out = self._fun(*self.arguments(leaves))
        if not self._has_aux:
            return out
        if not (isinstance(out, tuple) and len(out) == 2):
            got = f"{getattr(self._fun, '__name__', 'the function')} returns {type(out).__name__}"
            raise DtypeError("with has_aux a function returns (result, anything else)", got=got)
        value, aux = out
        self._aux = tree_flatten(aux)
        return value, [x for x in self._aux[0] if isinstance(x, torch.Tensor)]

    @property
    def continuous(self) -> list[torch.Tensor]:
        """The floating-point and complex tensors."""
        return [x for x in self.leaves if is_continuous(x)]

    def of_continuous(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of all tensors as a function of the floating-point and complex ones."""

        def alone(*some: torch.Tensor) -> Any:
            given = iter(some)
            return function(*(next(given) if is_continuous(x) else x for x in self.leaves))

        return alone

    def with_zeros(self, found: Sequence[torch.Tensor], lead: Sequence[int] = ()) -> list[torch.Tensor]:
        """The derivatives `found` for the continuous tensors, and zeros for integers, with `lead` as first dims."""
        given = iter(found)
        return [next(given) if is_continuous(x) else x.new_zeros((*lead, *x.shape)) for x in self.leaves]

    def arguments(self, leaves: Sequence[Any]) -> Any:
        """The arguments with other leaves, a tuple."""
        return trees.unflatten(leaves, self._tree)

    def results(self, leaves: Sequence[Any]) -> Any:
        """The result with other leaves, after the function has run."""
        assert self._results is not None
        return tree_unflatten(leaves, self._results)

    def aux(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The second part of the result with has_aux, as a tree again."""
        assert self._aux is not None
        given = iter(tensors)
        values, form = self._aux
        return tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in values], form)


def is_continuous(x: torch.Tensor) -> bool:
    """Whether it is floating-point or complex."""
    return x.is_floating_point() or x.is_complex()


def as_tensors(tree: Any) -> Any:
    """The tree with copies of its numbers and NumPy arrays as tensors; everything else is unchanged."""
    return tree_map(lambda x: torch.tensor(x) if isinstance(x, (*_NUMBERS, np.ndarray, np.generic)) else x, tree)


def checked_values(what: str, tree: Any, which: str = "", kinds: Kinds | None = None) -> Any:
    """The tree as tensors of a dtype with respect to which a function can be differentiated.

    Args:
        what: the calling function, for errors.
        tree: tensors, numbers, NumPy arrays and None.
        which: which argument it is, for errors.
        kinds: the allowed kinds; None for real and complex numbers.

    Raises:
        DtypeError: a leaf of another kind, or not a number.
    """
    tree = as_tensors(tree)
    for path, leaf in named_leaves(without_none(tree), is_opaque_leaf):
        is_tensor = isinstance(leaf, torch.Tensor)
        is_complex = is_tensor and leaf.dtype.is_complex
        is_real = is_tensor and leaf.dtype.is_floating_point
        if kinds is None:
            fits, needed = is_real or is_complex, "floating-point or complex"
        elif kinds.holomorphic:
            fits, needed = is_complex, "complex"
        else:
            fits, needed = is_real, "real floating-point"
        if fits or (is_tensor and kinds is not None and kinds.allow_int and not is_complex and not is_real):
            continue
        cures = {
            is_tensor: "x.float(); or ",
            is_real: "holomorphic=False; or ",
            is_complex: "ts.vjp, whose cotangents are complex, or holomorphic=True; or ",
        }
        raise DtypeError(
            f"{what} needs {needed} tensors to differentiate with respect to",
            got=f"{which}{leaf.dtype if is_tensor else type(leaf).__name__}{path and f' at {path}'}",
            try_=f"{cures.get(True, '')}let the function close over values that are not differentiated",
        )
    return tree


def fitted(what: str, kind: str, tree: Any, values: Any) -> Any:
    """A tree of tangents or cotangents as tensors, one for each leaf of `values`.

    Args:
        what: the calling function, for errors.
        kind: "tangent" or "cotangent".
        tree: has the containers of `values`; each leaf the shape and dtype of its value, a Python number its dtype.
        values: a tree of tensors.

    Raises:
        DtypeError: other containers, another shape or another dtype.

    Example:
        >>> fitted("jvp", "tangent", (1,), (torch.tensor(2.0),))
        (tensor(1.),)
    """
    named, wanted = named_leaves(without_none(values)), trees.structure(values)
    leaves, form = trees.flatten(tree)
    if form != wanted:
        got = f"{starred(form)} for {starred(wanted)}"
        rule = f"a {kind} has the containers of its value: a list is not a tuple"
        raise DtypeError(f"{what}'s {kind} is not put together as its value", got=got, rule=rule)
    pairs = zip(leaves, named, strict=True)
    return tree_unflatten([_fitted(what, kind, x, path, value) for x, (path, value) in pairs], form)


def _fitted(what: str, kind: str, x: Any, path: str, value: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor):
        return x
    x = torch.tensor(x, dtype=value.dtype) if type(x) in _NUMBERS and not value.dim() else as_tensors(x)
    if not isinstance(x, torch.Tensor) or shaped_type_of(x) != shaped_type_of(value):
        of = f" for {path}" if path else ""
        given = shaped_type_of(x) if isinstance(x, torch.Tensor) else f"{x!r} ({type(x).__name__})"
        raise DtypeError(
            f"{what}'s {kind} does not fit its value",
            got=f"{given}{of}, which is {shaped_type_of(value)}"
            if of
            else f"{given} for a value {shaped_type_of(value)}",
            rule=f"a {kind} has the shape and the dtype of its value",
            try_=f"{kind}.to({value.dtype})",
        )
    return x
