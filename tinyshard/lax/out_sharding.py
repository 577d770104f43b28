"""Ops of torch's that are told how their result is cut: along explicit axes their operands may leave that open."""

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
        out_sharding: how the result is cut: a PartitionSpec or a NamedSharding; None where the operands say so.
        others: none; an argument that JAX has is refused.

    Returns:
        As torch.matmul, cut so.

    Raises:
        ShardingError: along Explicit axes and without out_sharding, the operands leave open how the result is cut, as
            where both are cut along k; or an out_sharding that does not fit.
        DtypeError: an argument that dot does not have.

    Communication: what the operands' layouts need. Where both are cut along k each device has a part of the sum:
    within jit a reduce_scatter for a result that is cut, else an all_reduce; outside of jit always an all_reduce.

    In JAX: vectors and matrices alone; also precision= and preferred_element_type=.

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
        subscripts: as torch.einsum's, "ij,jk->ik".
        operands: a tensor for each of its terms.
        out_sharding: as for `dot`.
        others: none; an argument that JAX has is refused.

    Returns:
        As torch.einsum, cut so.

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
        dimensions: None; JAX's order of the operand's dims, for which `permute` is called before.
        out_sharding: as for `dot`.

    Returns:
        A tensor of this shape, cut so.

    Raises:
        ShardingError: along Explicit axes and without out_sharding, blocks of the operand are not blocks of the result;
            or an out_sharding that does not fit.
        DtypeError: dimensions.

    Communication: none where blocks stay blocks, else what brings them there.

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
