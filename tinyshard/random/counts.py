"""Counts: the Poisson, binomial and multinomial distributions. Numbers are drawn until all are accepted.

Small means use Knuth's method and sums of geometric numbers, large ones Hörmann's transformed rejection
(PTRS and BTRS), as in JAX. Each round draws for all numbers; accepted ones are kept.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tinyshard.arrays.explicit import known_as
from tinyshard.core.jax_hints import check_others
from tinyshard.lax.scan import scan
from tinyshard.lax.while_loop import while_loop
from tinyshard.random.keys import DrawError, checked_key, checked_shape
from tinyshard.random.parameters import LOOPS, as_parameter, of_parameters, split_words
from tinyshard.random.sampling import checked_float, checked_parameters, unit
from tinyshard.transforms.jitted import Jitted

Sizes = list[int]

# log(k!) minus Stirling's approximation of it, for k = 0 ... 9
_TAILS = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
    0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287,
)  # fmt: skip


def _is_any(state: Any) -> Tensor:
    """Whether a loop continues: its state ends with which numbers are not accepted yet."""
    return state[-1].any()


def _poisson_by_products(data: Tensor, lam: Tensor) -> Tensor:
    """For small rates: how many uniform numbers have a product above exp(-lam)."""

    def one_more(state: Any) -> Any:
        data, count, logarithm, again = state
        data, key = split_words(data)
        count = torch.where(again, count + 1, count)
        logarithm = logarithm + unit(key, list(lam.shape), torch.float32).log()
        return data, count, logarithm, logarithm > -lam

    zero = torch.zeros_like(lam)
    return while_loop(_is_any, one_more, (data, zero - 1, zero, zero > -lam))[1]


def _poisson_by_rejection(data: Tensor, lam: Tensor) -> Tensor:
    """For large rates: transformed rejection."""
    sizes, log_lam = list(lam.shape), lam.log()
    b = 0.931 + 2.53 * lam.sqrt()
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + torch.full_like(b, 1.1328) / (b - 3.4)
    widest = 0.9277 - torch.full_like(b, 3.6224) / (b - 2)

    def next_try(state: Any) -> Any:
        data, drawn, again = state
        data, u_key, v_key = split_words(data, 3)
        u, v = unit(u_key, sizes, lam.dtype) - 0.5, unit(v_key, sizes, lam.dtype)
        depth = 0.5 - u.abs()
        k = torch.floor((2 * a / depth + b) * u + lam + 0.43)
        is_squeezed = (depth >= 0.07) & (v <= widest)
        is_out = (k < 0) | ((depth < 0.013) & (v > depth))
        is_below = (v * inverse_alpha / (a / (depth * depth) + b)).log() <= -lam + k * log_lam - torch.lgamma(k + 1)
        accepted = is_squeezed | (~is_out & is_below)
        return data, torch.where(accepted, k, drawn), again & ~accepted

    start = data, torch.full_like(lam, -1), torch.ones_like(lam, dtype=torch.bool)
    return while_loop(_is_any, next_try, start)[1]


def _poisson(data: Tensor, lam: Tensor) -> Tensor:
    """Poisson numbers as floats; -1 for an invalid rate."""
    is_small = ~(lam >= 10) | lam.isinf()
    small = _poisson_by_products(data, torch.where(is_small & ~lam.isinf(), lam, 0))
    large = _poisson_by_rejection(data, torch.where(is_small, 1e5, lam))
    return torch.where(lam == 0, 0, torch.where(is_small, small, large))


_poisson_jitted = Jitted(_poisson)


@of_parameters("Ints", "int", communication=LOOPS)
def poisson(data: Tensor, sizes: Sizes, dtype: torch.dtype, lam: Tensor) -> Tensor:
    """Numbers of the Poisson distribution.

    Args:
        lam: their mean, 0 or more; if it is negative, infinite or NaN, the result is -1.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> poisson(ts.random.key(0), torch.tensor([0.0, 3.0, 100.0])).dtype
        torch.int32
    """
    drawn: Tensor = _poisson_jitted(data, lam.detach().expand(sizes))
    return drawn.to(dtype)


def _tail(k: Tensor) -> Tensor:
    """log(k!) minus Stirling's approximation of it."""
    table = torch.tensor(_TAILS, dtype=k.dtype)
    square = (k + 1) * (k + 1)
    inner = 1 / 360 - torch.full_like(k, 1 / 1260) / square
    far = (1 / 12 - inner / square) / (k + 1)
    return torch.where(k <= 9, table[k.clamp(0, 9).nan_to_num().long()], far)


def _binomial_by_sums(data: Tensor, count: Tensor, prob: Tensor) -> Tensor:
    """For small means: how many geometric numbers have a sum of at most the count."""
    log_miss = torch.log1p(-prob)

    def one_more(state: Any) -> Any:
        data, drawn, total, again = state
        key, data = split_words(data)
        total = total + torch.ceil(unit(key, list(prob.shape), prob.dtype).log() / log_miss)
        return data, torch.where(again, drawn + 1, drawn), total, total <= count

    zero = torch.zeros_like(prob)
    return while_loop(_is_any, one_more, (data, zero - 1, zero, zero <= count))[1]


