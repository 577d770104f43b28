"""Shorter ways to what an op of torch's gives. Devices take them; the user's own process does not.

What comes out is the same to the last bit; but for narrow products, whose sums are taken in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.program import Meta, Step, Value, values_in

_TAKE_NUMBERS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor")
# torch converts a number to one of these as it converts a tensor; with others some kernels look at the number itself
_CONVERTED = (torch.float32, torch.float64, torch.int32, torch.int64)


def with_tensors_for_numbers(step: Step, metas: Sequence[Meta | None]) -> list[Any]:
    """The arguments of a step, with a tensor for each number that torch would convert to one at every call.

    Only where all tensors and the result are of one dtype and the number is of its kind: so it has no say in that.
    """
    args = list(step.args)
    known = [metas[v.number] for v in values_in((step.args, step.kwargs))] + [metas[r] for r in step.results if r >= 0]
    dtypes = {None if meta is None else meta.dtype for meta in known}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if step.op not in _TAKE_NUMBERS or dtype not in _CONVERTED:
        return args
    for i, arg in enumerate(args[:2]):  # as torch does it: first the widest of its kind
        if type(arg) is int and -(1 << 63) <= arg < 1 << 63:  # with others the op itself is to raise
            args[i] = torch.scalar_tensor(arg, dtype=torch.int64).to(dtype)
        elif type(arg) is float and dtype.is_floating_point:
            args[i] = torch.scalar_tensor(arg, dtype=torch.float64).to(dtype)
    return args


def shortest(op: Any, args: Sequence[Any], kwargs: Any) -> Callable[..., Any]:
    """Where all arguments are tensors, torch's function of that name: it comes to the op by a shorter way."""
    if torch.Tag.pointwise not in op.tags or kwargs or not all(isinstance(a, Value | torch.Tensor) for a in args):
        return op
    name, overload = op._schema.name.removeprefix("aten::"), op._overloadname
    return getattr(torch, name, op) if overload in ("default", "Tensor") else op


# NumPy compares in a fraction of the time
_COMPARED: dict[str, np.ufunc] = {
    "aten.ge.Scalar": np.greater_equal,
    "aten.gt.Scalar": np.greater,
    "aten.le.Scalar": np.less_equal,
    "aten.lt.Scalar": np.less,
}
# of fewer elements a call takes as long either way
_MANY = 1 << 15
# a greater number may be none of the tensor's dtype
_PLAIN = 1 << 24
# MKL multiplies by a matrix of so few columns as if it had more, but one of so few rows several times as fast
_NARROW = range(2, 12)
# each element of the result is rounded once, or, a product's, made by the same loop: the same wherever it is written
_WRITTEN: dict[str, Callable[..., Tensor]] = {
    "aten.add.Tensor": torch.add,
    "aten.div.Tensor": torch.div,
    "aten.mm.default": torch.mm,
    "aten.mul.Tensor": torch.mul,
    "aten.sub.Tensor": torch.sub,
}


def written_in(
    room: Callable[[], Tensor], op: Callable[..., Any], step: Step, metas: Sequence[Meta | None]
) -> Callable[..., Any]:
    """An op that writes its result where others are to read it, if it can; it need not be copied there then.

    Args:
        room: makes an empty tensor like the result, row-major.
        op: what performs the step.
        step: one on tensors of the CPU.
        metas: of all values of the program.
    """
    write = _WRITTEN.get(step.op)
    if write is None or step.kwargs or _is_narrow(step, metas):
        return op

    def call(*args: Any) -> Tensor:
        if write is torch.mm or all(type(arg) is Tensor and arg.is_contiguous() for arg in args):
            return write(*args, out=room())
        out: Tensor = op(*args)
        return out

    return call


def quickest(op: Callable[..., Any], step: Step, metas: Sequence[Meta | None]) -> Callable[..., Any]:
    """For narrow products, and the derivative of `clamp` and its like, quicker ways where elements are many.

    None for a shape with a 1 in it: two of these may lie alike in memory and differ in strides, which other ops go by.
    Any other op as it is.

    Args:
        op: what performs the step.
        step: one on tensors of the CPU.
        metas: of all values of the program.
    """
    known = [metas[a.number] if isinstance(a, Value) else None for a in step.args]
    if not known or known[0] is None or step.kwargs:
        return op
    if math.prod(known[0].shape) < _MANY or 1 in known[0].shape:
        return op
    if _is_narrow(step, metas):
        return lambda x, y: _narrow_product(x, y, op)
    if step.op == "aten.where.self" and _picks_or_zero(known):
        return lambda mask, x, other: _picked(mask, x, other, op)
    compare = _COMPARED.get(step.op)
    if compare and known[0].dtype in (torch.float32, torch.float64) and _is_plain(step.args[1]):
        return lambda x, number: _compared(compare, x, number, op)
    return op


def _is_narrow(step: Step, metas: Sequence[Meta | None]) -> bool:
    """Whether this multiplies many rows or long ones, of float32, by a few columns."""
    if step.op != "aten.mm.default":
        return False
    x, y = (metas[a.number] for a in step.args)
    if x is None or y is None:
        return False
    return x.dtype == torch.float32 and math.prod(x.shape) >= 2 * _MANY and y.shape[1] in _NARROW


def _narrow_product(x: Tensor, y: Tensor, op: Callable[..., Tensor]) -> Tensor:
    return torch.mm(y.t(), x.t()).t().contiguous() if y.is_contiguous() else op(x, y)


def _picks_or_zero(known: Sequence[Meta | None]) -> bool:
    """Whether these may be a mask, float32 of its shape, and a single zero."""
    mask, x, other = known
    return (
        mask is not None and x is not None and other is not None
        and mask.dtype == torch.bool and x.dtype == other.dtype == torch.float32
        and mask.shape == x.shape and other.shape == ()
    )  # fmt: skip


def _picked(mask: Tensor, x: Tensor, other: Tensor, op: Callable[..., Tensor]) -> Tensor:
    """`where`, by multiplying bits by 0 or 1: its own loop branches at each element, and guesses every other wrong."""
    if not all(map(_is_plain_in_memory, (mask, x, other))) or other.view(torch.int32).item():  # -0.0 has a bit, too
        return op(mask, x, other)
    return (x.view(torch.int32) * mask.to(torch.int32)).view(x.dtype)


def _is_plain(number: Any) -> bool:
    return type(number) in (int, float) and abs(number) < _PLAIN


def _compared(compare: np.ufunc, x: Tensor, number: float, op: Callable[..., Tensor]) -> Tensor:
    return torch.from_numpy(compare(x.numpy(), number)) if _is_plain_in_memory(x) else op(x, number)


def _is_plain_in_memory(x: Tensor) -> bool:
    return x.is_contiguous() and not x.is_neg()
