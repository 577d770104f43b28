"""torch's stateful draws, made from a key: dropout in a module, torch.randn, x.normal_().

`_DRAWS` has a row for each function of torch: its draw from a key. The n-th draw of a call uses `fold_in(key, n)`.
"""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from tinyshard.core.errors import DtypeError, StatefulRandomError
from tinyshard.random.choices import permutation
from tinyshard.random.continuous import exponential, normal, uniform
from tinyshard.random.discrete import bernoulli, randint
from tinyshard.random.key_creation import fold_in
from tinyshard.random.keys import DrawError, Key, checked_key

_Call = Callable[..., Any]


def functional(fn: Callable[..., Any], key: Key) -> Callable[..., Any]:
    """A function whose stateful draws come from a key.

    Args:
        fn: any function or module. In it dropouts in training mode, attention with dropout_p, torch.rand, randn,
            randint, randperm, bernoulli, normal, their `_like` forms, and Tensor.uniform_, normal_, bernoulli_ and
            exponential_ draw from the key.
        key: one Key. Each call of the result draws the same numbers.

    Returns:
        The function of the same arguments. Under jit and grad it is a pure function of them and of the key; the numbers
        do not depend on the mesh.

    Raises:
        DtypeError: not a key.
        DrawError: several keys.
        StatefulRandomError: another stateful draw, as of torch.multinomial, on an Array or in a trace.

    Communication: none: each device draws its own block.

    In JAX: flax's `rngs={"dropout": key}`. In torch: `torch.manual_seed` before the call, with different numbers.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> net = torch.nn.Dropout(0.5)
        >>> functional(net, ts.random.key(0))(ts.array([1.0, 1.0, 1.0, 1.0]))
        Array([0., 2., 2., 2.], dtype=float32)
    """
    if not isinstance(key, Key):
        raise DtypeError(
            "a function draws from a key",
            got=f"ts.random.functional({getattr(fn, '__name__', fn)!r:.40}, {key!r:.40})",
            rule="the function comes first, and then one key",
            try_="ts.random.functional(fn, ts.random.key(0))",
        )
    checked_key("functional", key, consumes=False)

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _Draws(key):
            return fn(*args, **kwargs)

    return called


