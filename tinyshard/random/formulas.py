"""Distributions with parameters, each a formula of draws from other distributions: the same as JAX's."""

from __future__ import annotations

import torch
from torch import Tensor

from tinyshard.random.parameters import of_parameters, split_words
from tinyshard.random.sampling import drawn, unit

Sizes = list[int]


def _exponential(data: Tensor, sizes: Sizes, dtype: torch.dtype) -> Tensor:
    return -torch.log1p(-unit(data, sizes, dtype))


def _maxwell(data: Tensor, sizes: Sizes, dtype: torch.dtype) -> Tensor:
    x = drawn(data, [*sizes, 3], "normal", dtype)
    return (x * x).sum(-1).sqrt()


@of_parameters()
def lognormal(data: Tensor, sizes: Sizes, dtype: torch.dtype, sigma: Tensor = 1.0) -> Tensor:  # type: ignore[assignment]
    """Numbers whose logarithm is normal, with mean 0.

    Args:
        sigma: the standard deviation of the logarithm.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool((lognormal(ts.random.key(0), 0.5, (4,)) > 0).all())
        True
    """
    return (drawn(data, sizes, "normal", dtype) * sigma).exp()


@of_parameters()
def rayleigh(data: Tensor, sizes: Sizes, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """Numbers of the Rayleigh distribution: the length of a vector of two normal numbers.

    Args:
        scale: the standard deviation of these.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> rayleigh(ts.random.key(0), torch.tensor([1.0, 2.0])).shape
        torch.Size([2])
    """
    return scale * (unit(data, sizes, dtype).log() * -2).sqrt()


@of_parameters()
def double_sided_maxwell(data: Tensor, sizes: Sizes, dtype: torch.dtype, loc: Tensor, scale: Tensor) -> Tensor:
    """Numbers of the Maxwell distribution with a random sign, scaled and shifted.

    Args:
        loc: the shift.
        scale: the factor.

    In JAX: the shapes of the parameters come after `shape`. Here the parameters broadcast to it, as for all others.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> double_sided_maxwell(ts.random.key(0), 0.0, 2.0, (3,)).shape
        torch.Size([3])
    """
    sizes_key, signs_key = split_words(data)
    signs = (unit(signs_key, sizes, torch.float32) < 0.5).to(dtype) * 2 - 1
    return signs * _maxwell(sizes_key, sizes, dtype) * scale + loc


@of_parameters()
def pareto(data: Tensor, sizes: Sizes, dtype: torch.dtype, b: Tensor) -> Tensor:
    """Numbers of the Pareto distribution with scale 1.

    Args:
        b: the shape parameter, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool((pareto(ts.random.key(0), 3.0, (4,)) >= 1).all())
        True
    """
    return (_exponential(data, sizes, dtype) / b).exp()


@of_parameters()
def weibull_min(data: Tensor, sizes: Sizes, dtype: torch.dtype, scale: Tensor, concentration: Tensor) -> Tensor:
    """Numbers of the Weibull distribution.

    Args:
        scale: the factor.
        concentration: the shape parameter, above 0.

    In JAX: shape is () by default, also for parameters that are arrays.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool((weibull_min(ts.random.key(0), 2.0, 1.5, (4,)) >= 0).all())
        True
    """
    return _exponential(data, sizes, dtype) ** concentration.reciprocal() * scale


@of_parameters()
def triangular(data: Tensor, sizes: Sizes, dtype: torch.dtype, left: Tensor, mode: Tensor, right: Tensor) -> Tensor:
    """Numbers of the triangular distribution.

    Args:
        left: the lower end.
        mode: the position of the density's maximum.
        right: the upper end.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> x = triangular(ts.random.key(0), -1.0, 0.0, 1.0, (100,))
        >>> bool((x.abs() <= 1).all())
        True
    """
    u = unit(data, sizes, dtype)
    rising = left + (u * (right - left) * (mode - left)).sqrt()
    falling = right - ((1 - u) * (right - left) * (right - mode)).sqrt()
    return torch.where(u < (mode - left) / (right - left), rising, falling)


@of_parameters()
def wald(data: Tensor, sizes: Sizes, dtype: torch.dtype, mean: Tensor) -> Tensor:
    """Numbers of the Wald (inverse Gaussian) distribution with scale 1.

    Args:
        mean: their mean, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool((wald(ts.random.key(0), 2.0, (4,)) > 0).all())
        True
    """
    normal_key, unit_key = split_words(data)
    v = drawn(normal_key, sizes, "normal", dtype)
    y = v * v
    root = (4 * mean * y + mean * mean * (y * y)).sqrt()
    x = mean + mean * mean * y / 2 - mean / 2 * root
    return torch.where(unit(unit_key, sizes, dtype) <= mean / (mean + x), x, mean * mean / x)


@of_parameters("Ints", "int")
def geometric(data: Tensor, sizes: Sizes, dtype: torch.dtype, p: Tensor) -> Tensor:
    """The number of trials until the first success.

    Args:
        p: the probability of a success, of (0, 1].

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> geometric(ts.random.key(0), 0.5, (4,)).dtype
        torch.int32
    """
    u = unit(data, sizes, torch.float32)
    return (torch.floor(torch.where(u == 0, 1, u).log() / torch.log1p(-p)) + 1).to(dtype)
