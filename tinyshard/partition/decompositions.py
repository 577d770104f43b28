"""Ops written in other ops, where those can be partitioned and the op itself cannot, or not correctly: two tables.

ALWAYS       the op is never partitioned itself: `mse_loss_backward` with reduction="mean" divides by the number of
             elements that it is given, which on a shard are too few
WHERE_CUT    the op along a sharded dim: `softmax` is a maximum, a sum and three elementwise ops, and each of the two
             reductions leaves partial results that one small all_reduce combines; along whole dims the op runs itself

Both are functions of whole tensors. To add an op is to add a row; the sweep of the partitioning rules tests it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tinyshard.partition.op_table import has_mask

aten = torch.ops.aten
Function = Callable[..., Any]

_MEAN, _SUM = 1, 2  # torch's numbers for reduction="mean" and reduction="sum"


def always(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Function | None:
    """The function to partition in place of this call of an op, whatever the layouts of its operands; or None."""
    if op in _ADDED_PRODUCTS:
        return _ADDED_PRODUCTS[op]
    position = _MEAN_LOSSES.get(op)
    if position is not None and _argument(args, kwargs, position, "reduction") == _MEAN:
        return _mean_of_sums(op, position)
    if op in _NLL_FORWARD and args[3] == _MEAN:
        return _mean_of_nll(op)
    if op is aten.nansum.default and args[0].shape and list(args[1:2]) == [[]]:
        return _nansum_of_all
    if op is aten.linalg_lu_solve.default and (args[0].shape[:-2] != args[2].shape[:-2] or len(args[0].shape) > 3):
        return _lu_solve
    if op is aten.index_put.default and len(args[1]) == 1 and has_mask(args[1]) and not args[2].shape:
        return _number_at_a_mask
    return None


def where_cut(op: Any) -> Function | None:
    """The function to partition in place of an op that would gather an operand; or None."""
    if op in _OF_TORCH:
        from torch._decomp import decomposition_table  # half a second: not at the start of every notebook

        return decomposition_table[op]
    return _WHERE_CUT.get(op)


def is_replaced_where_cut(op: Any) -> bool:
    """Whether `where_cut` has a function for an op."""
    return op in _OF_TORCH or op in _WHERE_CUT


def _argument(args: Sequence[Any], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(name, _MEAN)


# ---- always ---------------------------------------------------------------------------------------------------------


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    if factor == 1:
        return x
    fractional = x.is_floating_point() or x.is_complex()
    return x * (factor if fractional else int(factor))


def _added(product: Function) -> Function:
    def decomposed(
        c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> torch.Tensor:
        scaled = _scaled(product(a, b), alpha)
        c.expand(scaled.shape)  # refused as torch refuses it, where the addition would make something larger
        return scaled if beta == 0 else scaled + _scaled(c, beta)  # with 0 torch does not read c, which may be NaN

    return decomposed


# with a partial product, each device would add the other operand
_ADDED_PRODUCTS: dict[Any, Function] = {
    aten.addmm.default: _added(aten.mm),
    aten.addmv.default: _added(aten.mv),
    aten.addbmm.default: _added(lambda a, b: aten.bmm(a, b).sum(0, dtype=a.dtype)),
    aten.baddbmm.default: _added(aten.bmm),
}

# gradients of elementwise losses: op -> position of `reduction`. Their first two operands are the gradient of the
# loss and the input, whose number of elements a mean divides by.
_MEAN_LOSSES = {
    aten.mse_loss_backward.default: 3,
    aten.smooth_l1_loss_backward.default: 3,
    aten.huber_loss_backward.default: 3,
    aten.binary_cross_entropy_backward.default: 4,
    aten.soft_margin_loss_backward.default: 3,
}


@cache
def _mean_of_sums(op: Any, position: int) -> Function:
    """The gradient of a mean as the gradient of a sum, divided by the number of elements."""

    def backward(g: torch.Tensor, x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        if position < 2 + len(rest):
            rest = (*rest[: position - 2], _SUM, *rest[position - 1 :])
        else:
            kwargs = {**kwargs, "reduction": _SUM}
        gradient: torch.Tensor = op(g / x.numel(), x, *rest, **kwargs)
        return gradient

    return backward


_NLL_FORWARD = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}


@cache
def _mean_of_nll(op: Any) -> Function:
    """The mean of the losses of all rows: blocks differ in total weight, so their means cannot be averaged."""

    def forward(x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore_index: int) -> Any:
        losses, total = op(x, target, weight, _SUM, ignore_index)
        return losses / total, total

    return forward


def _nansum_of_all(x: torch.Tensor, dim: Sequence[int], *rest: Any, **kwargs: Any) -> torch.Tensor:
    """The op with its dims named: to torch's meta kernel no dims mean none, to its other kernels all."""
    return torch.nansum(x, list(range(x.dim())), *rest, **kwargs)


