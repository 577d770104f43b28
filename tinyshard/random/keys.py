"""Keys, which draws take in place of a hidden state. A key is a value; a draw does not change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from tinyshard.arrays.array import Array
from tinyshard.arrays.function_overrides.traced_index import dims_taken
from tinyshard.core import config
from tinyshard.core.errors import DrawError, DtypeError, KeyIndexError, KeyReuseError, message
from tinyshard.core.ints import one_or_more
from tinyshard.core.thread_state import is_tracing
from tinyshard.core.users_line import users_line


@dataclass(frozen=True, slots=True)
class KeyDtype:
    """The dtype of keys: not a torch dtype, since those are for numbers."""

    itemsize: int = 8

    def __repr__(self) -> str:
        return "key<fry>"


class Key:
    """One key, or an array of keys. Made by `key`, `split`, `fold_in` and `wrap_key_data`; immutable.

    It is indexed, unpacked and mapped like an array of its shape, and is put on devices by `ts.device_put`; a sharding
    is for its shape too. `torch.stack` and `torch.concatenate` take keys; functions that compute with numbers do not.
    For torch's trees it is a container of one int32 tensor; for `ts.tree` it is a leaf.

    Args:
        data: int32[..., 2], a plain tensor or an Array.

    Communication: none.

    In JAX: an array of dtype `key<fry>`.

    Example:
        >>> import tinyshard as ts
        >>> ts.random.key(42)
        Key() overlaying:
        [ 0 42]
        >>> ts.random.split(ts.random.key(42), 3).shape
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
    def dtype(self) -> KeyDtype:
        """`key<fry>`, which is not a dtype of torch: a key is not a number."""
        return KeyDtype()

    @property
    def size(self) -> int:
        """How many keys."""
        return self.data.numel() // 2

    @property
    def sharding(self) -> Any:
        """The sharding of the keys; None for keys on the host."""
        if not isinstance(self.data, Array):
            return None
        sharding: Any = self.data.sharding
        return sharding.reshape(*sharding.shape[:-1]) if _is_positional(sharding) else sharding

    def reshape(self, *shape: Any) -> Key:
        """The same keys in another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Key(self.data.reshape(*sizes, 2))

    def _placed(self, put: Any, sharding: Any) -> Key:
        """The keys in a sharding for their own shape; `put` places one tensor."""
        if sharding is not None:
            sharding.checked_layout(self.shape)
        if _is_positional(sharding) and sharding.shape:
            sharding = sharding.reshape(*sharding.shape, 1)
        return Key(put(self.data, sharding))

    def block_until_ready(self) -> Key:
        """Wait until the keys are computed."""
        if isinstance(self.data, Array):
            self.data.block_until_ready()
        return self

    def __getitem__(self, index: Any) -> Key:
        entries = tuple(map(_entry, index if isinstance(index, tuple) else (index,)))
        taken = sum(map(dims_taken, entries))
        if taken > self.ndim:
            if self.ndim == 0:
                problem, try_ = "one key cannot be indexed", "ts.random.split(key, n)[i]"
            else:
                problem, try_ = "too many indices for the array of keys", ""
            raise KeyIndexError(problem, got=f"key[{index!r}] of keys of shape {self.shape}", try_=try_)
        has_ellipsis = any(entry is Ellipsis for entry in entries)
        return Key(self.data[(*entries, slice(None)) if has_ellipsis else entries])

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DrawError("one key has no length", got="a key of shape ()", try_="a, b = ts.random.split(key)")
        return self.shape[0]

    def __iter__(self) -> Iterator[Key]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> Any:
        return (self.data == other.data).all(-1) if isinstance(other, Key) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return (self.data != other.data).any(-1) if isinstance(other, Key) else NotImplemented

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise DtypeError(
            "keys are not numbers, and have no NumPy array",
            got=f"keys of shape {self.shape}",
            try_="ts.random.key_data(key).numpy() for their words",
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`torch.stack` and `torch.concatenate`, which move keys; everything else is refused."""
        join = _JOINS.get(func)
        if join is None:
            raise DtypeError(
                "torch's functions compute with numbers, and keys are none",
                got=f"torch.{getattr(func, '__name__', func)} of a Key",
                rule="torch.stack and torch.concatenate take keys",
                try_="a draw, as ts.random.normal(key, shape); or ts.random.key_data(key) for the words",
            )
        return _joined(func, join, *args, **(kwargs or {}))

    __hash__ = None  # type: ignore[assignment]  # as for an array: the values that are compared may be a future

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            message("a key cannot be changed", got=f"key.{name} = ...", try_="new = ts.random.fold_in(key, i)")
        )

    def __reduce__(self) -> Any:
        return Key, (self.data,)

    def __repr__(self) -> str:
        named = f"Key({', '.join(map(str, self.shape))})"
        is_tensor = isinstance(self.data, torch.Tensor)  # eval_shape returns keys of shapes
        if not is_tensor or is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(self.data):
            return named
        values = self.data.numpy(force=True) if isinstance(self.data, Array) else self.data.numpy()
        return f"{named} overlaying:\n{values.view('uint32')}"


