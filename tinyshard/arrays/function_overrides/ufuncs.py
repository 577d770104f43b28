"""NumPy's functions of numbers with an Array among the operands: `np.sqrt(2.0) * x`, `x + np.ones(16)`, `np.sin(x)`.

Each becomes a torch function, as for torch tensors: the result is an Array on the devices, and it is differentiable. A
ufunc that torch lacks, or with `where=` or `out=`, runs in NumPy on values that are copied to the host. So do all other
NumPy functions, except `np.sum(x)` and similar reductions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch

from tinyshard.arrays.refusals import Immutable, refuse
from tinyshard.core.errors import DtypeError

_OPERATORS = """
add:add subtract:sub multiply:mul divide:truediv floor_divide:floordiv remainder:mod power:pow matmul:matmul
bitwise_and:and_ bitwise_or:or_ bitwise_xor:xor left_shift:lshift right_shift:rshift
less:lt less_equal:le equal:eq not_equal:ne greater:gt greater_equal:ge
negative:neg positive:pos absolute:abs invert:invert
"""
_FUNCTIONS = """
arccos:acos arccosh:acosh arcsin:asin arcsinh:asinh arctan:atan arctanh:atanh arctan2:atan2 ceil copysign cos cosh
deg2rad exp exp2 expm1 fabs:abs float_power floor fmax fmin fmod gcd heaviside hypot isfinite isinf isnan lcm ldexp
log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum nextafter
rad2deg reciprocal rint:round sign signbit sin sinh sqrt square tan tanh trunc
"""


def _table(words: str, owner: Any) -> dict[str, Callable[..., Any]]:
    pairs = (word.partition(":") for word in words.split())
    return {name: getattr(owner, other or name) for name, _, other in pairs}


# NumPy's name -> the function of Arrays
UFUNCS = _table(_OPERATORS, operator) | _table(_FUNCTIONS, torch)
_REDUCTIONS = _table("sum prod mean std var any all max:amax amax min:amin amin", torch)
_OF_REDUCTIONS = {"axis": "dim", "keepdims": "keepdim", "ddof": "correction"}  # NumPy's arguments -> torch's


def call_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `Array.__array_ufunc__`.

    Raises:
        ImmutableError: it would write into an Array.
        DtypeError: a masked array, or values that NumPy would need and that require a gradient.
    """
    if any(isinstance(x, Immutable) for x in kwargs.get("out", ())):
        refuse("out=x", "the result of the function")
    if method == "at" and isinstance(inputs[0], Immutable):
        refuse(f"np.{ufunc.__name__}.at(x, ...)", "x.index_put((i,), values, accumulate=True), or x.index_reduce")
    for x in inputs:
        refuse_mask(x)
    meaning = UFUNCS.get(ufunc.__name__)
    if meaning is not None and method == "__call__" and not kwargs:
        is_operator = meaning.__module__ == "_operator"
        return meaning(*(_operand(x, is_operator) for x in inputs))
    if any(isinstance(x, Immutable) and x.requires_grad for x in inputs):
        refuse_gradient(f"np.{ufunc.__name__}")
    return getattr(ufunc, method)(*(x.numpy() if isinstance(x, Immutable) else x for x in inputs), **kwargs)


def call_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `Array.__array_function__`: torch's for sums and similar reductions, else NumPy's.

    For these NumPy would call the method of the same name, with arguments that torch's does not take.
    """
    reduction = _REDUCTIONS.get(function.__name__) if function.__module__ == "numpy" else None
    if reduction is None:
        return function._implementation(*args, **kwargs)
    given = dict(zip(("axis",), args[1:], strict=False)) | kwargs
    if len(args) > 2 or not set(given) <= set(_OF_REDUCTIONS):
        return function(*(x.numpy() if isinstance(x, Immutable) else x for x in args), **kwargs)
    named = {_OF_REDUCTIONS[name]: value for name, value in given.items() if value is not None}
    return reduction(args[0], **({"correction": 0} if function.__name__ in ("std", "var") else {}) | named)


def refuse_gradient(what: str) -> NoReturn:
    """Raise DtypeError for values that require a gradient, which NumPy would drop."""
    raise DtypeError(
        "NumPy takes no gradient",
        got=f"{what} of an Array that requires one",
        rule="NumPy computes it on the host, from the values alone",
        try_="a function of torch in its place, or x.detach()",
    )


def refuse_mask(x: Any) -> None:
    """Raise DtypeError for a masked array: torch's tensors have no mask, and it would be dropped."""
    if isinstance(x, np.ma.MaskedArray):
        raise DtypeError(
            "a masked array has no counterpart among tensors",
            got=f"numpy.ma.MaskedArray of shape {x.shape}, {np.ma.count_masked(x)} of its values masked",
            rule="its mask would be dropped, and the values under it used",
            try_="x.filled(0) and np.ma.getmaskarray(x), as two arrays",
        )


def _operand(x: Any, is_operator: bool) -> Any:
    """NumPy scalars as Python numbers, NumPy arrays as tensors; the first operand is a tensor, as torch requires."""
    if isinstance(x, np.ndarray):
        return torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))
    x = x.item() if isinstance(x, np.generic) else x
    if is_operator or isinstance(x, torch.Tensor):
        return x
    return torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)
