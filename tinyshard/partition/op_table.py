"""What tinyshard itself knows of torch's ops, where neither their schema nor DTensor's rules say it: tables.

To teach it one more op is to add a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tinyshard.partition.verified import ANY_STRIDES

aten = torch.ops.aten

# views that look at strides: on a device they run as reshape, with the shape of the shard
AS_RESHAPE = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
# whatever the sweep says: kernels that go wrong, or warn, where a tensor overlaps itself as an expanded one does
_CONTIGUOUS = {
    aten.as_strided.default,
    aten.view.dtype,
    aten.view_as_real.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.searchsorted.Tensor,
    aten.bucketize.Tensor,
}
# torch does not say so: residuals are empty where a matrix has not its full rank
SHAPED_BY_VALUES = {aten.linalg_lstsq.default}
# refuse zeros, whatever their dtype: pivots count from 1
CHECKS_VALUES = {aten.linalg_lu_solve.default}
NEEDS_WHOLE = {aten.as_strided.default}
# (input, weight, bias, running_mean, running_var, training, momentum, eps); the first does not say that it writes
BATCH_NORMS = {aten.native_batch_norm.default, aten._native_batch_norm_legit.default}
# they take no number of their operand, and what they make is no part of a sum where the operand is
FILLED = {aten.new_ones.default, aten.new_full.default}
# linear in their first operand: they may be applied to each part of a sum
SCALES = {aten.mul.Tensor, aten.div.Tensor}
ALIASES = {
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.view_as.default,
}

# lazy bits stay on the device that runs the op, and would be lost on the way to another
INSTEAD = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}


@dataclass(frozen=True, slots=True)
class Batch:
    """An op that computes each item of a batch alone.

    Attributes:
        lead: how many leading dims are the batch; a negative number leaves the last dims out.
        operands: positions of the arguments that have a batch; None for all tensors of the first one's batch shape.
        sums: positions of the results that are sums over the batch, as the gradient of a weight is.
        inner: position of the argument that lists the sizes of the dims of an item, which are no batch.
    """

    lead: int = 99
    operands: tuple[int, ...] | None = None
    sums: tuple[int, ...] = ()
    inner: int | None = None


_MATRICES = Batch(-2)
BATCHED = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: Batch(2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: Batch(2),
    aten.native_layer_norm_backward.default: Batch(operands=(0, 1, 3, 4), sums=(1, 2), inner=2),
    aten.linalg_inv_ex.default: _MATRICES,
    aten.linalg_cholesky_ex.default: _MATRICES,
    aten.linalg_qr.default: _MATRICES,
    aten._linalg_eigh.default: _MATRICES,
    aten._linalg_det.default: _MATRICES,
    aten._linalg_slogdet.default: _MATRICES,
    aten._linalg_svd.default: _MATRICES,
    aten.linalg_lu_factor_ex.default: _MATRICES,
    aten.linalg_solve_triangular.default: _MATRICES,
    aten.tril.default: _MATRICES,
    aten.triu.default: _MATRICES,
    aten._cdist_forward.default: _MATRICES,
    aten.searchsorted.Tensor: Batch(-1),
    aten._linalg_check_errors.default: Batch(),  # each device looks at what it computed
}


_META_DIFFERS = {
    aten._embedding_bag.default,
    aten._embedding_bag_backward.default,
    aten._native_batch_norm_legit_no_training.default,
}


def meta_differs(op: Any, args: tuple[Any, ...]) -> bool:
    """Whether torch's meta kernel fails, or says other shapes than the CPU's, of results that hold nothing there."""
    return op in _META_DIFFERS or (op in BATCH_NORMS and not args[5])


# they pair an element of the index with the element of the tensor at the same place along the other dims
_INDEXED = {
    aten.gather.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
}


_PUT_AT = {aten.index_put.default, aten._unsafe_index_put.default}


def has_mask(indices: Any) -> bool:
    """Whether some of these indices, which may be None, are masks: a mask stands for as many dims as it has."""
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


def not_by_rule(op: Any, args: tuple[Any, ...]) -> str:
    """Why this call of an op is not one for the op's rule, which holds for other arguments; empty where it is.

    Args:
        op: the op.
        args: its arguments; tensors among them have a `shape`.
    """
    if op is aten.embedding_dense_backward.default and len(args) > 4 and args[4]:
        return "with scale_grad_by_freq each word is counted in all blocks"
    if op in _PUT_AT and has_mask(args[1]):
        return "its rule takes a mask for an index of one dim"
    if op in _INDEXED:
        x, dim, index = args[:3]
        others = [d for d in range(len(index.shape)) if d != dim % max(len(x.shape), 1)]
        if any(index.shape[d] != x.shape[d] for d in others) or getattr(args[-1], "shape", index.shape) != index.shape:
            return "the index is smaller than the tensor: their blocks do not lie beside each other"
    return ""


_OF_TRUTH = {
    aten.any.default,
    aten.any.dim,
    aten.any.dims,
    aten.all.default,
    aten.all.dim,
    aten.all.dims,
}
_OF_BOOLS = {"sum": "max", "product": "min"}


def scales_parts(op: Any, args: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether one of `SCALES` may scale each part of a sum: by a number, and none becomes larger.

    Parts may be far larger than their sum: of 3 and -2 divided by 0 the sum is NaN, and 1 / 0 is inf. In float16 small
    numbers become 0.
    """
    factor = args[1]
    if not isinstance(factor, int | float | complex) or dtype is torch.float16:
        return False
    return abs(factor) >= 1 if op is aten.div.Tensor else abs(factor) <= 1


