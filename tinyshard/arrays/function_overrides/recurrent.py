"""Recurrent layers and packed sequences on Arrays.

gru, lstm, rnn, and cells          torch adds in place to a product with the state, which modules make a plain tensor
pack_padded_sequence, and back     torch reads the lengths, and the sizes of its batches stay on the host
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.arrays.refusals import Immutable

_torch: Any = torch  # its stubs do not have these two
_pack, _pad = _torch._pack_padded_sequence, _torch._pad_packed_sequence


def recurrent(func: Any, *args: Any) -> Any:
    """A layer or cell with its state as an Array; if it is differentiated, by ops that can be partitioned.

    The state is the second argument, or the third of a packed sequence, where the sizes of its batches are the second.
    """
    kind = type(next(x for x in tree_leaves(args) if isinstance(x, Immutable)))

    def held(x: torch.Tensor) -> torch.Tensor:
        return kind._from_values(x) if x.is_floating_point() and not x.requires_grad else x

    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and not torch.is_grad_enabled())  # `mkldnn.flags` warns of TF32
    try:
        return func(args[0], *tree_map_only(torch.Tensor, held, args[1:3]), *args[3:])
    finally:
        torch._C._set_mkldnn_enabled(before)


def packed(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The replacement in `pack_padded_sequence`: torch packs the numbers of the steps, which then index x's steps.

    Args:
        x: [time, batch, ...], or [batch, time, ...] with batch_first.
        lengths: [batch], not increasing.

    Returns:
        The steps, [sum of lengths, ...], and the number of examples at each time, [time], as a plain tensor.
    """
    numbers = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1)
    taken, sizes = _pack(numbers, lengths._gather() if isinstance(lengths, Immutable) else lengths, batch_first)
    return x.flatten(0, 1).index_select(0, taken.flatten()), sizes


def padded(x: torch.Tensor, sizes: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The replacement in `pad_packed_sequence`, the inverse.

    Args:
        x: the steps, [sum of lengths, ...].
        sizes: [time], how many examples there are at each time.
        rest: batch_first, the padding value of the shorter sequences, the length of the result.

    Returns:
        The sequences, padded with that value, and their lengths, [batch], as a plain tensor.
    """
    batch_first, padding, length = rest
    numbers = torch.arange(len(x)).reshape(-1, *[1] * (x.dim() - 1))
    taken, lengths = _pad(numbers, sizes._gather() if isinstance(sizes, Immutable) else sizes, batch_first, -1, length)
    rows = x.index_select(0, taken.flatten().clamp(min=0)).unflatten(0, taken.shape[:2])
    return rows.masked_fill(taken < 0, padding), lengths
