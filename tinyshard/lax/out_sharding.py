"""torch ops with an argument for the sharding of their result, which operands may leave open along explicit axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.arrays.explicit import chosen
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.lax.constraint import reshard


def dot(lhs: torch.Tensor, rhs: torch.Tensor, *, out_sharding: Any = None, **others: Any) -> torch.Tensor:
    """The product of two vectors, matrices, or batches of matrices: `torch.matmul`.

    Args:
        lhs: (k,), (i, k) or (..., i, k), of any dtype that torch.matmul takes.
        rhs: (k,), (k, j) or (..., k, j), of the same dtype.
        out_sharding: how the result is cut: a PartitionSpec or a NamedSharding; None if the operands determine it.
        others: none; an argument that JAX has is refused.

    Returns:
        As torch.matmul, in this sharding.

    Raises:
        ShardingError: along Explicit axes and without out_sharding, the operands leave open how the result is cut, as
            if both are cut along k; or an out_sharding that does not fit.
        DtypeError: an argument that dot does not have.

    Communication: that of the operands' layouts. If both are cut along k, each device has a part of the sum:
    within jit a reduce_scatter for a result that is cut, else an all_reduce; outside of jit always an all_reduce.

    In JAX: only vectors and matrices; also precision= and preferred_element_type=.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> mesh = ts.make_mesh((4,), "x", axis_types=(ts.AxisType.Explicit,))
        >>> x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(mesh, ts.P(None, "x")))
        >>> ts.typeof(dot(x, x.T, out_sharding=ts.P("x")))
        'f32[8@x, 8]'
    """
    check_others(dot, others)
    return _placed(out_sharding, torch.matmul, lhs, rhs)


def einsum(subscripts: str, *operands: torch.Tensor, out_sharding: Any = None, **others: Any) -> torch.Tensor:
    """A sum of products, by the names of dims: `torch.einsum`.

    Args:
        subscripts: as for torch.einsum, "ij,jk->ik".
        operands: a tensor for each of its terms.
        out_sharding: as for `dot`.
        others: none; an argument that JAX has is refused.

    Returns:
        As torch.einsum, in this sharding.

    Raises:
        ShardingError, DtypeError: as `dot`.

    Communication: as `dot`.

    In JAX: `jax.numpy.einsum`, which has more arguments.

    Example:
        >>> einsum("ij,j->i", torch.ones(2, 3), torch.ones(3))
        tensor([3., 3.])
    """
    check_others(einsum, others)
    return _placed(out_sharding, torch.einsum, subscripts, *operands)


def reshape(
    operand: torch.Tensor,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    *,
    out_sharding: Any = None,
) -> torch.Tensor:
    """The same elements in another shape: `torch.reshape`.

    Args:
        operand: a tensor of any shape and dtype.
        new_sizes: the shape of the result.
        dimensions: None; in JAX the order of the operand's dims: call `permute` before instead.
        out_sharding: as for `dot`.

    Returns:
        A tensor of this shape, in this sharding.

    Raises:
        ShardingError: along Explicit axes and without out_sharding, blocks of the operand are not blocks of the result;
            or an out_sharding that does not fit.
        DtypeError: dimensions.

    Communication: none if blocks of the operand are blocks of the result, else the collectives that reshard it.

    Example:
        >>> reshape(torch.arange(4), (2, 2))
        tensor([[0, 1],
                [2, 3]])
    """
    if dimensions is not None:
        problem = "reshape takes the dims of its operand in their order"
        raise DtypeError(problem, got=f"dimensions={dimensions!r}", try_="x.permute(dims) before it")
    return _placed(out_sharding, torch.reshape, operand, tuple(new_sizes))


def _placed(out_sharding: Any, function: Any, *args: Any) -> torch.Tensor:
    if out_sharding is None:
        result: torch.Tensor = function(*args)
        return result
    with chosen():
        result = function(*args)
    placed: torch.Tensor = reshard(result, out_sharding)
    return placed