class _Draws(TorchFunctionMode):
    """A mode in which calls of torch that draw use the next key."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self._keys = (fold_in(key, number) for number in itertools.count())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draw = _DRAWS.get(func)
        if draw is not None:
            return draw(self._next, *args, **(kwargs or {}))
        if func not in _COMPOSED:
            return func(*args, **(kwargs or {}))
        with self:  # the draw calls functions of the table
            return _undispatched(func)(*args, **(kwargs or {}))

    def _next(self) -> Key:
        return next(self._keys)


_Next = Callable[[], Key]

_COMPOSED = {F.multi_head_attention_forward, F.gumbel_softmax}


@functools.cache
def _undispatched(func: Any) -> Any:
    """A function of torch.nn.functional without its dispatch to modes and subclasses."""
    asks = {name: lambda *_: False for name in func.__globals__ if name.startswith("has_torch_function")}
    body = types.FunctionType(func.__code__, func.__globals__ | asks, func.__name__, func.__defaults__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


# ---- dropout ----------------------------------------------------------------------------------------------------


def _dropped(mask_shape: Callable[[Tensor], Sequence[int]]) -> _Call:
    def draw(key: _Next, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return input
        _check_probability(p)
        keep = bernoulli(key(), 1.0 - p, mask_shape(input))
        out = torch.where(keep, input / (1 - p), torch.zeros((), dtype=input.dtype)) if p < 1 else input * 0
        return input.copy_(out) if inplace else out

    return draw


def _alpha_dropped(mask_shape: Callable[[Tensor], Sequence[int]]) -> _Call:
    def draw(key: _Next, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return input
        _check_probability(p)
        low = -1.7580993408473766  # selu's limit: -scale * alpha
        scale = 1 / math.sqrt((1 - p) * (1 + p * low**2)) if p < 1 else 0.0
        keep = bernoulli(key(), 1.0 - p, mask_shape(input))
        out = torch.where(keep, input, torch.full((), low, dtype=input.dtype)) * scale - scale * low * p
        return input.copy_(out) if inplace else out

    return draw


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise DrawError("the probability of a dropout is between 0 and 1", got=f"p={p}")


def _elements(x: Tensor) -> Sequence[int]:
    return x.shape


def _channels(x: Tensor) -> Sequence[int]:
    return (*x.shape[:2], *[1] * (x.dim() - 2))


def _channels_of(batched: int) -> Callable[[Tensor], Sequence[int]]:
    """The first two dims of inputs of this rank; the first dim of an input without a batch."""
    return lambda x: _channels(x) if x.dim() == batched else (x.shape[0], *[1] * (x.dim() - 1))


def _attention(
    key: _Next,
    query: Tensor,
    keys: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p == 0:
        return F.scaled_dot_product_attention(
            query, keys, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        keys, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (keys, value))
    scores = query @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        is_bias = attn_mask.dtype != torch.bool
        scores = scores + attn_mask if is_bias else scores.masked_fill(attn_mask.logical_not(), -math.inf)
    return _dropped(_elements)(key, scores.softmax(-1), dropout_p) @ value


# ---- new tensors ------------------------------------------------------------------------------------------------


_PLACES = {"device", "layout", "pin_memory", "memory_format", "names"}  # the consumer decides where devices draw


def _checked(name: str, others: dict[str, Any], *allowed: str) -> None:
    """Refuse arguments that a draw from a key would ignore."""
    strange = [n for n, value in others.items() if n not in _PLACES and n not in allowed and value is not None]
    if strange:
        raise StatefulRandomError(
            f"torch.{name} with an argument that a draw from a key cannot follow",
            got=f"{strange[0]}={others[strange[0]]!r:.60}, in ts.random.functional",
            rule="the numbers come from the key, as a new value",
            try_=f"torch.{name} without {strange[0]}=",
        )


def _new(name: str, distribution: _Call) -> _Call:
    """torch.rand(2, 3), torch.rand((2, 3), dtype=...)."""

    def draw(key: _Next, *sizes: Any, size: Any = None, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
        _checked(name, others, "requires_grad")
        shape = size if size is not None else sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        return _with_grad(distribution(key(), tuple(shape), dtype or torch.get_default_dtype()), others)

    return draw


def _like(name: str, distribution: _Call) -> _Call:
    def draw(key: _Next, input: Tensor, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
        _checked(name, others, "requires_grad")
        return _with_grad(distribution(key(), tuple(input.shape), dtype or input.dtype), others)

    return draw


def _with_grad(x: Tensor, options: dict[str, Any]) -> Tensor:
    return x.requires_grad_() if options.get("requires_grad") else x


def _randint(key: _Next, *args: Any, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    given = dict(zip(("low", "high", "size") if len(args) == 3 else ("high", "size"), args, strict=False)) | others
    _checked("randint", others, "low", "high", "size")
    return _ints(key, tuple(given["size"]), given.get("low", 0), given["high"], dtype or torch.int64)


def _randint_like(key: _Next, input: Tensor, *bounds: Any, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    _checked("randint_like", others, "low", "high")
    low, high = (0, *bounds)[-2:] if bounds else (others.get("low", 0), others["high"])
    return _ints(key, tuple(input.shape), low, high, dtype or input.dtype)


def _ints(key: _Next, shape: tuple[int, ...], low: int, high: int, dtype: torch.dtype) -> Tensor:
    if not -(1 << 31) <= low < high < 1 << 31:
        raise DrawError(
            "a range of ints that a key does not draw from",
            got=f"torch.randint from {low} to {high}, in ts.random.functional",
            rule="low < high, and both fit in int32",
        )
    return randint(key(), shape, low, high).to(dtype)


def _randperm(key: _Next, n: int, dtype: torch.dtype | None = None, **others: Any) -> Tensor:
    _checked("randperm", others)
    return permutation(key(), n).to(dtype or torch.int64)


def _bernoulli(key: _Next, input: Tensor, p: float | None = None, **others: Any) -> Tensor:
    _checked("bernoulli", others)
    return bernoulli(key(), input if p is None else float(p), tuple(input.shape)).to(input.dtype)


def _normal(
    key: _Next,
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    **others: Any,
) -> Tensor:
    _checked("normal", others, "requires_grad")
    shape = torch.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Tensor))) if size is None else size
    kind = dtype or next((x.dtype for x in (mean, std) if isinstance(x, Tensor)), torch.get_default_dtype())
    return _with_grad(normal(key(), tuple(shape), kind) * std + mean, others)


# ---- in place ---------------------------------------------------------------------------------------------------


def _bernoulli_(key: _Next, x: Tensor, p: Any = 0.5, **others: Any) -> Tensor:
    return x.copy_(bernoulli(key(), p if isinstance(p, Tensor) else float(p), tuple(x.shape)))


def _uniform_(key: _Next, x: Tensor, a: float = 0.0, b: float = 1.0, **others: Any) -> Tensor:
    return x.copy_(uniform(key(), tuple(x.shape), x.dtype, a, b))


def _normal_(key: _Next, x: Tensor, mean: float = 0.0, std: float = 1.0, **others: Any) -> Tensor:
    return x.copy_(normal(key(), tuple(x.shape), x.dtype) * std + mean)


def _exponential_(key: _Next, x: Tensor, lambd: float = 1.0, **others: Any) -> Tensor:
    return x.copy_(exponential(key(), tuple(x.shape), x.dtype) / lambd)


def _initial(draw: _Call) -> _Call:
    return lambda key, tensor, *args, **kwargs: torch.no_grad()(draw)(key, tensor, *args, **kwargs)


def _kaiming_uniform(
    key: _Next, x: Tensor, a: float = 0, mode: Any = "fan_in", nonlinearity: Any = "leaky_relu", **others: Any
) -> Tensor:
    gain = init.calculate_gain(nonlinearity, a)
    bound = gain * math.sqrt(3 / init._calculate_correct_fan(x, mode))
    return _uniform_(key, x, -bound, bound)


_DRAWS: dict[Any, _Call] = {
    **dict.fromkeys((F.dropout, torch.dropout), _dropped(_elements)),
    **dict.fromkeys((F.dropout2d, torch.feature_dropout), _dropped(_channels)),
    F.dropout1d: _dropped(_channels_of(3)),
    F.dropout3d: _dropped(_channels_of(5)),
    **dict.fromkeys((F.alpha_dropout, torch.alpha_dropout), _alpha_dropped(_elements)),
    **dict.fromkeys((F.feature_alpha_dropout, torch.feature_alpha_dropout), _alpha_dropped(_channels)),
    F.scaled_dot_product_attention: _attention,
    torch.rand: _new("rand", uniform),
    torch.randn: _new("randn", normal),
    torch.rand_like: _like("rand_like", uniform),
    torch.randn_like: _like("randn_like", normal),
    torch.randint: _randint,
    torch.randint_like: _randint_like,
    torch.randperm: _randperm,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _bernoulli),
    torch.normal: _normal,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
    Tensor.exponential_: _exponential_,
    init.uniform_: _initial(_uniform_),
    init.normal_: _initial(_normal_),
    init.kaiming_uniform_: _initial(_kaiming_uniform),
}