# functions of torch that move keys -> the number of additional dims of the result
_JOINS = {torch.stack: 1, torch.cat: 0, torch.concat: 0, torch.concatenate: 0}


def _joined(func: Any, more: int, tensors: Any, dim: int = 0, *, axis: int | None = None) -> Key:
    keys = [checked_keys(func.__name__, k) for k in tensors]
    ndim = keys[0].ndim + more
    position = dim if axis is None else axis
    if not -ndim <= position < ndim:
        raise KeyIndexError(f"{func.__name__} has no such dim", got=f"dim {position} of a result of {ndim} dims")
    return Key(func([k.data for k in keys], dim=position % ndim))


def _entry(entry: Any) -> Any:
    """One entry of an index as torch takes it: lists and NumPy arrays as tensors, NumPy numbers as ints."""
    if isinstance(entry, np.integer):
        return int(entry)
    return torch.as_tensor(entry) if isinstance(entry, list | np.ndarray) else entry


def _is_positional(sharding: Any) -> bool:
    return hasattr(sharding, "replicate")


register_pytree_node(
    Key,
    lambda k: ([k.data], None),
    lambda children, _: Key(next(iter(children))),
    serialized_type_name="tinyshard.random.Key",
    flatten_with_keys_fn=lambda k: ([(GetAttrKey("data"), k.data)], None),
)


# ---- checks of all functions of keys --------------------------------------------------------------------------------


def checked_key(function: str, key: Any, *, consumes: bool = True) -> Tensor:
    """The words of one key, int32[2].

    Raises:
        DtypeError: not a Key.
        DrawError: several keys.
        KeyReuseError: with the flag `debug_key_reuse`, the key was used before.
    """
    data = checked_keys(function, key).data
    if key.ndim:
        raise DrawError(
            f"{function} takes one key",
            got=f"keys of shape {key.shape}",
            rule="an array of keys is mapped over",
            try_=f"torch.func.vmap(lambda k: ts.random.{function}(k, ...))(keys), or keys[0]",
        )
    if consumes:
        _consume(function, data)
    return data


def checked_keys(function: str, key: Any) -> Key:
    """The keys. Raises DtypeError for anything else."""
    if isinstance(key, Key):
        return key
    what = f"a tensor of {key.dtype}" if isinstance(key, Tensor) else f"{key!r} ({type(key).__name__})"
    if isinstance(key, Tensor) and key.dtype in (torch.uint32, torch.int32):
        try_ = "ts.random.wrap_key_data(data) for the words of a key"
    elif isinstance(key, int):
        try_ = f"ts.random.{function}(ts.random.key({key}), ...)"
    else:
        try_ = f"ts.random.{function}(ts.random.key(0), ...): the key comes first"
    raise DtypeError(f"ts.random.{function} takes a key", got=what, try_=try_)


def checked_shape(function: str, shape: Any) -> list[int]:
    """A shape as a list of ints.

    Raises:
        DtypeError: not a sequence of ints.
        DrawError: a negative size.
    """
    given = one_or_more(shape, f"the shape of {function}", DtypeError, "(3,) or (8, 4)")
    sizes = [given] if isinstance(given, int) else list(given)
    if any(n < 0 for n in sizes):
        raise DrawError(f"the shape of {function} has a negative size", got=str(tuple(sizes)))
    return sizes


# ---- reuse of keys, for `ts.config.update("debug_key_reuse", True)` -------------------------------------------------
#
# Two draws from one key are the same numbers. With the flag, a key that was drawn from or split is remembered, and its
# next use is an error that names the first. Making a key (`key`, `split`, `fold_in`) makes it new again, so that a cell
# can be run twice.

_used: dict[tuple[int, ...], Any] = {}  # the words of a key -> the line that used it


def _keys_in(data: Tensor) -> list[tuple[int, ...]]:
    """The keys whose values can be read now: none in a trace or a transformation."""
    if is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(data):
        return []
    return [tuple(pair) for pair in data.reshape(-1, 2).tolist()]


def new_key(data: Any) -> Key:
    """Note that keys with these words are new: drawing from them is not an error."""
    if config.read("debug_key_reuse"):
        for pair in _keys_in(data):
            _used.pop(pair, None)
    return Key(data)


def _consume(function: str, data: Tensor) -> None:
    """Note that a function uses these keys.

    Raises:
        KeyReuseError: one was used before.
    """
    if not config.read("debug_key_reuse"):
        _used.clear()
        return
    here = f"{function} in {users_line()}"
    for pair in _keys_in(data):
        if pair in _used:
            raise KeyReuseError(
                "a key is used a second time",
                got=f"key {[word & 0xFFFFFFFF for word in pair]}: {_used[pair]}, then {here}",
                rule="one key gives the same numbers each time: use it once, for one draw or one split",
                try_="first, second = ts.random.split(key)",
            )
        _used[pair] = here
