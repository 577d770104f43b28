"""Distributions of bits and ints."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.primitives.floats import rounded
from tinyshard.random.continuous import check_mode
from tinyshard.random.key_creation import draw_op
from tinyshard.random.keys import DrawError
from tinyshard.random.sampling import check_range, checked, checked_float, checked_parameters, drawn, placed, unit

Shape = Sequence[int]
BITS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTS = (torch.int8, torch.int16, torch.int32, torch.uint8)
MASK = 0xFFFFFFFF


@placed
def bits(key: Any, shape: Shape = (), dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    """Random bits.

    Args:
        key: one Key.
        shape: of the result.
        dtype: uint32 (default), uint8, uint16 or uint64.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        An uncommitted Array; a plain tensor if torch.func.vmap maps a plain key.

    Raises:
        DtypeError, DrawError: not a key, several keys, a bad shape or dtype.

    Communication: none; if the result is cut, each device makes its block.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bits(ts.random.key(0), (2,))
        Array([4070199207, 4202968722], dtype=uint32)
    """
    check_others(bits, others)
    dtype = torch.uint32 if dtype is None else dtype
    if dtype not in BITS:
        raise DtypeError("bits are unsigned", got=str(dtype), rule=f"dtype is one of {_named(BITS)}")
    data, sizes = checked("bits", key, shape)
    return drawn(data, sizes, "bits", dtype)


@placed
def randint(
    key: Any, shape: Shape, minval: Any, maxval: Any, dtype: torch.dtype | None = None, **others: Any
) -> Tensor:
    """Ints of minval, ..., maxval - 1.

    Args:
        key: one Key.
        shape: of the result.
        minval, maxval: ints, or tensors of ints that broadcast to the shape.
        dtype: int32 (default), int8, int16 or uint8.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        As `bits`. Elements with maxval <= minval, for tensors of bounds, are minval.

    Raises:
        DtypeError: not a key, another dtype, bounds that are not ints.
        DrawError: several keys, a bad shape, an empty range.

    Communication: as `bits`.

    In JAX: int64 if x64 is enabled.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> randint(ts.random.key(0), (8,), 0, 10)
        Array([9, 0, 2, 3, 1, 7, 2, 3], dtype=int32)
    """
    check_others(randint, others)
    dtype = torch.int32 if dtype is None else dtype
    if dtype not in INTS:
        raise DtypeError(
            "randint makes ints of at most 32 bits",
            got=str(dtype),
            rule=f"dtype is one of {_named(INTS)}",
            try_="randint(...).long() for int64",
        )
    minval, maxval = _bound("minval", minval), _bound("maxval", maxval)
    check_range("randint", minval, maxval)
    checked_parameters("randint", shape, minval=minval, maxval=maxval)
    data, sizes = checked("randint", key, shape)
    return randint_of(data, sizes, minval, maxval, dtype)


def _bound(name: str, value: Any) -> Any:
    """A Python int, or a tensor of ints."""
    if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
        return value
    if isinstance(value, Tensor | bool) or not hasattr(value, "__index__"):
        raise DtypeError(f"{name} of randint is an int", got=f"{value!r}", try_=f"int({name})")
    return operator.index(value)


def randint_of(data: Tensor, sizes: list[int], minval: Any, maxval: Any, dtype: torch.dtype) -> Tensor:
    """Ints from a key's words.

    Each is (high * 2**32 + low) % span, from two words; computed in int64, whose products wrap as those of wider words.
    """
    info = torch.iinfo(dtype)
    above = _clipped(maxval, -(2**31), 2**31) if dtype == torch.int32 else _clipped(maxval, info.min, info.max + 1)
    below = _clipped(minval, info.min, info.max)
    first, second = draw_op(data, [2], "words", torch.int32)
    high, low = (drawn(k, sizes, "bits", torch.int32).long() & MASK for k in (first, second))
    span: Any = above - below
    span = torch.where(span <= 0, 1, span) if isinstance(span, Tensor) else max(span, 1)
    half = 2**16 % span
    if dtype == torch.int32 and not isinstance(span, Tensor) and span == 2**32:
        return (low + below).to(dtype)
    multiplier = (half * half & MASK) % span
    offset = ((high % span * multiplier & MASK) + low % span & MASK) % span
    return (offset + below).to(dtype)


def _clipped(value: Any, low: int, high: int) -> Any:
    if isinstance(value, Tensor):
        return value.long().clamp(low, high)
    return min(max(value, low), high)


@placed
def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None, mode: str = "low", **others: Any) -> Tensor:
    """True with probability p.

    Args:
        key: one Key.
        p: a float, or a tensor of floats that broadcasts to the shape.
        shape: of the result; by default that of p.
        mode: "low", or "high" to draw twice as many bits: right for p below 1e-7.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        bool, placed as by `bits`.

    Raises:
        DtypeError: not a key, or p is not a float.
        DrawError: several keys, a bad shape or mode, a number p outside [0, 1].

    Communication: as `bits`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bernoulli(ts.random.key(0), 0.6, (4,))
        Array([False, False,  True,  True], dtype=bool)
    """
    check_others(bernoulli, others)
    check_mode("bernoulli", mode)
    if isinstance(p, Tensor):
        dtype = checked_float("p of bernoulli", p.dtype)
    else:
        if isinstance(p, bool) or not isinstance(p, float):
            raise DtypeError("p of bernoulli is a float", got=f"{p!r}", try_=f"bernoulli(key, float({p!r}))")
        if not 0 <= p <= 1:
            raise DrawError("p of bernoulli is a probability", got=f"{p}", rule="0 <= p <= 1")
        dtype, p = torch.float32, rounded(p, torch.float32)
    data, sizes = checked("bernoulli", key, checked_parameters("bernoulli", shape, p=p))
    if mode == "low":
        return unit(data, sizes, dtype) < p
    first, second = unit(data, [2, *sizes], dtype).unbind(0)
    return second * torch.finfo(dtype).eps < p - first


@placed
def rademacher(key: Any, shape: Shape = (), dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    """1 or -1, each with probability one half.

    Args:
        key: one Key.
        shape: of the result.
        dtype: any number dtype that has a -1; int32 by default.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        As `bits`.

    Raises:
        DtypeError, DrawError: not a key, several keys, a bad shape or dtype.

    Communication: as `bits`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> rademacher(ts.random.key(0), (4,))
        Array([-1, -1,  1,  1], dtype=int32)
    """
    check_others(rademacher, others)
    dtype = torch.int32 if dtype is None else dtype
    if not (isinstance(dtype, torch.dtype) and dtype.is_signed):
        raise DtypeError(
            "rademacher makes 1 and -1", got=str(dtype), rule="dtype is one that has a -1", try_="torch.int32"
        )
    data, sizes = checked("rademacher", key, shape)
    return (unit(data, sizes, torch.float32) < 0.5).to(dtype) * 2 - 1


def _named(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(map(str, dtypes))
