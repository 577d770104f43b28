"""Distributions of floats. Each is a formula on uniform numbers, the same as JAX's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.jax_hints import check_others
from tinyshard.primitives import floats
from tinyshard.primitives.floats import rounded
from tinyshard.random.keys import DrawError
from tinyshard.random.sampling import (
    check_range,
    checked,
    checked_float,
    checked_parameters,
    drawn,
    number_of,
    placed,
    unit,
)

Shape = Sequence[int]


def _of_floats(formula: Callable[[Tensor, list[int], torch.dtype], Tensor]) -> Callable[..., Tensor]:
    """The public function of a formula of a key's words, with the common checks and arguments."""

    def draw(key: Any, shape: Shape = (), dtype: torch.dtype | None = None, **others: Any) -> Tensor:
        check_others(draw, others)
        dtype = checked_float(draw.__name__, dtype)
        return formula(*checked(draw.__name__, key, shape), dtype)

    draw.__name__ = draw.__qualname__ = formula.__name__
    doc = inspect.cleandoc(formula.__doc__ or "")  # Python 3.13 removes the indent itself
    first, _, rest = doc.partition("\n\n")
    draw.__doc__ = f"{first}\n\n{_ARGUMENTS}{rest}"
    return placed(draw)


_ARGUMENTS = """Args:
    key: one Key.
    shape: of the result.
    dtype: float32 (default), float64, float16 or bfloat16.
    out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

Returns:
    As `uniform`.

Raises:
    DtypeError, DrawError: as `uniform`.

Communication: as `uniform`.

"""


@placed
def uniform(
    key: Any, shape: Shape = (), dtype: torch.dtype | None = None, minval: Any = 0.0, maxval: Any = 1.0, **others: Any
) -> Tensor:
    """Uniform numbers of [minval, maxval).

    Args:
        key: one Key.
        shape: of the result.
        dtype: float32 (default), float64, float16 or bfloat16.
        minval, maxval: numbers, or tensors that broadcast to the shape; these have gradients.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        An uncommitted Array; a plain tensor if torch.func.vmap maps a plain key.

    Raises:
        DtypeError: not a key, not a float dtype, an invalid shape.
        DrawError: several keys, a range that is empty or wider than the dtype.

    Communication: none; if the result is cut, each device makes its block. Without threefry_partitionable the
    devices exchange words.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> uniform(ts.random.key(42), (3,))
        Array([0.48870957, 0.6797972 , 0.6162715 ], dtype=float32)
    """
    check_others(uniform, others)
    dtype = checked_float("uniform", dtype)
    check_range("uniform", minval, maxval, torch.finfo(dtype).max)
    low, high = number_of(minval), number_of(maxval)
    if low is None or high is None:
        checked_parameters("uniform", shape, minval=minval, maxval=maxval)
    data, sizes = checked("uniform", key, shape)
    if low is not None and high is not None:
        return unit(data, sizes, dtype, low, high)
    return floats.scaled(unit(data, sizes, dtype), minval, maxval)


