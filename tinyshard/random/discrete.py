"""Distributions of bits, ints and choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.errors import DtypeError, message
from tinyshard.random.continuous import check_mode, gumbel_of
from tinyshard.random.floats import rounded
from tinyshard.random.keys import KeyShapeError, checked_key, draw_op
from tinyshard.random.sampling import check_range, checked, checked_float, checked_parameters, drawn, unit

Shape = Sequence[int]
BITS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTS = (torch.int8, torch.int16, torch.int32, torch.uint8)
_MASK = 0xFFFFFFFF


def bits(key: Any, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Random bits.

    Args:
        key: one Key.
        shape: of the result.
        dtype: uint32 (default), uint8, uint16 or uint64.

    Returns:
        An uncommitted Array; a plain tensor where a plain key is mapped by torch.func.vmap.

    Raises:
        DtypeError, KeyShapeError: no key, several keys, a bad shape or dtype.

    Communication: none; where the result is cut, each device makes its block.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bits(ts.random.key(0), (2,))
        Array([4070199207, 4202968722], dtype=uint32)
    """
    dtype = torch.uint32 if dtype is None else dtype
    if dtype not in BITS:
        raise DtypeError(message("bits are unsigned", got=str(dtype), rule=f"dtype is one of {_named(BITS)}"))
    data, sizes = checked("bits", key, shape)
    return drawn(data, sizes, "bits", dtype)


def randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Ints of minval, ..., maxval - 1.

    Args:
        key: one Key.
        shape: of the result.
        minval, maxval: ints, or tensors of ints that broadcast to the shape.
        dtype: int32 (default), int8, int16 or uint8.

    Returns:
        As `bits`. Where maxval <= minval it is minval.

    Raises:
        DtypeError: no key, another dtype, bounds that are no ints.
        KeyShapeError: several keys, a bad shape, an empty range.

    Communication: as `bits`.

    In JAX: int64 where x64 is enabled.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> randint(ts.random.key(0), (8,), 0, 10)
        Array([9, 0, 2, 3, 1, 7, 2, 3], dtype=int32)
    """
    dtype = torch.int32 if dtype is None else dtype
    if dtype not in INTS:
        raise DtypeError(
            message(
                "randint makes ints of at most 32 bits",
                got=str(dtype),
                rule=f"dtype is one of {_named(INTS)}",
                try_="randint(...).long() for int64",
            )
        )
    for name, value in (("minval", minval), ("maxval", maxval)):
        kind = value.dtype if isinstance(value, Tensor) else type(value)
        fine = kind is int or (isinstance(value, Tensor) and not (kind.is_floating_point or kind.is_complex))
        if not fine:
            raise DtypeError(message(f"{name} of randint is an int", got=f"{value!r}", try_=f"int({name})"))
    check_range("randint", minval, maxval)
    checked_parameters("randint", tuple(shape), minval=minval, maxval=maxval)
    data, sizes = checked("randint", key, shape)
    return _randint(data, sizes, minval, maxval, dtype)


def _randint(data: Tensor, sizes: list[int], minval: Any, maxval: Any, dtype: torch.dtype) -> Tensor:
    """Two words an int: (high * 2**32 + low) % span, all in int64, whose products wrap as wider words would."""
    info = torch.iinfo(dtype)
    above = _clipped(maxval, -(2**31), 2**31) if dtype == torch.int32 else _clipped(maxval, info.min, info.max + 1)
    below = _clipped(minval, info.min, info.max)
    first, second = draw_op(data, [2], "words", torch.int32)
    high, low = (drawn(k, sizes, "bits", torch.int32).long() & _MASK for k in (first, second))
    span: Any = above - below
    if isinstance(span, Tensor):
        span = torch.where(span <= 0, 1, span)
        half = 2**16 % span
    else:
        span = max(span, 1)
        half = 2**16 % span
    if dtype == torch.int32 and not isinstance(span, Tensor) and span == 2**32:
        return (low + below).to(dtype)
    multiplier = (half * half & _MASK) % span
    offset = ((high % span * multiplier & _MASK) + low % span & _MASK) % span
    return (offset + below).to(dtype)


def _clipped(value: Any, low: int, high: int) -> Any:
    if isinstance(value, Tensor):
        return value.long().clamp(low, high)
    return min(max(value, low), high)


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None, mode: str = "low") -> Tensor:
    """True with probability p.

    Args:
        key: one Key.
        p: a float, or a tensor of floats that broadcasts to the shape.
        shape: of the result; by default that of p.
        mode: "low", or "high" to draw twice as many bits: right for p below 1e-7.

    Returns:
        bool, placed as by `bits`.

    Raises:
        DtypeError: no key, or p is not a float.
        KeyShapeError: several keys, a bad shape or mode, a number p outside [0, 1].

    Communication: as `bits`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> bernoulli(ts.random.key(0), 0.6, (4,))
        Array([False, False,  True,  True], dtype=bool)
    """
    check_mode("bernoulli", mode)
    if isinstance(p, Tensor):
        dtype = checked_float("p of bernoulli", p.dtype)
    else:
        if isinstance(p, bool) or not isinstance(p, float):
            raise DtypeError(message("p of bernoulli is a float", got=f"{p!r}", try_=f"bernoulli(key, float({p!r}))"))
        if not 0 <= p <= 1:
            raise KeyShapeError(message("p of bernoulli is a probability", got=f"{p}", rule="0 <= p <= 1"))
        dtype, p = torch.float32, rounded(p, torch.float32)
    data, sizes = checked("bernoulli", key, checked_parameters("bernoulli", shape, p=p))
    if mode == "low":
        return unit(data, sizes, dtype) < p
    first, second = unit(data, [2, *sizes], dtype).unbind(0)
    return second * torch.finfo(dtype).eps < p - first


def rademacher(key: Any, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """1 or -1, each with probability one half.

    Args:
        key: one Key.
        shape: of the result.
        dtype: any number dtype; int32 by default.

    Returns:
        As `bits`.

    Raises:
        DtypeError, KeyShapeError: no key, several keys, a bad shape.

    Communication: as `bits`.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> rademacher(ts.random.key(0), (4,))
        Array([-1, -1,  1,  1], dtype=int32)
    """
    dtype = torch.int32 if dtype is None else dtype
    data, sizes = checked("rademacher", key, shape)
    return (unit(data, sizes, torch.float32) < 0.5).to(dtype) * 2 - 1


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Tensor:
    """A shuffled tensor, or the numbers 0 ... x - 1 shuffled.

    Args:
        key: one Key.
        x: an int, or a tensor.
        axis: the dim along which it is shuffled.
        independent: shuffle each vector along it by itself.

    Returns:
        As x; int32[x] for an int.

    Raises:
        DtypeError, KeyShapeError: no key, several keys, an x that is neither, no such dim.

    Communication: a tensor that is cut along the dim is gathered, for it is sorted.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> sorted(permutation(ts.random.key(0), 5).tolist())
        [0, 1, 2, 3, 4]
    """
    x = _population("permutation", x)
    axis = _checked_axis("permutation", axis, x)
    data = checked_key("permutation", key)
    if independent or x.dim() == 1:
        return _shuffled(data, x, axis)
    order = _shuffled(data, torch.arange(x.shape[axis], dtype=torch.int32), 0)
    return torch.index_select(x, axis, order)


def _shuffled(data: Tensor, x: Tensor, axis: int) -> Tensor:
    """Sort by random words; as often as it takes for two elements never to have had the same ones."""
    rounds = math.ceil(3 * math.log(max(1, x.numel())) / math.log(_MASK))
    for _ in range(rounds):
        data, once = draw_op(data, [2], "words", torch.int32)
        words = drawn(once, list(x.shape), "bits", torch.int32).long() & _MASK
        order = torch.sort(words, dim=axis, stable=True).indices
        x = torch.gather(x, axis, order)
    return x


def _population(function: str, x: Any) -> Tensor:
    if isinstance(x, int) and not isinstance(x, bool):
        if x < 0:
            raise KeyShapeError(message(f"{function} of a negative number", got=str(x)))
        return torch.arange(x, dtype=torch.int32)
    if not isinstance(x, Tensor) and not hasattr(x, "__array__") and not isinstance(x, list | tuple):
        raise DtypeError(message(f"{function} takes an int or a tensor", got=f"{x!r} ({type(x).__name__})"))
    x = torch.as_tensor(x)
    if x.dim() == 0:
        raise DtypeError(message(f"{function} takes an int or a tensor of at least one dim", got="a 0-d tensor"))
    return x


def _checked_axis(function: str, axis: int, x: Tensor) -> int:
    if not -x.dim() <= axis < x.dim():
        raise KeyShapeError(message(f"{function}: there is no such dim", got=f"axis={axis}, shape {tuple(x.shape)}"))
    return axis % x.dim()


def choice(
    key: Any, a: Any, shape: Shape = (), replace: bool = True, p: Any = None, axis: int = 0, mode: str = "low"
) -> Tensor:
    """Elements drawn from a tensor, or from 0 ... a - 1.

    Args:
        key: one Key.
        a: an int, or a tensor.
        shape: how many are drawn.
        replace: whether one may be drawn twice.
        p: float[n], the weight of each; by default all are equal.
        axis: the dim along which slices are drawn.
        mode: of `gumbel`, which draws with weights and without replacement.

    Returns:
        a.shape[:axis] + shape + a.shape[axis + 1:].

    Raises:
        DtypeError, KeyShapeError: no key, several keys, more draws than elements, weights of another size.

    Communication: what index_select and sort need where `a` or `p` is cut.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> choice(ts.random.key(0), torch.tensor([10, 20, 30]), (4,)).shape
        torch.Size([4])
    """
    check_mode("choice", mode)
    population = _population("choice", a)
    axis = _checked_axis("choice", axis, population)
    count, draws = population.shape[axis], math.prod(shape)
    if not replace and draws > count:
        raise KeyShapeError(
            message("more draws than elements", got=f"{draws} of {count}", rule="with replace=False each is drawn once")
        )
    if count == 0 and draws:
        raise KeyShapeError(message("choice from nothing", got=f"{a!r}"))
    if p is not None:
        p = torch.as_tensor(p)
        p = p if p.is_floating_point() else p.float()
        if tuple(p.shape) != (count,):
            raise KeyShapeError(message("p is a weight for each element", got=f"p of shape {tuple(p.shape)}, {count}"))
    data, sizes = checked("choice", key, shape)
    made = [*population.shape[:axis], *sizes, *population.shape[axis + 1 :]]
    if draws == 0:
        return population.new_zeros(made)
    if p is None and not replace:
        if isinstance(a, int) or population.dim() == 1:
            return _shuffled(data, population, axis)[:draws].reshape(made)
        order = _shuffled(data, torch.arange(count, dtype=torch.int32), 0)
        return torch.index_select(population, axis, order[:draws]).reshape(made)
    if p is None:
        index = _randint(data, sizes, 0, count, torch.int32)
    elif replace:
        heap = torch.cumsum(p, 0)
        index = torch.searchsorted(heap, heap[-1] * (1 - unit(data, sizes, p.dtype)), out_int32=True)
    else:
        index = torch.topk(gumbel_of(data, [count], p.dtype, mode) + torch.log(p), draws).indices.to(torch.int32)
    if isinstance(a, int):
        return index.reshape(made)
    return torch.index_select(population, axis, index.reshape(-1)).reshape(made)


def categorical(
    key: Any, logits: Tensor, axis: int = -1, shape: Shape | None = None, replace: bool = True, mode: str = "low"
) -> Tensor:
    """Indices drawn with probabilities softmax(logits).

    Args:
        key: one Key.
        logits: floats; along `axis` lie the classes of one distribution.
        axis: that dim.
        shape: of the result; its last sizes are those of logits without `axis`.
        replace: whether, for one distribution, an index may be drawn twice.
        mode: of `gumbel`.

    Returns:
        int32 of that shape.

    Raises:
        DtypeError, KeyShapeError: no key, several keys, logits that are no floats, a shape that does not fit.

    Communication: as `bits`, and what the maximum along `axis` needs where that is cut.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> categorical(ts.random.key(0), torch.tensor([0.0, 50.0]), shape=(3,))
        Array([1, 1, 1], dtype=int32)
    """
    check_mode("categorical", mode)
    logits = torch.as_tensor(logits)
    dtype = checked_float("categorical", logits.dtype)
    axis = _checked_axis("categorical", axis, logits)
    batch = [n for d, n in enumerate(logits.shape) if d != axis]
    if shape is None:
        shape = batch
    lead = len(shape) - len(batch)
    if lead < 0 or any(n not in (1, size) for n, size in zip(batch, shape[lead:], strict=True)):
        raise KeyShapeError(
            message(
                "the shape of categorical does not fit its logits",
                got=f"shape {tuple(shape)}, logits {tuple(logits.shape)}, axis {axis}",
                rule=f"it ends in sizes that {tuple(batch)} broadcasts to",
            )
        )
    data, sizes = checked("categorical", key, shape)
    if replace:
        whole = [*sizes[:lead], *sizes[lead : lead + axis], logits.shape[axis], *sizes[lead + axis :]]
        return torch.argmax(gumbel_of(data, whole, dtype, mode) + logits, lead + axis).to(torch.int32)
    count = math.prod(sizes[:lead])
    if count > logits.shape[axis]:
        raise KeyShapeError(message("more draws than classes", got=f"{count} of {logits.shape[axis]}"))
    noisy = (logits + gumbel_of(data, list(logits.shape), dtype, mode)).movedim(axis, -1)
    return torch.topk(noisy, count).indices.movedim(-1, 0).reshape(sizes).to(torch.int32)


def _named(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(map(str, dtypes))
