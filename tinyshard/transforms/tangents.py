"""What derivatives take: numbers and NumPy arrays as tensors, and tangents that fit their values leaf by leaf.

value 2.0           as_tensors      tensor(2.)
tangent 1           fitted          tensor(1.), in the dtype of its value: a Python number has none of its own
tangent f64[3]      fitted          DtypeError where the value is f32[3]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.signature import starred
from tinyshard.core.errors import DtypeError
from tinyshard.core.leaves import named_leaves

_NUMBERS = (bool, int, float, complex)


def as_tensors(tree: Any) -> Any:
    """The tree with copies of its numbers and NumPy arrays as tensors; everything else is left as it is."""
    return tree_map(lambda x: torch.tensor(x) if isinstance(x, (*_NUMBERS, np.ndarray, np.generic)) else x, tree)


def checked_values(what: str, tree: Any, which: str = "", *, real: bool = False) -> Any:
    """The tree as tensors of a dtype that can be differentiated by.

    Args:
        what: the function that asks, for errors.
        tree: tensors, numbers and NumPy arrays.
        which: of its arguments, for errors.
        real: whether complex numbers are refused, too.

    Raises:
        DtypeError: an integer, or no number at all.
    """
    tree = as_tensors(tree)
    for path, leaf in named_leaves(tree):
        is_tensor = isinstance(leaf, torch.Tensor)
        is_complex = is_tensor and leaf.dtype.is_complex
        if not is_tensor or not (leaf.dtype.is_floating_point or (is_complex and not real)):
            kinds = "real floating-point" if real else "floating-point or complex"
            other = "ts.vjp, whose cotangents are complex" if is_complex else "x.float()"
            raise DtypeError(
                f"{what} needs {kinds} tensors to differentiate by",
                got=f"{which}{leaf.dtype if is_tensor else type(leaf).__name__}{path and f' at {path}'}",
                try_=f"{other}; or let the function close over what is not differentiated by",
            )
    return tree


def fitted(what: str, kind: str, tree: Any, values: Any) -> Any:
    """A tree of tangents or cotangents as tensors, one for each leaf of `values`.

    Args:
        what: the function that asks, for errors.
        kind: "tangent" or "cotangent".
        tree: has the containers of `values`; each leaf the shape and dtype of its value, a Python number its dtype.
        values: a tree of tensors.

    Raises:
        DtypeError: other containers, another shape or another dtype.

    Example:
        >>> fitted("jvp", "tangent", (1,), (torch.tensor(2.0),))
        (tensor(1.),)
    """
    named, wanted = named_leaves(values), tree_flatten(values)[1]
    leaves, form = tree_flatten(tree)
    if form != wanted:
        got = f"{starred(form)} for {starred(wanted)}"
        rule = f"a {kind} has the containers of its value: a list is no tuple"
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
