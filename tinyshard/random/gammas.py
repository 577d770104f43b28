"""The gamma distribution, and those derived from it: numbers drawn until they are accepted, each from its own key.

The method is that of Marsaglia and Tsang (2000), as in JAX. The derivative with respect to the parameter is implicit:
that of the distribution function, at the drawn number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tinyshard.lax.while_loop import while_loop
from tinyshard.primitives.random_bits import register_batched
from tinyshard.random.key_creation import draw_op
from tinyshard.random.parameters import LOOPS, of_parameters, split_words
from tinyshard.random.sampling import drawn, unit
from tinyshard.transforms.custom_jvp import custom_jvp
from tinyshard.transforms.jitted import Jitted

Sizes = list[int]
THIRD = 1 / 3
register_batched(torch.ops.aten._standard_gamma_grad.default)  # torch's own vmap calls it once for each row, and warns


def _accepted(data: Tensor, alpha: Tensor, of_logarithm: bool) -> Tensor:
    """Gamma numbers, or their logarithms: one for each parameter."""
    dtype = alpha.dtype
    keys = draw_op(data, list(alpha.shape), "words", torch.int32)
    keys = keys + torch.zeros_like(alpha, dtype=torch.int32).unsqueeze(-1)  # each device makes those of its parameters
    keys, boost_keys = split_words(keys)
    d = torch.where(alpha >= 1, alpha, alpha + 1) - THIRD
    c = torch.full_like(d, THIRD) / d.sqrt()

    def next_normal(state: Any) -> Any:
        keys, x, v = state
        following, key = split_words(keys)
        drawn_x = draw_op(key, [], "normal", dtype)
        again = v <= 0
        return following, torch.where(again, drawn_x, x), torch.where(again, 1 + drawn_x * c, v)

    def next_try(state: Any) -> Any:
        keys, cubes, again = state
        following, x_keys, u_keys = split_words(keys, 3)
        start = x_keys, torch.zeros_like(d), torch.full_like(d, -1)
        _, x, v = while_loop(lambda state: (state[2] <= 0).any(), next_normal, start)
        square, cube = x * x, v * v * v
        u = draw_op(u_keys, [], "uniform", dtype)
        is_squeezed = u < 1 - 0.0331 * (square * square)
        is_below = u.log() < square * 0.5 + d * (1 - cube + cube.log())
        return following, torch.where(again, cube, cubes), again & ~(is_squeezed | is_below)

    state = keys, torch.ones_like(d), torch.ones_like(d, dtype=torch.bool)
    _, cubes, _ = while_loop(lambda state: state[2].any(), next_try, state)
    u = draw_op(boost_keys, [], "uniform", dtype)
    # a number for alpha < 1 is one for alpha + 1, times u ** (1 / alpha)
    if not of_logarithm:
        return d * cubes * torch.where(alpha >= 1, 1, (1 - u) ** alpha.reciprocal())
    logarithm = torch.log1p(-u)
    boost = torch.where((alpha >= 1) | (logarithm == 0), 0, logarithm * alpha.reciprocal())
    return d.log() + cubes.log() + boost


_accepted_jitted = Jitted(_accepted, static_argnums=(2,))


def _as_drawn(alpha: Tensor, drawn: Tensor, of_logarithm: bool) -> Tensor:
    """Numbers as they were drawn, which have a derivative by the parameter."""
    return drawn.clone()


def _along(of_logarithm: bool, primals: Any, tangents: Any) -> tuple[Tensor, Tensor]:
    """They, and their tangent: computed in float32 at least."""
    alpha, drawn = (x.float() if x.dtype.itemsize < 4 else x for x in primals)
    slope = (_of_logarithm if of_logarithm else torch._standard_gamma_grad)(alpha, drawn)
    return primals[1].clone(), tangents[0] * slope.to(tangents[0].dtype)


_implicit = custom_jvp(_as_drawn, nondiff_argnums=(2,))
_implicit.defjvp(_along)


def _of_logarithm(alpha: Tensor, drawn: Tensor) -> Tensor:
    # near 0 the distribution function is x ** alpha / gamma(alpha + 1)
    is_near_0 = drawn < -16
    x = torch.where(is_near_0, 1, drawn.exp())
    near_0 = (torch.digamma(alpha + 1) - drawn) / alpha
    return torch.where(is_near_0, near_0, torch._standard_gamma_grad(alpha, x) / x)


def gamma_of(data: Tensor, sizes: Sizes, alpha: Tensor, of_logarithm: bool = False) -> Tensor:
    """Gamma numbers from a key's words, or their logarithms."""
    alpha = alpha.expand(sizes)
    numbers: Tensor = _implicit(alpha, _accepted_jitted(data, alpha.detach(), of_logarithm), of_logarithm)
    return numbers


@of_parameters(communication=LOOPS)
def gamma(data: Tensor, sizes: Sizes, dtype: torch.dtype, a: Tensor) -> Tensor:
    """Numbers of the gamma distribution with scale 1; they have derivatives with respect to the parameter.

    Args:
        a: the shape parameter, above 0.

    In JAX: the last bits can differ, as those of `normal`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> gamma(ts.random.key(0), 2.0, (3,)).shape
        torch.Size([3])
    """
    return gamma_of(data, sizes, a)


