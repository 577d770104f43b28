"""What tinyshard itself knows of torch's ops, where neither their schema nor DTensor's rules say it: tables.

To teach it one more op is to add a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten

# views that look at strides: on a device they run as reshape, with the shape of the shard
AS_RESHAPE = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
# a handle does not know the strides of its shards, so what asks for contiguous tensors gets them here
NEEDS_CONTIGUOUS = {
    aten.as_strided.default,
    aten.view.dtype,
    aten.view_as_real.default,
    aten.view_as_complex.default,
    aten.slice_scatter.default,  # torch gives a wrong answer where the tensor overlaps itself
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.searchsorted.Tensor,  # these two warn, once a worker
    aten.bucketize.Tensor,
    aten._pdist_forward.default,
    aten._pdist_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
NEEDS_WHOLE = {aten.as_strided.default}
# (input, weight, bias, running_mean, running_var, training, momentum, eps); the first does not say that it writes
BATCH_NORMS = {aten.native_batch_norm.default, aten._native_batch_norm_legit.default}
ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.view_as.default}

# lazy bits stay on the device that runs the op, and would be lost on the way to another
INSTEAD = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}

# how many leading dims, at most, are a batch whose items are computed alone; a negative number leaves the last dims out
BATCHED = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 2,
    aten.linalg_inv_ex.default: -2,
    aten.linalg_cholesky_ex.default: -2,
    aten.linalg_qr.default: -2,
    aten._linalg_eigh.default: -2,
    aten._linalg_det.default: -2,
    aten._linalg_slogdet.default: -2,
    aten._linalg_svd.default: -2,
    aten.linalg_lu_factor_ex.default: -2,
    aten.linalg_solve_triangular.default: -2,
    aten.tril.default: -2,
    aten.triu.default: -2,
    aten._cdist_forward.default: -2,
    aten.searchsorted.Tensor: -1,
    aten._linalg_check_errors.default: 99,  # each device looks at what it computed
}

_DIMS = {"dim", "dims", "dim0", "dim1", "dim2"}
_ONE_DIM_MORE = {"aten::unsqueeze", "aten::stack"}


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1 else x * factor


# DTensor wants their bias as a partial sum; said in two ops, each has a rule
_APART: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.mm(a, b), alpha) + _scaled(c, beta),
    aten.addmv.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.mv(a, b), alpha) + _scaled(c, beta),
    aten.addbmm.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.bmm(a, b).sum(0), alpha) + _scaled(c, beta),
    aten.baddbmm.default: lambda c, a, b, *, beta=1, alpha=1: _scaled(aten.bmm(a, b), alpha) + _scaled(c, beta),
}


def decomposition(op: Any) -> Callable[..., Any] | None:
    """The function that says `op` in ops that shard better, or None."""
    return _APART.get(op)


def is_random(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call draws from torch's own generator; attention without dropout does not, though it could.

    Example:
        >>> is_random(aten.native_dropout.default, (torch.ones(2), 0.5, True), {})
        True
        >>> is_random(aten.native_dropout.default, (torch.ones(2), 0.5, False), {})
        False
    """
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    given = {a.name: a.default_value for a in op._schema.arguments}
    given.update(zip(given, args, strict=False))
    given.update(kwargs)
    if "train" in given:
        return given["train"] is not False
    return given.get("dropout_p") != 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What dispatch asks of an op at every call.

    Attributes:
        is_alias: gives its operand back.
        is_view: what it gives shares memory with its operand, in torch.
        is_mutable: changes an operand in place.
        is_batch_norm: may change the running statistics that it is given, whatever its schema says.
        may_draw: can draw from torch's own generator.
        is_answer: gives a Python value (item, equal).
        apart: the op said in other ops, or None.
        container: list or tuple if it returns one.
        returns: how many results its schema has.
    """

    is_alias: bool
    is_view: bool
    is_mutable: bool
    is_batch_norm: bool
    may_draw: bool
    is_answer: bool
    apart: Callable[..., Any] | None
    container: type | None
    returns: int


@cache
def facts(op: Any) -> Facts:
    """Look an op up once; torch's tags and schemas are slow to read."""
    returns = op._schema.returns
    kinds = [str(r.type) for r in returns]
    return Facts(
        is_alias=op in ALIASES,
        is_view=any(r.alias_info is not None and not r.alias_info.is_write for r in returns),
        is_mutable=op._schema.is_mutable,
        is_batch_norm=op in BATCH_NORMS,
        may_draw=torch.Tag.nondeterministic_seeded in op.tags,
        is_answer=any("Tensor" not in kind for kind in kinds),
        apart=decomposition(op),
        container=list if kinds and "List" in kinds[0] else tuple if len(kinds) != 1 else None,
        returns=len(returns),
    )


def with_positive_dims(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with negative dims counted from the front: some of DTensor's rules take -1 for another dim.

    Args:
        op: the op.
        args, kwargs: its arguments.
        ndim: rank of its first tensor.

    Example:
        >>> with_positive_dims(aten.cumsum.default, ("x", -1), {}, 3)
        (('x', 2), {})
    """
    ndim = max(ndim + (op._schema.name in _ONE_DIM_MORE), 1)

    def positive(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [positive(v) for v in value]
        return value + ndim if isinstance(value, int) and -ndim <= value < 0 else value

    names = [a.name for a in op._schema.arguments]
    new = tuple(positive(v) if n in _DIMS else v for n, v in zip(names, args, strict=False))
    return new, {n: positive(v) if n in _DIMS else v for n, v in kwargs.items()}
