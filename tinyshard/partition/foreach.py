"""Ops on lists of tensors, `torch._foreach_add`, and the op that each computes of one tensor.

torch's optimizers compute with them where they are asked for `foreach=True`. They are partitioned tensor by tensor, so
each keeps the layout that it has; `compile.combine` makes one step of what is small enough. Of an op of lists without a
row here every operand is gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

aten = torch.ops.aten

# op of lists -> op of one tensor; of those with one number for all, the one with a Scalar comes first
FOREACH: dict[Any, Any] = {
    aten._foreach_add.List: aten.add.Tensor,
    aten._foreach_add.Scalar: aten.add.Tensor,
    aten._foreach_sub.List: aten.sub.Tensor,
    aten._foreach_sub.Scalar: aten.sub.Tensor,
    aten._foreach_mul.List: aten.mul.Tensor,
    aten._foreach_mul.Scalar: aten.mul.Tensor,
    aten._foreach_mul.Tensor: aten.mul.Tensor,
    aten._foreach_div.List: aten.div.Tensor,
    aten._foreach_div.Scalar: aten.div.Tensor,
    aten._foreach_div.Tensor: aten.div.Tensor,
    aten._foreach_pow.Scalar: aten.pow.Tensor_Scalar,
    aten._foreach_pow.ScalarAndTensor: aten.pow.Scalar,
    aten._foreach_lerp.Scalar: aten.lerp.Scalar,
    aten._foreach_addcmul.Scalar: aten.addcmul.default,
    aten._foreach_addcdiv.Scalar: aten.addcdiv.default,
    aten._foreach_maximum.List: aten.maximum.default,
    aten._foreach_abs.default: aten.abs.default,
    aten._foreach_sign.default: aten.sign.default,
    aten._foreach_copy.default: aten.copy.default,
    aten._foreach_neg.default: aten.neg.default,
    aten._foreach_sqrt.default: aten.sqrt.default,
    aten._foreach_reciprocal.default: aten.reciprocal.default,
}
SINGLE = frozenset(map(str, FOREACH.values()))


def one_by_one(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """The calls of the op of one tensor that a call of one of FOREACH is.

    Example:
        >>> calls = one_by_one(aten._foreach_mul.Scalar, ([1, 2], 0.5), {})
        >>> [(str(op), args) for op, args, _ in calls]
        [('aten.mul.Tensor', (1, 0.5)), ('aten.mul.Tensor', (2, 0.5))]
    """
    single = FOREACH[op]
    most = sum(not argument.kwarg_only for argument in single._schema.arguments)
    if len(args) > most:  # `value` of addcmul and addcdiv
        args, kwargs = args[:most], {**kwargs, op._schema.arguments[most].name: args[most]}
    number = next(len(a) for a in args if isinstance(a, list | tuple))
    return ((single, tuple(a[i] if isinstance(a, list | tuple) else a for a in args), kwargs) for i in range(number))


def _lists() -> dict[tuple[str, tuple[bool, ...]], tuple[str, frozenset[str]]]:
    found: dict[tuple[str, tuple[bool, ...]], tuple[str, frozenset[str]]] = {}
    for op, single in FOREACH.items():
        most = sum(not argument.kwarg_only for argument in single._schema.arguments)
        given = op._schema.arguments
        places = tuple(str(argument.type) == "List[Tensor]" for argument in given[:most])
        found.setdefault((str(single), places), (str(op), frozenset(argument.name for argument in given[most:])))
    return found


# op of one tensor, and for each argument whether it is a tensor -> the op of lists that stands for several such calls,
# and the keyword arguments that it takes
OF_LISTS = _lists()