@of_parameters(communication=LOOPS)
def loggamma(data: Tensor, sizes: Sizes, dtype: torch.dtype, a: Tensor) -> Tensor:
    """Logarithms of the numbers that `gamma` draws: exact even if these would be 0.

    Args:
        a: the shape parameter, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bool(loggamma(ts.random.key(0), 1e-4, (3,)).isfinite().all())
        True
    """
    return gamma_of(data, sizes, a, of_logarithm=True)


@of_parameters(communication=LOOPS)
def beta(data: Tensor, sizes: Sizes, dtype: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    """Numbers of the beta distribution.

    Args:
        a: the first shape parameter, above 0.
        b: the second one, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> beta(ts.random.key(0), 2.0, 3.0, (3,)).shape
        torch.Size([3])
    """
    first, second = split_words(data)
    logarithms = gamma_of(first, sizes, a, True), gamma_of(second, sizes, b, True)
    largest = torch.maximum(*logarithms)
    of_a, of_b = ((x - largest).exp() for x in logarithms)
    return of_a / (of_a + of_b)


@of_parameters("Vectors of positive numbers that add up to 1, of shape (\\*shape, n)", communication=LOOPS, ndims=1)
def dirichlet(data: Tensor, sizes: Sizes, dtype: torch.dtype, alpha: Tensor) -> Tensor:
    """Vectors of the Dirichlet distribution.

    Args:
        alpha: the concentrations, of shape [..., n], above 0; the batch of them broadcasts to the shape.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> dirichlet(ts.random.key(0), torch.ones(3), (2,)).sum(-1).round().tolist()
        [1.0, 1.0]
    """
    return torch.softmax(gamma_of(data, [*sizes, alpha.shape[-1]], alpha, True), -1)


def _chisquare(data: Tensor, sizes: Sizes, df: Tensor) -> Tensor:
    return gamma_of(data, sizes, df / 2, True).exp() * 2


@of_parameters(communication=LOOPS)
def chisquare(data: Tensor, sizes: Sizes, dtype: torch.dtype, df: Tensor) -> Tensor:
    """Numbers of the chi-square distribution.

    Args:
        df: the degrees of freedom, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> chisquare(ts.random.key(0), 4.0, (3,)).shape
        torch.Size([3])
    """
    return _chisquare(data, sizes, df)


@of_parameters(communication=LOOPS)
def f(data: Tensor, sizes: Sizes, dtype: torch.dtype, dfnum: Tensor, dfden: Tensor) -> Tensor:
    """Numbers of the F distribution.

    Args:
        dfnum: the degrees of freedom of the numerator, above 0.
        dfden: those of the denominator, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> f(ts.random.key(0), 4.0, 5.0, (3,)).shape
        torch.Size([3])
    """
    below, above = split_words(data)
    return (_chisquare(above, sizes, dfnum) / dfnum) / (_chisquare(below, sizes, dfden) / dfden)


@of_parameters(communication=LOOPS)
def t(data: Tensor, sizes: Sizes, dtype: torch.dtype, df: Tensor) -> Tensor:
    """Numbers of Student's t distribution.

    Args:
        df: the degrees of freedom, above 0.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> t(ts.random.key(0), 4.0, (3,)).shape
        torch.Size([3])
    """
    normal_key, gamma_key = split_words(data)
    return drawn(normal_key, sizes, "normal", dtype) * (df / 2 / gamma_of(gamma_key, sizes, df / 2)).sqrt()


def _generalized_normal(data: Tensor, sizes: Sizes, dtype: torch.dtype, p: Tensor) -> Tensor:
    sizes_key, signs_key = split_words(data)
    signs = (unit(signs_key, sizes, torch.float32) < 0.5).to(dtype) * 2 - 1
    return signs * gamma_of(sizes_key, sizes, p.reciprocal()) ** p.reciprocal()


@of_parameters(communication=LOOPS)
def generalized_normal(data: Tensor, sizes: Sizes, dtype: torch.dtype, p: Tensor) -> Tensor:
    """Numbers of the generalized normal distribution, with density proportional to exp(-abs(x) ** p).

    Args:
        p: the shape parameter, above 0: 2 for a normal distribution of variance 1/2, 1 for Laplace's.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> generalized_normal(ts.random.key(0), 1.5, (3,)).shape
        torch.Size([3])
    """
    return _generalized_normal(data, sizes, dtype, p)


def ball_of(data: Tensor, sizes: Sizes, dtype: torch.dtype, d: int, p: Tensor) -> Tensor:
    """Points of the unit ball of d dims, in the norm of p."""
    point_key, radius_key = split_words(data)
    x = _generalized_normal(point_key, [*sizes, d], dtype, p)
    e = -torch.log1p(-unit(radius_key, sizes, dtype))
    return x / (((x.abs() ** p).sum(-1) + e) ** p.reciprocal()).unsqueeze(-1)
