"""Shuffling and choosing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.arrays.explicit import known_as
from tinyshard.core.collectives import paired, selected
from tinyshard.core.errors import DtypeError
from tinyshard.core.ints import as_int
from tinyshard.core.jax_hints import check_others
from tinyshard.random.continuous import check_mode, gumbel_of
from tinyshard.random.discrete import MASK, randint_of
from tinyshard.random.key_creation import draw_op
from tinyshard.random.keys import DrawError, checked_key, checked_shape
from tinyshard.random.sampling import checked, checked_float, drawn, placed, unit

Shape = Sequence[int]


@placed
def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, **others: Any) -> Tensor:
    """A shuffled tensor, or the numbers 0 ... x - 1 shuffled.

    Args:
        key: one Key.
        x: an int, or a tensor.
        axis: the dim along which it is shuffled.
        independent: shuffle each vector along it separately.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        As x; int32[x] for an int.

    Raises:
        DtypeError, DrawError: not a key, several keys, an x that is neither, or a dim that does not exist.

    Communication: a tensor that is cut along the dim is gathered for the sort.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> sorted(permutation(ts.random.key(0), 5).tolist())
        [0, 1, 2, 3, 4]
    """
    check_others(permutation, others)
    x = _population("permutation", x)
    axis = _checked_axis("permutation", axis, x)
    data = checked_key("permutation", key)
    if independent or x.dim() == 1:
        return _shuffled(data, x, axis)
    order = _shuffled(data, torch.arange(x.shape[axis], dtype=torch.int32), 0)
    return selected(x, axis, order)


def _shuffled(data: Tensor, x: Tensor, axis: int) -> Tensor:
    """Sort by random words, repeatedly until no two elements have had the same words in all rounds."""
    rounds = math.ceil(3 * math.log(max(1, x.numel())) / math.log(MASK))
    for _ in range(rounds):
        data, once = draw_op(data, [2], "words", torch.int32)
        words = drawn(once, list(x.shape), "bits", torch.int32).long() & MASK
        order = torch.sort(words, dim=axis, stable=True).indices
        x = paired(x, axis, order)
    return x


def _population(function: str, x: Any) -> Tensor:
    count = _count(x)
    if count is not None:
        if count < 0:
            raise DrawError(f"{function} of a negative number", got=str(count))
        return torch.arange(count, dtype=torch.int32)
    if not isinstance(x, Tensor) and not hasattr(x, "__array__") and not isinstance(x, list | tuple):
        raise DtypeError(f"{function} takes an int or a tensor", got=f"{x!r} ({type(x).__name__})")
    x = torch.as_tensor(x)
    if x.dim() == 0:
        raise DtypeError(f"{function} takes an int or a tensor of at least one dim", got="a 0-d tensor")
    return x


def _count(x: Any) -> int | None:
    """The argument as an int, which means the numbers below it; None for anything else, as a tensor."""
    return None if isinstance(x, bool | Tensor | np.ndarray) else as_int(x)


def _checked_axis(function: str, axis: int, x: Tensor) -> int:
    if not -x.dim() <= axis < x.dim():
        raise DrawError(f"{function}: there is no such dim", got=f"axis={axis}, shape {tuple(x.shape)}")
    return axis % x.dim()


@known_as("choice")
def choice(
    key: Any,
    a: Any,
    shape: Shape = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str = "low",
    **others: Any,
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
        DtypeError, DrawError: not a key, several keys, more draws than elements, weights of another size.

    Communication: that of index_select and sort if `a` or `p` is cut.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> choice(ts.random.key(0), torch.tensor([10, 20, 30]), (4,)).shape
        torch.Size([4])
    """
    check_others(choice, others)
    check_mode("choice", mode)
    population = _population("choice", a)
    axis, shape = _checked_axis("choice", axis, population), checked_shape("choice", shape)
    count, draws = population.shape[axis], math.prod(shape)
    if not replace and draws > count:
        raise DrawError(
            "more draws than elements", got=f"{draws} of {count}", rule="with replace=False each is drawn once"
        )
    if count == 0 and draws:
        raise DrawError("choice from nothing", got=f"{a!r}")
    if p is not None:
        p = torch.as_tensor(p)
        p = p if p.is_floating_point() else p.float()
        if tuple(p.shape) != (count,):
            raise DrawError("p is a weight for each element", got=f"p of shape {tuple(p.shape)}, {count}")
    data, sizes = checked("choice", key, shape)
    result_shape = [*population.shape[:axis], *sizes, *population.shape[axis + 1 :]]
    if draws == 0:
        return population.new_zeros(result_shape)
    if p is None and not replace:
        if _count(a) is not None or population.dim() == 1:
            return _shuffled(data, population, axis)[:draws].reshape(result_shape)
        order = _shuffled(data, torch.arange(count, dtype=torch.int32), 0)
        return selected(population, axis, order[:draws]).reshape(result_shape)
    if p is None:
        index = randint_of(data, sizes, 0, count, torch.int32)
    elif replace:
        heap = torch.cumsum(p, 0)
        index = torch.searchsorted(heap, heap[-1] * (1 - unit(data, sizes, p.dtype)), out_int32=True)
    else:
        index = torch.topk(gumbel_of(data, [count], p.dtype, mode) + torch.log(p), draws).indices.to(torch.int32)
    if _count(a) is not None:
        return index.reshape(result_shape)
    return selected(population, axis, index.reshape(-1)).reshape(result_shape)


