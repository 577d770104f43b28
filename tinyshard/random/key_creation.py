"""Functions that make keys: from a seed, a key, a key and a number, or the words of keys."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import tinyshard.primitives.sharded_draws  # noqa: F401  the rules of the ops that draw
from tinyshard.core import config
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.primitive import define
from tinyshard.primitives.legacy_threefry import DRAW_ORIGINAL
from tinyshard.primitives.random_bits import DRAW, register_batched
from tinyshard.primitives.threefry import words
from tinyshard.random.keys import DrawError, Key, checked_key, checked_keys, checked_shape, new_key


def key(seed: Any, **others: Any) -> Key:
    """Make a key from a number.

    Args:
        seed: an int, or a 0-d tensor of ints; its lowest 32 bits count.
        others: only impl="threefry2x32".

    Returns:
        A key of shape (), on the host unless the seed is an Array.

    Raises:
        DtypeError: not an int.
        DrawError: several numbers, or an int of more than 64 bits.

    Communication: none; no device is started.

    Example:
        >>> key(-1)
        Key() overlaying:
        [         0 4294967295]
    """
    check_others(key, others)
    if isinstance(seed, Key):
        raise DtypeError("a seed is an int", got="a Key", try_="ts.random.fold_in(key, 1) for another key")
    if isinstance(seed, Tensor):
        if seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool:
            raise _not_an_int("a seed is an int", f"a tensor of {seed.dtype}")
        if seed.dim():
            raise DrawError(
                "a seed is one number",
                got=f"a tensor of shape {tuple(seed.shape)}",
                try_="torch.func.vmap(ts.random.key)(seeds), or ts.random.split(key, n)",
            )
        word = seed.to(torch.int32)
        return new_key(torch.stack([torch.zeros_like(word), word]))
    number = _int(seed, "a seed is an int")
    if not -(2**63) <= number < 2**63:
        raise DrawError("a seed has at most 64 bits", got=str(number))
    return new_key(torch.tensor([0, _signed(number)], dtype=torch.int32))


PRNGKey = key


def key_data(keys: Key) -> Tensor:
    """The words of keys.

    Args:
        keys: a Key of any shape.

    Returns:
        uint32[*keys.shape, 2], an Array if the keys are on devices.

    Raises:
        DtypeError: not a Key.

    Communication: none.

    Example:
        >>> key_data(key(7)).tolist()
        [0, 7]
    """
    return checked_keys("key_data", keys).data.view(torch.uint32)


def key_impl(keys: Key) -> str:
    """The name of the keys' hash.

    Args:
        keys: a Key of any shape.

    Returns:
        "threefry2x32", the only one.

    Raises:
        DtypeError: not a Key.

    Communication: none.

    In JAX: "fry", and other hashes.

    Example:
        >>> key_impl(key(0))
        'threefry2x32'
    """
    checked_keys("key_impl", keys)
    return "threefry2x32"


def clone(key: Key) -> Key:
    """The same keys, as if new: with the flag `debug_key_reuse`, drawing from them again is not an error.

    Args:
        key: a Key of any shape.

    Returns:
        Equal keys.

    Raises:
        DtypeError: not a Key.

    Communication: none.

    Example:
        >>> bool(clone(key(0)) == key(0))
        True
    """
    return new_key(checked_keys("clone", key).data)


def wrap_key_data(data: Any, **others: Any) -> Key:
    """Make keys from their words.

    Args:
        data: uint32[..., 2] (or int32), a tensor, Array, NumPy array or nested list; a Key is returned unchanged,
            since `PRNGKey` makes keys here.
        others: as for `key`.

    Returns:
        A Key of shape data.shape[:-1].

    Raises:
        DtypeError: not 32-bit integers.
        DrawError: the last dim is not 2.

    Communication: none.

    Example:
        >>> wrap_key_data([0, 7])
        Key() overlaying:
        [0 7]
    """
    check_others(wrap_key_data, others)
    if isinstance(data, Key):
        return data
    if isinstance(data, list | tuple):
        data = torch.tensor(data, dtype=torch.int64).to(torch.int32)
    data = torch.as_tensor(data)
    if data.dtype not in (torch.uint32, torch.int32):
        raise DtypeError("the words of a key are uint32", got=str(data.dtype), try_="data.to(torch.uint32)")
    if not data.dim() or data.shape[-1] != 2:
        raise DrawError("a key is two words", got=f"shape {tuple(data.shape)}", rule="the last dim is 2")
    return new_key(data.clone().view(torch.int32))


def split(key: Key, num: int | Sequence[int] = 2) -> Key:
    """New keys from one key, which must not be used again.

    Args:
        key: one key.
        num: the number, or the shape of the array, of new keys.

    Returns:
        A Key of shape (num,), on the devices of the key: `first, second = split(key)`.

    Raises:
        DtypeError: not a Key.
        DrawError: several keys, or a negative count.

    Communication: none; each new key has its own counter.

    Example:
        >>> a, b = split(key(0))
        >>> a
        Key() overlaying:
        [1797259609 2579123966]
    """
    shape = checked_shape("split", num)
    data = checked_key("split", key)
    return new_key(draw_op(data, shape, "words", torch.int32))


def fold_in(key: Key, data: Any) -> Key:
    """A new key from a key and a number: of a step, a layer, a device. The key can be used again.

    Args:
        key: one key.
        data: an int below 2**32, or a 0-d tensor of ints.

    Returns:
        A key of shape ().

    Raises:
        DtypeError: not a Key, or not an int.
        DrawError: several keys or numbers, or an int that has more than 32 bits or is negative.

    Communication: none.

    Example:
        >>> fold_in(key(0), 1)
        Key() overlaying:
        [ 928981903 3453687069]
    """
    words_of = checked_key("fold_in", key, consumes=False)
    if isinstance(data, Tensor):
        if data.is_floating_point() or data.is_complex():
            raise _not_an_int("fold_in takes an int", f"a tensor of {data.dtype}")
        if data.dim():
            raise DrawError(
                "fold_in takes one number",
                got=f"a tensor of shape {tuple(data.shape)}",
                try_="torch.func.vmap(ts.random.fold_in, in_dims=(None, 0))(key, numbers)",
            )
        low = data.to(torch.int32)
    else:
        number = _int(data, "fold_in takes an int")
        if not 0 <= number < 2**32:
            raise DrawError("fold_in takes a number of 32 bits", got=str(number), rule="0 <= n < 2**32")
        low = torch.tensor(_signed(number), dtype=torch.int32)
    return new_key(FOLD(words_of, low))


def _fold_in(key: Tensor, number: Tensor) -> Tensor:
    low = number.broadcast_to(key.shape[:-1]).clone()
    return torch.stack(words(key[..., 0].clone(), key[..., 1].clone(), torch.zeros_like(low), low), -1)


FOLD = define("fold_in(Tensor key, Tensor number) -> Tensor", _fold_in, lambda key, number: torch.empty_like(key))
register_batched(FOLD)


def draw_op(
    data: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """Record or run the op that draws, in the mode of `threefry_partitionable`."""
    if config.read("threefry_partitionable"):
        return DRAW(data, shape, [1] * len(shape), [], kind, dtype, low, high)
    return DRAW_ORIGINAL(data, shape, kind, dtype, low, high)


def _int(value: Any, problem: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise _not_an_int(problem, f"{value!r} ({type(value).__name__})") from error


def _not_an_int(problem: str, got: str) -> DtypeError:
    return DtypeError(problem, got=got, try_="int(x)")


def _signed(number: int) -> int:
    """The lowest 32 bits, as an int32."""
    return (number + 2**31) % 2**32 - 2**31
