"""Ops that compute each element from the elements at its position; those tagged `pointwise` in torch need no row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tinyshard.partition.rule import SAME, Rule, letters
from tinyshard.partition.rules.call import Call, Row, singles, tail

aten = torch.ops.aten


def elementwise(call: Call, *, whole: Iterable[int] = (), **more: Any) -> Rule:
    """Dims correspond from the last one, as in broadcasting.

    Args:
        call: the call.
        whole: dims that must be whole, counted in the largest shape.
        **more: other attributes of the rule.
    """
    rank = max(map(len, (*call.shapes, *call.result_shapes)), default=0)
    names = letters(rank)
    dims = singles(names)
    return call.rule(
        [tail(dims, len(s)) for s in call.shapes],
        [tail(dims, len(s)) for s in call.result_shapes],
        whole=[names[d] for d in whole],
        **more,
    )


def linear(call: Call) -> Rule:
    """The op maps a part of a sum to a part of the sum."""
    return elementwise(call, passes="summed")


def added(call: Call) -> Rule:
    """x + y of two tensors that are partial along the same axes; a number would be added on each device."""
    return elementwise(call, passes="summed" if len(call.operands) == 2 else "")


def scaled(call: Call) -> Rule:
    """x * number and x / number."""
    return elementwise(call, passes="summed" if scales_parts(call.op, call["other"], call.operands[0].dtype) else "")


def scales_parts(op: Any, factor: Any, dtype: torch.dtype) -> bool:
    """Whether `mul.Tensor` or `div.Tensor` may scale each part of a sum: by a number, and none becomes larger.

    Parts may be far larger than their sum: 3 / 0 + -2 / 0 is NaN, and 1 / 0 is inf. In float16 small numbers become 0.
    """
    if not isinstance(factor, int | float | complex) or dtype is torch.float16:
        return False
    return abs(factor) >= 1 if op is aten.div.Tensor else abs(factor) <= 1


def unread(call: Call) -> Rule:
    """The op uses the shape of its operand and reads no element."""
    return elementwise(call, passes="unread")


def filled(call: Call) -> Rule:
    """The op uses only the dtype of its operand: each device computes the whole."""
    names = letters(len(call.shape))
    result = [()] * len(call.result_shapes[0])
    return call.rule([singles(names)], [result], [dict.fromkeys(names, SAME)], passes="unread")


ROWS: dict[str, Row] = {
    # ops without the tag `pointwise`
    "copy complex polar elu_backward hardswish leaky_relu_backward log_sigmoid_forward": elementwise,
    "mish_backward softplus_backward rrelu_with_noise_backward floor_divide _prelu_kernel": elementwise,
    "masked_fill.Tensor rsub.Tensor isin.Tensor_Scalar _standard_gamma_grad": elementwise,
    "hardshrink_backward softshrink_backward hardsigmoid_backward hardswish_backward": elementwise,
    "hardtanh_backward log_sigmoid_backward _prelu_kernel_backward": elementwise,
    "_to_copy neg clone alias alias_copy detach lift_fresh _conj _conj_physical": linear,
    "add.Tensor sub.Tensor": added,
    "mul.Tensor div.Tensor": scaled,
    "full_like ones_like zeros_like empty_like fill.Scalar": unread,
    "new_ones new_zeros new_full new_empty": filled,
}