@placed
def categorical(
    key: Any,
    logits: Tensor,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
    mode: str = "low",
    **others: Any,
) -> Tensor:
    """Indices drawn with probabilities softmax(logits).

    Args:
        key: one Key.
        logits: floats; `axis` counts the classes of one distribution.
        axis: the dim of the classes.
        shape: of the result; its last sizes are those of logits without `axis`.
        replace: whether, for one distribution, an index may be drawn twice.
        mode: of `gumbel`.
        out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

    Returns:
        int32 of that shape.

    Raises:
        DtypeError, DrawError: not a key, several keys, logits that are not floats, a shape that does not fit.

    Communication: as `bits`, and that of the maximum along `axis` if it is cut.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> categorical(ts.random.key(0), torch.tensor([0.0, 50.0]), shape=(3,))
        Array([1, 1, 1], dtype=int32)
    """
    check_others(categorical, others)
    check_mode("categorical", mode)
    logits = torch.as_tensor(logits)
    dtype = checked_float("categorical", logits.dtype)
    axis = _checked_axis("categorical", axis, logits)
    batch = [n for d, n in enumerate(logits.shape) if d != axis]
    shape = batch if shape is None else checked_shape("categorical", shape)
    lead = len(shape) - len(batch)
    if lead < 0 or any(n not in (1, size) for n, size in zip(batch, shape[lead:], strict=True)):
        raise DrawError(
            "the shape of categorical does not fit its logits",
            got=f"shape {tuple(shape)}, logits {tuple(logits.shape)}, axis {axis}",
            rule=f"it ends in sizes that {tuple(batch)} broadcasts to",
        )
    data, sizes = checked("categorical", key, shape)
    if replace:
        whole = [*sizes[:lead], *sizes[lead : lead + axis], logits.shape[axis], *sizes[lead + axis :]]
        return torch.argmax(gumbel_of(data, whole, dtype, mode) + logits, lead + axis).to(torch.int32)
    if sizes[lead:] != batch:
        raise DrawError(
            "the shape of categorical without replacement does not fit its logits",
            got=f"shape {tuple(sizes)}, logits {tuple(logits.shape)}, axis {axis}",
            rule=f"it ends in {tuple(batch)}: the draws of one distribution are all different",
            try_="logits.expand(...), for distributions that are drawn from each for itself",
        )
    count = math.prod(sizes[:lead])
    if count > logits.shape[axis]:
        raise DrawError("more draws than classes", got=f"{count} of {logits.shape[axis]}")
    noisy = (logits + gumbel_of(data, list(logits.shape), dtype, mode)).movedim(axis, -1)
    return torch.topk(noisy, count).indices.movedim(-1, 0).reshape(sizes).to(torch.int32)
