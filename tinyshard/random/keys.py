"""Keys: what a draw takes in place of a hidden state. A key is a value; nothing about it changes when it is used."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from tinyshard import config
from tinyshard.array import Array
from tinyshard.errors import DtypeError, TinyshardError, message
from tinyshard.operators import BATCHED
from tinyshard.random import reuse
from tinyshard.random.draw import DRAW
from tinyshard.random.original import DRAW_ORIGINAL
from tinyshard.random.threefry import words
from tinyshard.trace import is_tracing


class KeyShapeError(TinyshardError, ValueError):
    """One key is wanted, and several are given; or a shape or range that cannot be."""


class Key:
    """One key, or an array of keys. Made by `key`, `split`, `fold_in` and `wrap_key_data`; immutable.

    It is indexed, unpacked and mapped like an array of its shape, and is put on devices by `ts.device_put`; a sharding
    is for its shape too. To torch's trees it is a container of one int32 tensor; to `ts.tree` it is a leaf.

    Args:
        data: int32[..., 2], a plain tensor or an Array.

    In JAX: an array of dtype `key<fry>`.

    Example:
        >>> key(42)
        Key() overlaying:
        [ 0 42]
        >>> split(key(42), 3).shape
        (3,)
    """

    __slots__ = ("data",)
    data: Tensor

    def __init__(self, data: Any) -> None:
        object.__setattr__(self, "data", data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of keys; () for one key."""
        return tuple(self.data.shape[:-1])

    @property
    def ndim(self) -> int:
        """Number of dims of the array of keys: mapped axes are counted in these."""
        return self.data.dim() - 1

    @property
    def size(self) -> int:
        """How many keys."""
        return self.data.numel() // 2

    @property
    def sharding(self) -> Any:
        """How the keys lie over devices; None for keys on the host."""
        if not isinstance(self.data, Array):
            return None
        sharding: Any = self.data.sharding
        return sharding.reshape(*sharding.shape[:-1]) if _is_positional(sharding) else sharding

    def reshape(self, *shape: Any) -> Key:
        """The same keys under another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Key(self.data.reshape(*sizes, 2))

    def _placed(self, put: Any, sharding: Any) -> Key:
        """The keys where a sharding of their own shape says; `put` places one tensor."""
        if _is_positional(sharding) and sharding.shape:
            sharding = sharding.reshape(*sharding.shape, 1)
        return Key(put(self.data, sharding))

    def block_until_ready(self) -> Key:
        """Wait until the keys are computed."""
        if isinstance(self.data, Array):
            self.data.block_until_ready()
        return self

    def __getitem__(self, index: Any) -> Key:
        if self.ndim == 0:
            raise KeyShapeError(
                message("one key cannot be indexed", got=f"key[{index!r}]", try_="ts.random.split(key, n)[i]")
            )
        index = index if isinstance(index, tuple) else (index,)
        whole = slice(None)
        return Key(self.data[(*index, whole) if Ellipsis in index else index])

    def __len__(self) -> int:
        if self.ndim == 0:
            raise KeyShapeError(
                message("one key has no length", got="a key of shape ()", try_="a, b = ts.random.split(key)")
            )
        return self.shape[0]

    def __iter__(self) -> Iterator[Key]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> Any:
        return (self.data == other.data).all(-1) if isinstance(other, Key) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as an array's: equal keys are told apart by values that may be a future

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            message("a key cannot be changed", got=f"key.{name} = ...", try_="new = ts.random.fold_in(key, i)")
        )

    def __reduce__(self) -> Any:
        return Key, (self.data,)

    def __repr__(self) -> str:
        named = f"Key({', '.join(map(str, self.shape))})"
        if is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(self.data):
            return named
        values = self.data.numpy(force=True) if isinstance(self.data, Array) else self.data.numpy()
        return f"{named} overlaying:\n{values.view('uint32')}"


def _is_positional(sharding: Any) -> bool:
    return hasattr(sharding, "replicate")


register_pytree_node(
    Key,
    lambda k: ([k.data], None),
    lambda children, _: Key(next(iter(children))),
    serialized_type_name="tinyshard.random.Key",
    flatten_with_keys_fn=lambda k: ([(GetAttrKey("data"), k.data)], None),
)


def key(seed: Any) -> Key:
    """A key made from a number.

    Args:
        seed: an int, or a 0-d tensor of ints; its lowest 32 bits count.

    Returns:
        A key of shape (), on the host unless the seed is an Array.

    Raises:
        DtypeError: not an int.
        KeyShapeError: several numbers, or an int of more than 64 bits.

    Communication: none; no device is started.

    Example:
        >>> key(-1)
        Key() overlaying:
        [         0 4294967295]
    """
    if isinstance(seed, Key):
        raise DtypeError(message("a seed is an int", got="a Key", try_="ts.random.fold_in(key, 1) for another key"))
    if isinstance(seed, Tensor):
        if seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool:
            raise _not_an_int("a seed is an int", f"a tensor of {seed.dtype}")
        if seed.dim():
            raise KeyShapeError(
                message(
                    "a seed is one number",
                    got=f"a tensor of shape {tuple(seed.shape)}",
                    try_="torch.func.vmap(ts.random.key)(seeds), or ts.random.split(key, n)",
                )
            )
        word = seed.to(torch.int32)
        made = Key(torch.stack([torch.zeros_like(word), word]))
    else:
        number = _int(seed, "a seed is an int")
        if not -(2**63) <= number < 2**63:
            raise KeyShapeError(message("a seed has at most 64 bits", got=str(number)))
        made = Key(torch.tensor([0, _signed(number)], dtype=torch.int32))
    reuse.made(made.data)
    return made


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
    return _checked("key_data", keys).data.view(torch.uint32)


def wrap_key_data(data: Any) -> Key:
    """Keys made from their words.

    Args:
        data: uint32[..., 2] (or int32), a tensor, Array, NumPy array or nested list.

    Returns:
        A Key of shape data.shape[:-1].

    Raises:
        DtypeError: not 32-bit integers.
        KeyShapeError: the last dim is not 2.

    Communication: none.

    Example:
        >>> wrap_key_data([0, 7])
        Key() overlaying:
        [0 7]
    """
    if isinstance(data, list | tuple):
        data = torch.tensor(data, dtype=torch.int64).to(torch.int32)
    data = data if isinstance(data, Tensor) else torch.as_tensor(data).clone()
    if data.dtype not in (torch.uint32, torch.int32):
        raise DtypeError(message("the words of a key are uint32", got=str(data.dtype), try_="data.to(torch.uint32)"))
    if not data.dim() or data.shape[-1] != 2:
        raise KeyShapeError(message("a key is two words", got=f"shape {tuple(data.shape)}", rule="the last dim is 2"))
    made = Key(data.view(torch.int32))
    reuse.made(made.data)
    return made


def split(key: Key, num: int | Sequence[int] = 2) -> Key:
    """New keys from one key, which is then used up.

    Args:
        key: one key.
        num: how many, or the shape of the array of new keys.

    Returns:
        A Key of shape (num,), where the key is: `first, second = split(key)`.

    Raises:
        DtypeError: not a Key.
        KeyShapeError: several keys, or a negative count.

    Communication: none; each new key has a counter of its own.

    Example:
        >>> a, b = split(key(0))
        >>> a
        Key() overlaying:
        [1797259609 2579123966]
    """
    data = checked_key("split", key)
    shape = checked_shape("split", (num,) if isinstance(num, int) else num)
    made = Key(draw_op(data, shape, "words", torch.int32))
    reuse.made(made.data)
    return made


def fold_in(key: Key, data: Any) -> Key:
    """A new key from a key and a number: of a step, a layer, a device. The key is not used up.

    Args:
        key: one key.
        data: an int below 2**32, or a 0-d tensor of ints.

    Returns:
        A key of shape ().

    Raises:
        DtypeError: not a Key, or not an int.
        KeyShapeError: several keys or numbers, or an int that has more than 32 bits or is negative.

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
            raise KeyShapeError(
                message(
                    "fold_in takes one number",
                    got=f"a tensor of shape {tuple(data.shape)}",
                    try_="torch.func.vmap(ts.random.fold_in, in_dims=(None, 0))(key, numbers)",
                )
            )
        low = data.to(torch.int32)
    else:
        number = _int(data, "fold_in takes an int")
        if not 0 <= number < 2**32:
            raise KeyShapeError(message("fold_in takes a number of 32 bits", got=str(number), rule="0 <= n < 2**32"))
        low = torch.tensor(_signed(number), dtype=torch.int32)
    made = Key(FOLD(words_of, low))
    reuse.made(made.data)
    return made


