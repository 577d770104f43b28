"""Tangents of zero in a trace: what torch multiplies with them is zero, and not 0 * inf.

To differentiate x * 3 forwards, torch asks for the tangent of 3, a tensor of zeros without memory that is marked as
zero: its product with x is such a tensor again, whatever x is. A stand-in of a trace has no such mark, so the trace
knows these by itself.

    jvp of x * 3 at inf, along 1     1 * 3 + (zero) * inf = 3
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from tinyshard.partition.op_table import op_traits

aten = torch.ops.aten


class ZeroTangents:
    """The stand-ins of a trace that are such tensors, their views, and their products with others."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def followed(self, op: Any, args: Any, made: Any) -> Any:
        """What an op makes, or zeros in its place; called for each op, in order."""
        if op is aten._efficientzerotensor.default:
            return self._noted(made)
        if not self._known:
            return made
        operands = [isinstance(x, torch.Tensor) and x in self._known for x in args]
        if (op is aten.mul.Tensor and any(operands)) or (op is aten.div.Tensor and operands[0]):
            return self._noted(aten.zeros.default(list(made.shape), dtype=made.dtype))
        if any(operands) and op._schema.is_mutable:
            self._known.clear()  # it, or what it is a view of, may be no zero any more
        elif operands and operands[0] and op_traits(op).is_view:
            return self._noted(made)
        return made

    def _noted(self, made: Any) -> Any:
        for x in tree_leaves(made):
            self._known[x] = True
        return made
