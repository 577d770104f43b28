"""Kernels: faster functions that devices call in place of some torch ops.

`python -m benchmarks.kernels` measures each row of the table beside torch's op. Results are equal to the last bit,
except for products, which add in another order.

Which library multiplies large matrices: `worker/products.py`.

On a processor without AVX-512 torch multiplies numbers of 16 bits one by one: a product of 256 x 256 bfloat16 takes 40
times as long as one of float32. There the operands are converted to float32, and the result is rounded once, as it is
in torch's own product. The gradient of attention is computed so too, where torch's own takes up to five times as long:
of few positions in bfloat16, of any number in float16.
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.core.program import Eqn, Value
from tinyshard.core.types import HALVES, ShapedType
from tinyshard.runtime.worker.products import is_large_product, multiplications, product

# with fewer elements the kernels are not faster
_MANY = 1 << 15
# a number beyond the tensor's dtype: NumPy warns, torch uses infinity
_GREATEST = 1 << 24
# MKL takes several times as long for a product with so few columns as for one with so few rows
_NARROW = range(2, 12)
# 64 x 64 by 64 x 64: with fewer the conversions outweigh the gain
_MANY_HALF_MULTIPLICATIONS = 1 << 18
# positions, and the widest head: of fewer the conversions outweigh the gain, of more torch's own bfloat16 is faster
_POSITIONS, _WIDEST_HEAD = range(16, 257), 64


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of the table.

    Attributes:
        fits: whether the kernel is faster and its result equals the op's, by the arguments: a `ShapedType` in place of
            each tensor.
        call: the kernel, called with the op and then its arguments. It calls the op where a tensor's memory layout
            does not suit it.
    """

    fits: Callable[..., bool]
    call: Callable[..., Tensor | tuple[Tensor, ...]]