_library = torch.library.Library("tinyshard", "FRAGMENT")
_library.define("fold_in(Tensor key, Tensor number) -> Tensor")


@torch.library.impl(_library, "fold_in", "CompositeExplicitAutograd")
def _fold_in(key: Tensor, number: Tensor) -> Tensor:
    low = number.broadcast_to(key.shape[:-1]).clone()
    return torch.stack(words(key[..., 0].clone(), key[..., 1].clone(), torch.zeros_like(low), low), -1)


@torch.library.impl(_library, "fold_in", "Meta")
def _fold_in_on_meta(key: Tensor, number: Tensor) -> Tensor:
    return torch.empty_like(key)


FOLD = torch.ops.tinyshard.fold_in.default
BATCHED[FOLD] = -1


@torch.library.register_vmap("tinyshard::fold_in", lib=_library)
def _fold_in_under_vmap(info: Any, in_dims: Any, key: Tensor, number: Tensor) -> tuple[Tensor, int]:
    given = [
        x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
        for x, d in zip((key, number), in_dims, strict=True)
    ]
    return FOLD(*given), 0


# ---- what every function of keys checks -----------------------------------------------------------------------------


def draw_op(
    data: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """Record or run the op that draws, in the mode that `threefry_partitionable` says."""
    if config.read("threefry_partitionable"):
        return DRAW(data, shape, [1] * len(shape), [], kind, dtype, low, high)
    return DRAW_ORIGINAL(data, shape, kind, dtype, low, high)


def checked_key(function: str, key: Any, *, consumes: bool = True) -> Tensor:
    """The words of one key, int32[2].

    Raises:
        DtypeError: not a Key.
        KeyShapeError: several keys.
        KeyReuseError: with the flag `debug_key_reuse`, the key was used before.
    """
    data = _checked(function, key).data
    if key.ndim:
        raise KeyShapeError(
            message(
                f"{function} takes one key",
                got=f"keys of shape {key.shape}",
                rule="an array of keys is mapped over",
                try_=f"torch.func.vmap(lambda k: ts.random.{function}(k, ...))(keys), or keys[0]",
            )
        )
    if consumes:
        reuse.consume(function, data)
    return data


def _checked(function: str, key: Any) -> Key:
    if isinstance(key, Key):
        return key
    what = f"a tensor of {key.dtype}" if isinstance(key, Tensor) else f"{key!r} ({type(key).__name__})"
    if isinstance(key, Tensor) and key.dtype in (torch.uint32, torch.int32):
        try_ = "ts.random.wrap_key_data(data) for the words of a key"
    elif isinstance(key, int):
        try_ = f"ts.random.{function}(ts.random.key({key}), ...)"
    else:
        try_ = f"ts.random.{function}(ts.random.key(0), ...): the key comes first"
    raise DtypeError(message(f"ts.random.{function} takes a key", got=what, try_=try_))


def checked_shape(function: str, shape: Any) -> list[int]:
    """A shape as a list of ints.

    Raises:
        DtypeError: not a sequence of ints.
        KeyShapeError: a negative size, or too many elements for the counters of the original mode.
    """
    try:
        sizes = [operator.index(n) for n in ((shape,) if isinstance(shape, int) else shape)]
    except TypeError as error:
        raise DtypeError(
            message(f"the shape of {function} is a sequence of ints", got=repr(shape), try_="(3,) or (8, 4)")
        ) from error
    if any(n < 0 for n in sizes):
        raise KeyShapeError(message(f"the shape of {function} has a negative size", got=str(tuple(sizes))))
    return sizes


def _int(value: Any, problem: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise _not_an_int(problem, f"{value!r} ({type(value).__name__})") from error


def _not_an_int(problem: str, got: str) -> DtypeError:
    return DtypeError(message(problem, got=got, try_="int(x)"))


def _signed(number: int) -> int:
    """The lowest 32 bits, as an int32 has them."""
    return (number + 2**31) % 2**32 - 2**31
