"""Properties of ops that neither torch's schemas nor the rules give: tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten

# views that look at strides: on a device they run as reshape, with the shape of the shard
AS_RESHAPE = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
# torch does not say so: residuals are empty where a matrix has not its full rank
SHAPED_BY_VALUES = {aten.linalg_lstsq.default}
# refuse zeros, whatever their dtype: pivots count from 1
CHECKS_VALUES = {aten.linalg_lu_solve.default}
# (input, weight, bias, running_mean, running_var, training, momentum, eps); the first does not say that it writes
BATCH_NORMS = {aten.native_batch_norm.default, aten._native_batch_norm_legit.default}
ALIASES = {
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.view_as.default,
}

# lazy bits stay on the device that runs the op, and would be lost on the way to another
INSTEAD = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}

_UNTAGGED = {aten._to_copy.default}  # compute each element alone, and torch's tags do not say so
_META_DIFFERS = {
    aten._embedding_bag.default,
    aten._embedding_bag_backward.default,
    aten._native_batch_norm_legit_no_training.default,
}


def computes_each_element(op: Any) -> bool:
    """Whether each element of the result is computed from the same element of its operands, by torch's tags or a table.

    Example:
        >>> computes_each_element(aten._to_copy.default), computes_each_element(aten.mm.default)
        (True, False)
    """
    return torch.Tag.pointwise in getattr(op, "tags", ()) or op in _UNTAGGED


def meta_differs(op: Any, args: tuple[Any, ...]) -> bool:
    """Whether torch's meta kernel fails, or gives other shapes than the CPU kernel, where results are empty on CPU."""
    return op in _META_DIFFERS or (op in BATCH_NORMS and not args[5])


def has_mask(indices: Any) -> bool:
    """Whether some of these indices, which may be None, are masks: a mask indexes as many dims as it has."""
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


def draws(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call of an op that may draw from torch's own generator does; attention without dropout does not.

    Example:
        >>> draws(aten.native_dropout.default, (torch.ones(2), 0.5, True), {})
        True
        >>> draws(aten.native_dropout.default, (torch.ones(2), 0.5, False), {})
        False
    """
    given = {a.name: a.default_value for a in op._schema.arguments}
    given.update(zip(given, args, strict=False))
    given.update(kwargs)
    for name in ("train", "training"):
        if name in given:
            return given[name] is not False
    return given.get("dropout_p") != 0


@dataclass(frozen=True, slots=True)
class OpTraits:
    """The properties of an op that dispatch needs at every call.

    Attributes:
        is_alias: gives its operand back.
        is_view: its result shares memory with its operand, in torch.
        is_mutable: changes an operand in place.
        is_batch_norm: may change the running statistics that it is passed, whatever its schema says.
        may_draw: can draw from torch's own generator.
        is_answer: gives a Python value (item, equal).
        container: list or tuple if it returns one.
        returns: how many results its schema has.
    """

    is_alias: bool
    is_view: bool
    is_mutable: bool
    is_batch_norm: bool
    may_draw: bool
    is_answer: bool
    container: type | None
    returns: int


@cache
def op_traits(op: Any) -> OpTraits:
    """Look an op up once; torch's tags and schemas are slow to read."""
    returns = op._schema.returns
    kinds = [str(r.type) for r in returns]
    return OpTraits(
        is_alias=op in ALIASES,
        is_view=any(r.alias_info is not None and not r.alias_info.is_write for r in returns),
        is_mutable=op._schema.is_mutable,
        is_batch_norm=op in BATCH_NORMS,
        may_draw=torch.Tag.nondeterministic_seeded in op.tags,
        is_answer=any("Tensor" not in kind for kind in kinds),
        container=list if kinds and "List" in kinds[0] else tuple if len(kinds) != 1 else None,
        returns=len(returns),
    )