def _binomial_by_rejection(data: Tensor, count: Tensor, prob: Tensor) -> Tensor:
    """For large means: transformed rejection."""
    sizes = list(prob.shape)
    deviation = (count * prob * (1 - prob)).sqrt()
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * prob
    c = count * prob + 0.5
    widest = 0.92 - torch.full_like(b, 4.2) / b
    odds = prob / (1 - prob)
    alpha = (2.83 + torch.full_like(b, 5.1) / b) * deviation
    m = torch.floor((count + 1) * prob)
    fixed = (m + 0.5) * ((m + 1) / (odds * (count - m + 1))).log() + _tail(m) + _tail(count - m)

    def next_try(state: Any) -> Any:
        data, drawn, again = state
        data, u_key, v_key = split_words(data, 3)
        u, v = unit(u_key, sizes, prob.dtype) - 0.5, unit(v_key, sizes, prob.dtype)
        depth = 0.5 - u.abs()
        is_squeezed = (depth >= 0.07) & (v <= widest)
        k = torch.floor((2 * a / depth + b) * u + c)
        is_out = (k < 0) | (k > count)
        bound = fixed + (count + 1) * ((count - m + 1) / (count - k + 1)).log()
        bound = bound + (k + 0.5) * (odds * (count - k + 1) / (k + 1)).log() - _tail(k) - _tail(count - k)
        is_below = (v * alpha / (a / (depth * depth) + b)).log() <= bound
        accepted = is_squeezed | (~is_out & is_below)
        return data, torch.where(accepted, k, drawn), again & ~accepted

    start = data, torch.full_like(prob, -1), torch.ones_like(prob, dtype=torch.bool)
    return while_loop(_is_any, next_try, start)[1]


def _binomial(data: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Binomial numbers as floats; nan where n or p is out of its range, and inf where n is."""
    is_rare = p < 0.5
    q = torch.where(is_rare, p, 1 - p)
    is_wrong = ~(n >= 0) | ~(q >= 0)
    q = torch.where(q >= 0, q, 0.01)
    is_small = ~(n >= 0) | (n * q <= 10)
    count = torch.floor(n)
    small = _binomial_by_sums(data, torch.where(is_small, count, 0), q)
    large = _binomial_by_rejection(data, torch.where(is_small, 1e4, count), torch.where(is_small, 0.5, q))
    drawn = torch.where(is_small, small, large)
    drawn = torch.where(n.isinf(), math.inf, torch.where(is_rare, drawn, count - drawn))
    return torch.where(is_wrong, math.nan, drawn)


_binomial_jitted = Jitted(_binomial)


@of_parameters("Whole numbers as floats", "float of 32 bits or more", communication=LOOPS)
def binomial(data: Tensor, sizes: Sizes, dtype: torch.dtype, n: Tensor, p: Tensor) -> Tensor:
    """The number of successes in n trials.

    Args:
        n: the number of trials.
        p: the probability of a success, of [0, 1].

    If n or p is out of its range, the result is nan.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> x = binomial(ts.random.key(0), 10, 0.5, (100,))
        >>> bool(((x >= 0) & (x <= 10)).all())
        True
    """
    drawn: Tensor = _binomial_jitted(data, n.detach().expand(sizes), p.detach().expand(sizes))
    return drawn


def _multinomial(data: Tensor, n: Tensor, p: Tensor) -> Tensor:
    p = p.movedim(-1, 0)
    left = p.flip(0).cumsum(0).flip(0)
    ratios = p / torch.where(left == 0, 1, left)
    keys = torch.stack(split_words(data, p.shape[0]))

    def one_outcome(rest: Tensor, given: Any) -> Any:
        ratio, key = given
        count = _binomial(key, rest, ratio.clamp(0, 1))
        return rest - count, count

    return scan(one_outcome, n, (ratios, keys))[1].movedim(0, -1)


_multinomial_jitted = Jitted(_multinomial)


@known_as("multinomial")
def multinomial(
    key: Any, n: Any, p: Any, *, shape: Any = None, dtype: torch.dtype | None = None, **others: Any
) -> Tensor:
    """The count of each outcome in n trials.

    Args:
        key: one Key.
        n: the number of trials; it broadcasts to the shape without its last dim.
        p: the probability of each outcome, of shape [..., k]; it broadcasts to the shape.
        shape: of the result, its last size k; by default that of p.
        dtype: float32 (default) or float64.

    Returns:
        Whole numbers as floats, placed as by `uniform`; along the last dim they add up to n. They are drawn in float32,
        which has whole numbers up to 2**24; or in float64 if n or p is a tensor of that.

    Raises:
        DtypeError: not a key, another dtype, an invalid shape.
        DrawError: several keys, p without a dim, or parameters that do not broadcast to the shape.

    Communication: as `binomial`, for each outcome.

    In JAX: also unroll=, for the loop over the outcomes.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> multinomial(ts.random.key(0), 20, torch.tensor([0.2, 0.3, 0.5])).sum()
        Array(20., dtype=float32)
    """
    check_others(multinomial, others)
    dtype = checked_float("multinomial", dtype)
    wide = torch.float64 if torch.float64 in (getattr(x, "dtype", None) for x in (n, p)) else torch.float32
    trials, probabilities = (as_parameter("multinomial", *x, wide) for x in (("n", n), ("p", p)))
    if probabilities.dim() == 0:
        raise DrawError("p of multinomial has a dim of outcomes", got="one number", try_="torch.tensor([0.2, 0.8])")
    sizes = list(probabilities.shape) if shape is None else checked_shape("multinomial", shape)
    checked_parameters("multinomial", sizes, p=probabilities)
    checked_parameters("multinomial", sizes[:-1], n=trials)
    data = checked_key("multinomial", key)
    trials, probabilities = trials.detach().expand(sizes[:-1]), probabilities.detach().expand(sizes)
    drawn: Tensor = _multinomial_jitted(data, trials, probabilities)
    return drawn.to(dtype)