@_of_floats
def normal(data: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Numbers of the standard normal distribution.

    In JAX: complex dtypes too; the last bits can differ, by less than 2e-6.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> normal(ts.random.key(0), (2,))
        Array([1.6226422, 2.0252647], dtype=float32)
    """
    return drawn(data, sizes, "normal", dtype)


@placed
def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Shape | None = None, dtype: torch.dtype | None = None, **others: Any
) -> Tensor:
    """Normal numbers between two bounds.

    Args:
        key: one Key.
        lower, upper: the bounds: numbers or tensors; -inf and inf for none.
        shape: of the result; by default that of the bounds.
        dtype: float32 (default), float64, float16 or bfloat16.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        Numbers of the open interval, placed as by `uniform`.

    Raises:
        DtypeError, DrawError: as `uniform`, or bounds that do not fit the shape.

    Communication: as `uniform`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool((truncated_normal(ts.random.key(0), -1.0, 1.0, (100,)).abs() < 1).all())
        True
    """
    check_others(truncated_normal, others)
    dtype = checked_float("truncated_normal", dtype)
    check_range("truncated_normal", lower, upper)
    shape = checked_parameters("truncated_normal", shape, lower=lower, upper=upper)
    data, sizes = checked("truncated_normal", key, shape)
    low, high = number_of(lower), number_of(upper)
    root = math.sqrt(2)
    if low is not None and high is not None:
        ends = [rounded(math.erf(rounded(x / root, dtype)), dtype) for x in (low, high)]
        u = unit(data, sizes, dtype, *ends)
    else:
        bounds = [torch.as_tensor(x).to(dtype) for x in (lower, upper)]
        u = floats.scaled(unit(data, sizes, dtype), *(torch.erf(x / root) for x in bounds))
    out = floats.erfinv(u) * rounded(root, dtype)
    inside = [torch.as_tensor(x, dtype=None if isinstance(x, Tensor) else dtype).to(dtype) for x in (lower, upper)]
    inf = torch.full((), math.inf, dtype=dtype)
    lowest, highest = torch.nextafter(inside[0].detach(), inf), torch.nextafter(inside[1].detach(), -inf)
    return torch.minimum(torch.maximum(out, lowest), highest)


@_of_floats
def exponential(data: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Numbers of the exponential distribution of rate 1.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> exponential(ts.random.key(42), (2,))
        Array([0.6708175, 1.1388006], dtype=float32)
    """
    return -torch.log1p(-unit(data, sizes, dtype))


@placed
def gumbel(key: Any, shape: Shape = (), dtype: torch.dtype | None = None, mode: str = "low", **others: Any) -> Tensor:
    """Numbers of the Gumbel distribution.

    Args:
        key: one Key.
        shape: of the result.
        dtype: float32 (default), float64, float16 or bfloat16.
        mode: "low", or "high" to draw twice as many bits: values above 16 then occur.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        As `uniform`.

    Raises:
        DtypeError, DrawError: as `uniform`, or another mode.

    Communication: as `uniform`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> gumbel(ts.random.key(42), (2,)).numpy().round(5)
        array([0.33409, 0.95202], dtype=float32)
    """
    check_others(gumbel, others)
    dtype = checked_float("gumbel", dtype)
    check_mode("gumbel", mode)
    data, sizes = checked("gumbel", key, shape)
    return gumbel_of(data, sizes, dtype, mode)


def gumbel_of(data: Tensor, sizes: list[int], dtype: torch.dtype, mode: str) -> Tensor:
    """Gumbel numbers from a key's words."""
    tiny = torch.finfo(dtype).tiny
    if mode == "low":
        return -torch.log(-torch.log(unit(data, sizes, dtype, tiny, 1.0)))
    high, low = unit(data, [2, *sizes], dtype).unbind(0)
    mantissa = floats.FLOATS[dtype].mantissa
    x = torch.where(high >= 0.5, high, high + 2.0**-mantissa * low + tiny)
    return -torch.log(-torch.log1p(-x))


def check_mode(function: str, mode: str) -> None:
    """Raise DrawError for a mode that is neither "low" nor "high"."""
    if mode not in ("low", "high"):
        raise DrawError(f"{function} has no such mode", got=repr(mode), rule='mode is "low" or "high"')


@_of_floats
def laplace(data: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Numbers of the Laplace distribution of scale 1.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> laplace(ts.random.key(0), (2,)).shape
        torch.Size([2])
    """
    u = unit(data, sizes, dtype, -1 + torch.finfo(dtype).eps / 2, 1.0)
    return torch.sign(u) * torch.log1p(-u.abs())


@_of_floats
def cauchy(data: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Numbers of the Cauchy distribution.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> cauchy(ts.random.key(0), (2,)).shape
        torch.Size([2])
    """
    u = unit(data, sizes, dtype, torch.finfo(dtype).eps, 1.0)
    return torch.tan((u - 0.5) * rounded(math.pi, dtype))


@_of_floats
def logistic(data: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Numbers of the logistic distribution.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> logistic(ts.random.key(0), (2,)).shape
        torch.Size([2])
    """
    x = unit(data, sizes, dtype, torch.finfo(dtype).tiny, 1.0)
    return torch.log(x) - torch.log1p(-x)


@_of_floats
def maxwell(data: Tensor, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Numbers of the Maxwell distribution: the length of a vector of three normal numbers.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> maxwell(ts.random.key(0), (2,)).shape
        torch.Size([2])
    """
    x = drawn(data, [*sizes, 3], "normal", dtype)
    return (x * x).sum(-1).sqrt()