def _lu_solve(lu: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """The op with one batch dim, and one factorization per right side: torch 2.13 confuses those of other batches."""
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    lu, pivots, b = (
        x.expand(*batch, *x.shape[-rank:]).reshape(math.prod(batch), *x.shape[-rank:]).contiguous()
        for x, rank in ((lu, 2), (pivots, 1), (b, 2))
    )
    solved: torch.Tensor = aten.linalg_lu_solve.default(lu, pivots, b, **kwargs)
    return solved.reshape(*batch, *solved.shape[-2:])


def _number_at_a_mask(
    x: torch.Tensor, masks: Sequence[torch.Tensor], value: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """`x[mask] = value` for a mask of x's leading dims: element by element, so both keep their layouts."""
    mask = masks[0].bool()
    if mask.shape != x.shape[: mask.dim()]:  # a mask of one element would be broadcast
        raise IndexError(f"the shape of the mask {list(mask.shape)} does not match that of the tensor {list(x.shape)}")
    mask = mask.reshape([*mask.shape, *[1] * (x.dim() - mask.dim())])
    return torch.where(mask, x + value if accumulate else value.to(x.dtype), x)


# ---- along a sharded dim --------------------------------------------------------------------------------------------

# torch's own decompositions of these are of ops that reduce and ops that work element by element
_OF_TORCH = {
    aten.linalg_vector_norm.default,
    aten.logsumexp.default,
    aten._softmax.default,
    aten._log_softmax.default,
    aten._softmax_backward_data.default,
    aten._log_softmax_backward_data.default,
}


def _dims(x: torch.Tensor, dim: Any) -> list[int]:
    given = range(x.dim()) if dim is None or dim == [] or dim == () else [dim] if isinstance(dim, int) else dim
    return [d % max(x.dim(), 1) for d in given]


def _variance(x: torch.Tensor, dim: Any, correction: float | None, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    dims = _dims(x, dim)
    mean = x.mean(dims, keepdim=True)
    deviation = x - mean
    squares = deviation.real**2 + deviation.imag**2 if x.is_complex() else deviation * deviation
    count = math.prod(x.shape[d] for d in dims)
    total = squares.sum(dims, keepdim=keepdim)
    return total / max(count - (1 if correction is None else correction), 0), mean if keepdim else mean.squeeze(dims)


def _of_variance(choose: Function) -> Function:
    def decomposed(x: torch.Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        if x.dtype not in (torch.float16, torch.bfloat16):
            return choose(*_variance(x, dim, correction, keepdim))
        # as torch's: rounded once, at the end
        return tree_map(lambda y: y.to(x.dtype), choose(*_variance(x.float(), dim, correction, keepdim)))

    return decomposed


def _first(x: torch.Tensor, best: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """The least position along `dims` where x has its best value; a NaN is the best value, as in torch."""
    sizes = [n if d in dims else 1 for d, n in enumerate(x.shape)]
    positions = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
    is_best = (x == best) | (x != x)
    return torch.where(is_best, positions, math.prod(sizes)).amin(list(dims), keepdim=keepdim)


def _arg(reduce: Function) -> Function:
    def arg(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
        dims = _dims(x, dim)
        return _first(x, reduce(x, dims, keepdim=True), dims, keepdim)

    return arg


def _with_arg(reduce: Function) -> Function:
    def both(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        dims = _dims(x, dim)
        best = reduce(x, dims, keepdim=True)
        return best if keepdim else best.squeeze(dims), _first(x, best, dims, keepdim)

    return both


def _picked(x: torch.Tensor, target: torch.Tensor, weight: Any, ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where an element is its row's target, and the weight of each row; x is not indexed, so classes may be cut.

    Shapes: x [N, C, ...] or [C], target [N, ...] or []; both results broadcast against x.
    """
    dim = 1 if x.dim() > 1 else 0
    classes = torch.arange(x.shape[dim], device=x.device).reshape([-1, *[1] * (x.dim() - dim - 1)])
    rows = target.unsqueeze(dim)
    weights = x.new_ones(x.shape[dim]) if weight is None else weight
    # taken by index, for a device refuses a target that is not a class, where a comparison finds it nowhere
    factors = torch.nn.functional.embedding(torch.where(rows == ignored, 0, rows).long(), weights.unsqueeze(-1))
    return (rows == classes) & (rows != ignored), torch.where(rows == ignored, 0, factors.squeeze(-1))


def _nll_forward(x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore_index: int) -> Any:
    dim = 1 if x.dim() > 1 else 0
    is_target, factors = _picked(x, target, weight, ignore_index)
    losses = -(torch.where(is_target, x, 0).sum(dim, keepdim=True) * factors).squeeze(dim)
    if reduction == 0 and x.dim() > 1:
        return losses, x.new_zeros(())
    total = factors.sum()
    return losses.sum() / total if reduction == _MEAN else losses.sum(), total


def _nll_backward(
    g: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    is_target, factors = _picked(x, target, weight, ignore_index)
    if reduction == _MEAN:
        g = g / total_weight
    elif reduction == 0 and x.dim() > 1:
        g = g.unsqueeze(1)
    return torch.where(is_target, -g * factors, 0)


_WHERE_CUT: dict[Any, Function] = {
    aten.unbind.int: lambda x, dim=0: [x.select(dim, i) for i in range(x.shape[dim])],
    aten.var.correction: _of_variance(lambda variance, mean: variance),
    aten.std.correction: _of_variance(lambda variance, mean: variance.sqrt()),
    aten.var_mean.correction: _of_variance(lambda variance, mean: (variance, mean)),
    aten.std_mean.correction: _of_variance(lambda variance, mean: (variance.sqrt(), mean)),
    aten.argmax.default: _arg(torch.amax),
    aten.argmin.default: _arg(torch.amin),
    aten.max.dim: _with_arg(torch.amax),
    aten.min.dim: _with_arg(torch.amin),
    aten.nll_loss_forward.default: _nll_forward,
    aten.nll_loss2d_forward.default: _nll_forward,
    aten.nll_loss_backward.default: _nll_backward,
    aten.nll_loss2d_backward.default: _nll_backward,
}
