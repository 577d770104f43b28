"""Vectors and matrices: the multivariate normal distribution, orthogonal matrices, points of a ball."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.errors import DtypeError
from tinyshard.core.ints import as_int
from tinyshard.core.jax_hints import check_others
from tinyshard.random.gammas import ball_of
from tinyshard.random.keys import DrawError, checked_key
from tinyshard.random.parameters import as_parameter
from tinyshard.random.sampling import checked, checked_float, checked_parameters, drawn, placed

Shape = Sequence[int]


@placed
def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
    method: str = "cholesky",
    **others: Any,
) -> Tensor:
    """Vectors of normal numbers with a mean and a covariance; they have derivatives with respect to both.

    Args:
        key: one Key.
        mean: of shape [..., n].
        cov: a positive definite matrix, of shape [..., n, n].
        shape: of the batch of vectors; by default that to which the batches of mean and cov broadcast.
        dtype: float32 (default) or float64.
        method: how a root of cov is computed: "cholesky", "eigh" or "svd"; the last two allow a semidefinite one too.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        Floats of shape (\\*shape, n), placed as by `uniform`.

    Raises:
        DtypeError: not a key, another dtype, an invalid shape.
        DrawError: several keys, another method, or a mean and a cov that do not fit each other or the shape.

    Communication: as `uniform`.

    In JAX: the signs of the vectors of "eigh" and "svd" may differ, and so the numbers.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> multivariate_normal(ts.random.key(0), torch.zeros(2), torch.eye(2), (3,)).shape
        torch.Size([3, 2])
    """
    check_others(multivariate_normal, others)
    dtype = _wide("multivariate_normal", dtype)
    if method not in _ROOTS:
        rule = f"method is one of {', '.join(map(repr, _ROOTS))}"
        raise DrawError("multivariate_normal has no such method", got=repr(method), rule=rule)
    mean, cov = (as_parameter("multivariate_normal", *x, dtype) for x in (("mean", mean), ("cov", cov)))
    count = mean.shape[-1] if mean.dim() else -1
    if cov.dim() < 2 or tuple(cov.shape[-2:]) != (count, count):
        got = f"mean of shape {tuple(mean.shape)}, cov of shape {tuple(cov.shape)}"
        raise DrawError("mean and cov do not fit each other", got=got, rule="mean is [..., n] and cov [..., n, n]")
    batches = {"mean": mean[..., 0], "cov": cov[..., 0, 0]}
    sizes = checked_parameters("multivariate_normal", shape, **batches)
    x = drawn(checked_key("multivariate_normal", key), [*sizes, count], "normal", dtype)
    return mean + (_ROOTS[method](cov) @ x.unsqueeze(-1)).squeeze(-1)


def _by_svd(cov: Tensor) -> Tensor:
    u, s, _ = torch.linalg.svd(cov)
    return u * s.sqrt().unsqueeze(-2)


def _by_eigh(cov: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)


_ROOTS: dict[str, Any] = {
    "cholesky": lambda cov: torch.linalg.cholesky_ex(cov).L,
    "eigh": _by_eigh,
    "svd": _by_svd,
}


@placed
def orthogonal(
    key: Any, n: int, shape: Shape = (), dtype: torch.dtype | None = None, m: int | None = None, **others: Any
) -> Tensor:
    """Orthogonal matrices, each as likely as any other.

    Args:
        key: one Key.
        n: the number of rows.
        shape: of the batch of matrices.
        dtype: float32 (default) or float64.
        m: the number of columns; by default n. Rows are orthonormal if there are at most m, else columns.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        Floats of shape (\\*shape, n, m), placed as by `uniform`.

    Raises:
        DtypeError: not a key, another dtype, an invalid shape, or n or m is not an int.
        DrawError: several keys, or a negative size.

    Communication: as `uniform`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> q = orthogonal(ts.random.key(0), 3)
        >>> bool(torch.allclose(q @ q.mT, torch.eye(3), atol=1e-5))
        True
    """
    check_others(orthogonal, others)
    dtype = _wide("orthogonal", dtype)
    rows = _size("orthogonal", "n", n)
    columns = rows if m is None else _size("orthogonal", "m", m)
    data, sizes = checked("orthogonal", key, shape)
    x = drawn(data, [*sizes, max(rows, columns), min(rows, columns)], "normal", dtype)
    q, r = torch.linalg.qr(x)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return q.mT if rows < columns else q


@placed
def ball(key: Any, d: int, p: Any = 2, shape: Shape = (), dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    """Points of the unit ball, each as likely as any other.

    Args:
        key: one Key.
        d: the number of dims of the space.
        p: of the norm: 2 is Euclid's; a number, or a 0-d tensor.
        shape: of the batch of points.
        dtype: float32 (default), float64, float16 or bfloat16.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        Floats of shape (\\*shape, d), placed as by `uniform`.

    Raises:
        DtypeError: not a key, another dtype, an invalid shape, or d is not an int.
        DrawError: several keys, a negative size, or a p that is not one number.

    Communication: as `gamma`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool((ball(ts.random.key(0), 3, shape=(10,)).norm(dim=-1) <= 1).all())
        True
    """
    check_others(ball, others)
    dtype = checked_float("ball", dtype)
    dims, norm = _size("ball", "d", d), as_parameter("ball", "p", p, dtype)
    checked_parameters("ball", (), p=norm)
    data, sizes = checked("ball", key, shape)
    return ball_of(data, sizes, dtype, dims, norm)


def _size(function: str, name: str, value: Any) -> int:
    number = None if isinstance(value, bool) else as_int(value)
    if number is None:
        raise DtypeError(f"{name} of {function} is an int", got=f"{value!r} ({type(value).__name__})")
    if number < 0:
        raise DrawError(f"{name} of {function} is negative", got=str(number))
    return number


def _wide(function: str, dtype: torch.dtype | None) -> torch.dtype:
    dtype = checked_float(function, dtype)
    if dtype.itemsize < 4:
        rule = "torch factorizes float32 and float64"
        raise DtypeError(f"{function} makes no {dtype}", rule=rule, try_=f"{function}(...).to({dtype})")
    return dtype