def combined_by(op: Any, dtype: torch.dtype, how: str) -> str:
    """How the partial results of an op are combined, where DTensor says `how`.

    It adds those of `any` and multiplies those of `all`: right of bools that are combined at once, wrong of uint8,
    of which torch makes uint8, and wrong once the bools are taken for numbers.

    Example:
        >>> combined_by(aten.any.dim, torch.uint8, "sum")
        'max'
        >>> combined_by(aten.sum.dim_IntList, torch.int64, "sum")
        'sum'
    """
    return _OF_BOOLS.get(how, how) if dtype == torch.bool or op in _OF_TRUTH else how


_DIMS = {"dim", "dims", "dim0", "dim1", "dim2"}
_ONE_DIM_MORE = {"aten::unsqueeze", "aten::stack", "aten::diag_embed"}
_SIZES_OF_VIEWED = {"input_sizes", "self_sizes", "input_size"}  # of select_backward, diagonal_backward, unfold_backward


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
    for name in ("train", "training"):
        if name in given:
            return given[name] is not False
    return given.get("dropout_p") != 0


@cache
def needs_contiguous(op: Any) -> bool:
    """Whether an op is given contiguous operands: a handle does not know the strides of its shards, so what torch asks
    of them before it calls a kernel (`x.contiguous()`) does nothing, and a kernel may read memory in the wrong order.

    Example:
        >>> needs_contiguous(aten.sin.default)
        False
        >>> needs_contiguous(aten.mkldnn_rnn_layer.default)
        True
    """
    if op in _CONTIGUOUS:
        return True
    return bool(op.namespace != "tinyshard" and op not in AS_RESHAPE and str(op) not in ANY_STRIDES)


@dataclass(frozen=True, slots=True)
class OpTraits:
    """What dispatch asks of an op at every call.

    Attributes:
        is_alias: gives its operand back.
        is_view: what it gives shares memory with its operand, in torch.
        is_mutable: changes an operand in place.
        is_batch_norm: may change the running statistics that it is given, whatever its schema says.
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


def with_positive_dims(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with negative dims counted from the front: some of DTensor's rules take -1 for another dim.

    Args:
        op: the op.
        args, kwargs: its arguments.
        ndim: rank of its first tensor. The gradient of a view takes the gradient of the view, and counts dims in
            the shape of what was viewed, which is another argument.

    Example:
        >>> with_positive_dims(aten.cumsum.default, ("x", -1), {}, 3)
        (('x', 2), {})
        >>> with_positive_dims(aten.select_backward.default, ("g", [2, 3, 4], -1, 0), {}, 2)
        (('g', [2, 3, 4], 2, 0), {})
    """
    names = [a.name for a in op._schema.arguments]
    viewed = next((v for n, v in (*zip(names, args, strict=False), *kwargs.items()) if n in _SIZES_OF_VIEWED), None)
    ndim = max((ndim if viewed is None else len(viewed)) + (op._schema.name in _ONE_DIM_MORE), 1)

    def positive(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [positive(v) for v in value]
        return value + ndim if isinstance(value, int) and -ndim <= value < 0 else value

    new = tuple(positive(v) if n in _DIMS else v for n, v in zip(names, args, strict=False))
    return new, {n: positive(v) if n in _DIMS else v for n, v in kwargs.items()}
