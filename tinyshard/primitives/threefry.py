"""Threefry-2x32: a hash from a key and a counter to two random words, as ints, without state.

    words of key (0, 42) at counter 0     hash of (0, 0)
    words of key (0, 42) at counter 7     hash of (0, 7), on any device, whatever was drawn before

A counter has 64 bits and is hashed as two words. torch does not have arithmetic on uint32: words are int32 here, whose
sums wrap in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

PARITY = 0x1BD11BDA  # the third word of a key makes the exclusive or of all three this constant
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def words(key0: Tensor, key1: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """The two words of each counter.

    Args:
        key0, key1: the words of the key, int32; they broadcast against the counters.
        high, low: the words of the counters, int32; overwritten.

    Returns:
        Two int32 tensors of the shape of the counters.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.int32)
        >>> [hex(int(w) & 0xFFFFFFFF) for w in words(zero, zero, zero.clone(), zero.clone())]
        ['0x6b200159', '0x99ba4efe']
    """
    key2 = key0 ^ key1 ^ PARITY
    keys = (key0, key1, key2)
    x, y = high.add_(key0), low.add_(key1)
    spare = torch.empty_like(y)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x.add_(y)
            torch.bitwise_left_shift(y, rotation, out=spare)
            # >> keeps the sign: the mask leaves the rotated bits
            y.bitwise_right_shift_(32 - rotation).bitwise_and_((1 << rotation) - 1).bitwise_or_(spare).bitwise_xor_(x)
        x.add_(keys[(group + 1) % 3])
        y.add_(keys[(group + 2) % 3]).add_(group + 1)
    return x, y


def counter_words(counters: Tensor) -> tuple[Tensor, Tensor]:
    """Counters as their high and low words.

    Args:
        counters: int64.

    Example:
        >>> [w.tolist() for w in counter_words(torch.tensor([5, 2**32 + 6]))]
        [[0, 1], [5, 6]]
    """
    return (counters >> 32).to(torch.int32), counters.to(torch.int32)