def kernel_for(step: Eqn, metas: Sequence[ShapedType | None], op: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for a step on CPU tensors; `op` if there is no faster one.

    Args:
        step: the step.
        metas: those of all values of the program.
        op: torch's function for the step.
    """
    kernels = KERNELS.get(step.op, ())
    args = [metas[a.number] if isinstance(a, Value) else a for a in step.args]
    if step.kwargs or None in args:
        return op
    return next((partial(kernel.call, op) for kernel in kernels if kernel.fits(*args)), op)


def unless_seen(kernel: Callable[..., Any], op: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, or the op while one of the user's torch modes is active, which must see the op under its name."""
    if kernel is op:
        return op

    def call(*args: Any) -> Any:
        is_seen = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
        return (op if is_seen else kernel)(*args)

    return call


def _is_large(x: ShapedType) -> bool:
    """Whether a tensor has many elements, and no dim of size 1, whose stride may be any number."""
    return math.prod(x.shape) >= _MANY and 1 not in x.shape


def _is_row_major(x: Tensor) -> bool:
    return x.is_contiguous() and not x.is_neg()


def _is_narrow_product(x: ShapedType, y: ShapedType) -> bool:
    return _is_large(x) and x.dtype == torch.float32 and y.shape[1] in _NARROW


def _narrow_product(op: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(y.t(), x.t()).t().contiguous() if y.is_contiguous() else op(x, y)


def _is_compared(x: ShapedType, number: Any) -> bool:
    is_plain = type(number) in (int, float) and abs(number) < _GREATEST
    return is_plain and _is_large(x) and x.dtype in (torch.float32, torch.float64)


def _compared(ufunc: np.ufunc, op: Callable[..., Tensor], x: Tensor, number: float) -> Tensor:
    return torch.from_numpy(ufunc(x.numpy(), number)) if _is_row_major(x) else op(x, number)


def _is_picked_or_zero(mask: ShapedType, x: ShapedType, other: ShapedType) -> bool:
    is_picked = _is_large(x) and mask.dtype == torch.bool and mask.shape == x.shape
    return is_picked and x.dtype == other.dtype == torch.float32 and other.shape == ()


def _picked_or_zero(op: Callable[..., Tensor], mask: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """Multiply bits by 0 or 1: torch's loop branches at each element, which is expensive with an irregular mask."""
    if not all(map(_is_row_major, (mask, x, other))) or other.view(torch.int32).item():  # -0.0 has a bit set
        return op(mask, x, other)
    bits = np.multiply(x.view(torch.int32).numpy(), mask.numpy(), dtype=np.int32)
    return torch.from_numpy(bits).view(x.dtype)


@functools.cache
def has_half(dtype: torch.dtype) -> bool:
    """Whether the processor multiplies matrices of bfloat16 or float16 with instructions that oneDNN supports.

    True for any processor other than x86-64, for which torch has its own kernels.
    """
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    is_supported = getattr(torch.ops.mkldnn, name, None)
    return platform.machine() not in ("x86_64", "AMD64") or is_supported is None or bool(is_supported())


def is_slow_half_product(x: ShapedType, y: ShapedType) -> bool:
    """Whether a product is faster in float32."""
    is_half = x.dtype == y.dtype and x.dtype in HALVES
    return is_half and multiplications(x, y) >= _MANY_HALF_MULTIPLICATIONS and not has_half(x.dtype)


def half_product(op: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """`x @ y` in float32, rounded to the dtype of the operands."""
    wide = x.float(), y.float()
    return (product(op, *wide) if is_large_product(*wide) else op(*wide)).to(x.dtype)


def _is_slow_half_attention(gradient: ShapedType, query: ShapedType, *rest: Any) -> bool:
    """Whether the gradient of attention is faster in float32."""
    positions, width = query.shape[-2:]
    is_few = positions in _POSITIONS and width <= _WIDEST_HEAD
    return query.dtype in HALVES and (is_few or (query.dtype == torch.float16 and positions >= _POSITIONS.start))


def _half_attention(op: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
    """The gradients of attention in float32, rounded to the dtype of the operands.

    Args:
        op: torch's.
        args: the gradient, query, key, value, the result, and what is no half.
    """
    return tuple(x.to(args[0].dtype) for x in op(*(x.float() for x in args[:5]), *args[5:]))


_LARGE_PRODUCT = Kernel(is_large_product, product)
_HALF_PRODUCT = Kernel(is_slow_half_product, half_product)

# the first row that fits is called
KERNELS: dict[str, tuple[Kernel, ...]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (
        Kernel(_is_slow_half_attention, _half_attention),
    ),
    "aten.bmm.default": (_LARGE_PRODUCT, _HALF_PRODUCT),
    "aten.ge.Scalar": (Kernel(_is_compared, partial(_compared, np.greater_equal)),),
    "aten.gt.Scalar": (Kernel(_is_compared, partial(_compared, np.greater)),),
    "aten.le.Scalar": (Kernel(_is_compared, partial(_compared, np.less_equal)),),
    "aten.lt.Scalar": (Kernel(_is_compared, partial(_compared, np.less)),),
    "aten.mm.default": (_LARGE_PRODUCT, _HALF_PRODUCT, Kernel(_is_narrow_product, _narrow_product)),
    "aten.where.self": (Kernel(_is_picked_or_zero, _picked_or_zero),),
}


# ---- the overhead of a small op -------------------------------------------------------------------------------------

ARITHMETIC = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor")
# for these dtypes torch converts a number as it converts a tensor; for others some kernels read the number itself
_CONVERTED = (torch.float32, torch.float64, torch.int32, torch.int64)


def with_tensors_for_numbers(step: Eqn, metas: Sequence[ShapedType | None]) -> list[Any]:
    """The arguments of a step, with a tensor in place of each number that torch would convert at every call.

    Only if all tensors and the result have one dtype and the number is of its kind, so that promotion is the same.
    """
    args = list(step.args)
    known = [metas[n] for n in step.operands] + [metas[r] for r in step.results if r >= 0]
    dtypes = {None if meta is None else meta.dtype for meta in known}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if step.op not in ARITHMETIC or dtype not in _CONVERTED:
        return args
    for i, arg in enumerate(args[:2]):  # as torch converts: first to the widest dtype of its kind
        if type(arg) is int and -(1 << 63) <= arg < 1 << 63:  # for other ints the op raises
            args[i] = torch.scalar_tensor(arg, dtype=torch.int64).to(dtype)
        elif type(arg) is float and dtype.is_floating_point:
            args[i] = torch.scalar_tensor(arg, dtype=torch.float64).to(dtype)
    return args


# functions of torch's that take the arguments of these ops, in their order: to call one is faster than to call the op
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "aten._to_copy.default": partial(torch.Tensor.to, copy=True),
    "aten.bmm.default": torch.bmm,
    "aten.cat.default": torch.cat,
    "aten.clone.default": torch.clone,
    "aten.contiguous.default": torch.Tensor.contiguous,
    "aten.expand.default": torch.Tensor.expand,
    "aten.gelu.default": torch.nn.functional.gelu,
    "aten.mm.default": torch.mm,
    "aten.native_layer_norm.default": torch.native_layer_norm,
    "aten.permute.default": torch.permute,
    "aten.reshape.default": torch.reshape,
    "aten.split_with_sizes.default": torch.split_with_sizes,
    "aten.sum.default": torch.sum,
    "aten.sum.dim_IntList": torch.sum,
    "aten.t.default": torch.t,
    "aten.transpose.int": torch.transpose,
    "aten.unsqueeze.default": torch.unsqueeze,
    "aten.view.default": torch.Tensor.view,
    "aten.zeros_like.default": torch.zeros_like,
}


def short_name(op: Any, args: Sequence[Any], kwargs: Any) -> Callable[..., Any]:
    """torch's function for an op: of the table, or the one with the op's name, of lists and of tensors alone."""
    if str(op) in FUNCTIONS and kwargs.keys() <= {"dtype"}:
        return FUNCTIONS[str(op)]
    name, overload = op._schema.name.removeprefix("aten::"), op._overloadname
    is_of_tensors = all(isinstance(a, Value | torch.Tensor) for a in args) and overload in ("default", "Tensor")
    is_named_so = name.startswith("_foreach_") or (torch.Tag.pointwise in op.tags and is_of_tensors)
    return getattr(torch, name, op) if is_named_so and not kwargs else op
