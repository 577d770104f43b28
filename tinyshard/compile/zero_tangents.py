"""Tangents of zero in a trace: a product with them is zero, and not 0 * inf.

To differentiate x * 3 forwards, torch asks for the tangent of 3, a tensor of zeros without memory that is marked as
zero: its product with any x is again such a tensor. A stand-in of a trace does not have this mark, so the trace
keeps track of them.

    jvp of x * 3 at inf, along 1     1 * 3 + (zero) * inf = 3
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from tinyshard.partition.op_table import op_traits

aten = torch.ops.aten


def propagate_zeros(known: WeakIdKeyDictionary, op: Any, args: Any, result: Any) -> Any:
    """The result of an op, or zeros in its place; called for each op in order, from the first tangent of zero on.

    Args:
        known: the stand-ins of the trace that are such tensors, their views, and their products with other tensors.
        op, args: the op, as torch asked for it.
        result: the op's result.
    """
    zero = [isinstance(x, torch.Tensor) and x in known for x in args]
    if (op is aten.mul.Tensor and any(zero)) or (op is aten.div.Tensor and zero[0]):
        result = aten.zeros.default(list(result.shape), dtype=result.dtype)
    elif any(zero) and op._schema.is_mutable:
        known.clear()  # it, or its base, may no longer be zero
        return result
    elif op is not aten._efficientzerotensor.default and not (zero and zero[0] and op_traits(op).is_view):
        return result
    for x in tree_leaves(result):
        known[x] = True
    return result
