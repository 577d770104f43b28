"""JAX's original counters, `threefry_partitionable` False: they depend on how many numbers are drawn.

The counters 0 .. n-1 are cut into two halves, counter i is hashed together with counter i + n/2, and the two resulting
words are elements i and i + n/2. An odd n is padded with a zero.

    n = 6     words of (0, 3), (1, 4), (2, 5)     elements 0 and 3, 1 and 4, 2 and 5

So a pair of words belongs to two elements of the tensor, n/2 apart. If the tensor is cut, one of the two devices
computes the pair and sends the other word: the only alternative to communication is to compute everything twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tinyshard.core.primitive import define
from tinyshard.primitives.random_bits import inner, made_of, register_batched, width
from tinyshard.primitives.threefry import words

MOST_WORDS = 2**32 - 1  # a counter is one word here


def word_count(shape: Sequence[int], kind: str, dtype: torch.dtype) -> int:
    """The number of words for the elements: elements of 8 or 16 bits share one."""
    return -(-math.prod(shape) * width(kind, dtype) // 32)


def hashed_pairs(key: Tensor, count: int, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Pairs number `first` to `last` - 1 of `count` words.

    Args:
        key: int32[..., 2].

    Returns:
        int32[..., last - first], twice: words i and words i + half.
    """
    half = -(-count // 2)
    low = torch.arange(first, last, device=key.device)
    high = low + half
    counters = ((torch.where(c < count, c, 0)).to(torch.int32) for c in (low, high))
    batch = key.reshape(-1, 2)
    given = (c.expand(len(batch), -1).clone() for c in counters)
    pair = words(batch[:, :1], batch[:, 1:], *given)
    return tuple(w.reshape(*key.shape[:-1], last - first) for w in pair)  # type: ignore[return-value]


def of_words(words: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """Elements made of words.

    Args:
        words: int32[..., n]; words beyond the needed ones are ignored.
        shape: of the elements, for each leading index of `words`.
    """
    batch, size, bits = words.shape[:-1], math.prod(shape), width(kind, dtype)
    words = words[..., : word_count(shape, kind, dtype)]
    if kind == "words":
        return words.reshape(*batch, *shape, 2)
    if bits == 64:
        raw = (words[..., :size].long() << 32) | (words[..., size:].long() & 0xFFFFFFFF)
    elif bits == 32:
        raw = words
    else:
        packed = words.clone(memory_format=torch.contiguous_format)
        narrow = packed.view(torch.int16 if bits == 16 else torch.int8)  # lowest bits first
        raw = narrow[..., :size].to(torch.int32)
    return made_of(raw.reshape([*batch, *shape]), kind, dtype, low, high)


def _draw_original(key: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, low: float, high: float) -> Tensor:
    count = word_count(shape, kind, dtype)
    both = torch.cat(hashed_pairs(key, count, 0, -(-count // 2)), -1)
    return of_words(both, shape, kind, dtype, low, high)


def _draw_original_on_meta(key: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, *_: float) -> Tensor:
    return key.new_empty([*key.shape[:-1], *shape, *inner(kind)], dtype=dtype)


# ---- on many devices: any layout --------------------------------------------------------------------------------


def pairs_each(count: int, parts: int) -> int:
    """The number of pairs that each of `parts` devices computes; the last ones may be unused."""
    half = -(-count // 2)
    return -(-half // parts)


def _pair_words(key: Tensor, count: int, parts: int, coordinates: Sequence[Tensor]) -> Tensor:
    """Each device's share of the pairs, int32[..., 2, share]."""
    share = pairs_each(count, parts)
    place = int(coordinates[0]) if coordinates else 0
    return torch.stack(hashed_pairs(key, count, place * share, (place + 1) * share), -2)


def _pair_words_on_meta(key: Tensor, count: int, parts: int, coordinates: Sequence[Tensor]) -> Tensor:
    return key.new_empty([*key.shape[:-1], 2, pairs_each(count, parts)])


def _of_words(words: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """The whole tensor, of the gathered pairs int32[..., 2, n]."""
    half = -(-word_count(shape, kind, dtype) // 2)
    return of_words(words[..., :half].flatten(-2), shape, kind, dtype, low, high)


def _of_words_on_meta(words: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, *_: float) -> Tensor:
    return words.new_empty([*words.shape[:-2], *shape, *inner(kind)], dtype=dtype)


# ---- on many devices: rows of an even number of elements, on an even number of devices ------------------------------
#
# Device b of p needs elements b * m .. (b + 1) * m. Device b + p/2 needs the same pairs: each of the two
# computes a half of them, and sends its partner's words.


def fits_pairs(shape: Sequence[int], parts: Sequence[int], kind: str, dtype: torch.dtype) -> bool:
    """Whether devices can compute half of their pairs and exchange."""
    plain = width(kind, dtype) == 32 and bool(parts) and parts[0] % 2 == 0
    return plain and all(p == 1 for p in parts[1:]) and math.prod(shape) > 0


def _half_of_block(count: int, parts: int) -> int:
    return -(-(count // parts) // 2)


def _draw_pairs(
    key: Tensor, count: int, parts: int, coordinates: Tensor, kind: str, dtype: torch.dtype, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """The words that this device keeps, and those that it sends to its partner."""
    block, share = count // parts, _half_of_block(count, parts)
    upper, place = divmod(int(coordinates), parts // 2)
    first = place * block + upper * share
    pair = hashed_pairs(key, count, first, first + share)
    own, sent = (made_of(w, kind, dtype, low, high) for w in (pair[upper], pair[1 - upper]))
    return own, sent


def _draw_pairs_on_meta(
    key: Tensor, count: int, parts: int, coordinates: Tensor, kind: str, dtype: torch.dtype, *_: float
) -> tuple[Tensor, Tensor]:
    pairs = key.new_empty([_half_of_block(count, parts)], dtype=dtype)
    return pairs, pairs.clone()


def _join_pairs(own: Tensor, got: Tensor, parts: int, coordinates: Tensor, shape: Sequence[int]) -> Tensor:
    upper = int(coordinates) >= parts // 2
    both = torch.cat((got, own) if upper else (own, got))
    return both[: math.prod(shape)].reshape(shape).clone()


def _join_pairs_on_meta(own: Tensor, got: Tensor, parts: int, coordinates: Tensor, shape: Sequence[int]) -> Tensor:
    return own.new_empty(shape)


DRAW_ORIGINAL = define(
    "draw_original(Tensor key, int[] shape, str kind, ScalarType dtype, float low, float high) -> Tensor",
    _draw_original,
    _draw_original_on_meta,
)
PAIR_WORDS = define(
    "pair_words(Tensor key, int count, int parts, Tensor[] at) -> Tensor", _pair_words, _pair_words_on_meta
)
OF_WORDS = define(
    "of_words(Tensor words, int[] shape, str kind, ScalarType dtype, float low, float high) -> Tensor",
    _of_words,
    _of_words_on_meta,
)
DRAW_PAIRS = define(
    "draw_pairs(Tensor key, int count, int parts, Tensor at, str kind, ScalarType dtype, float low, float high) "
    "-> (Tensor, Tensor)",
    _draw_pairs,
    _draw_pairs_on_meta,
)
JOIN_PAIRS = define(
    "join_pairs(Tensor own, Tensor got, int parts, Tensor at, int[] shape) -> Tensor", _join_pairs, _join_pairs_on_meta
)
register_batched(DRAW_ORIGINAL)
