"""Functions of torch of which an Array needs another form: `Array.__torch_function__` calls that in their place.

one_hot, cross_entropy, nll_loss   torch's own check nothing on a subclass, or take other dtypes without values
tensor_split                       torch reads the memory of its second operand
gru, lstm, rnn, and cells          torch adds in place to what it makes of the state, which modules make a plain tensor
pack_padded_sequence, and back     torch reads the lengths, and the sizes of batches that it makes stay on the host
to_dlpack                          of the values: torch's own reads memory that an Array does not have, and crashes
backward                           an error that says what to do, where torch would add to a gradient in place
==, !=, <, <=, >, >=               Python takes a TypeError for `not comparable`, of which it makes False for ==
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.arrays.array import INSTEAD, Array
from tinyshard.arrays.unchecked import TAKE_CLASSES, one_hot
from tinyshard.core.errors import ImmutableError


def _second_on_host(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call with Arrays after the first argument as plain tensors. Waits."""

    def plain(x: Any) -> Any:
        return x._gather() if isinstance(x, Array) else x

    named = {name: x if name == "input" else plain(x) for name, x in kwargs.items()}
    return func(*args[:1], *map(plain, args[1:]), **named)


def _recurrent(func: Any, *args: Any) -> Any:
    """A layer or cell, its state an Array; if it is to be differentiated, by ops that shards can compute.

    The state is the second argument, or the third of a packed sequence, where the sizes of its batches are the second.
    """

    def held(x: torch.Tensor) -> torch.Tensor:
        return Array._from_values(x) if x.is_floating_point() and not x.requires_grad else x

    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and not torch.is_grad_enabled())  # `mkldnn.flags` warns of TF32
    try:
        return func(args[0], *tree_map_only(torch.Tensor, held, args[1:3]), *args[3:])
    finally:
        torch._C._set_mkldnn_enabled(before)


def _packed(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What `pack_padded_sequence` calls: torch packs the numbers of the steps, and by those x's steps are taken.

    Args:
        x: [time, batch, ...], or [batch, time, ...] with batch_first.
        lengths: [batch], not increasing.

    Returns:
        The steps, [sum of lengths, ...], and how many examples there are at each time, [time], as a plain tensor.
    """
    numbers = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1)
    taken, sizes = _pack(numbers, lengths._gather() if isinstance(lengths, Array) else lengths, batch_first)
    return x.flatten(0, 1).index_select(0, taken.flatten()), sizes


def _padded(x: torch.Tensor, sizes: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What `pad_packed_sequence` calls: likewise the way back.

    Args:
        x: the steps, [sum of lengths, ...].
        sizes: [time], how many examples there are at each time.
        rest: batch_first, the value at the end of the shorter sequences, how long all become.

    Returns:
        What was packed, with that value, and its lengths, [batch], as a plain tensor.
    """
    batch_first, padding, length = rest
    numbers = torch.arange(len(x)).reshape(-1, *[1] * (x.dim() - 1))
    taken, lengths = _pad(numbers, sizes._gather() if isinstance(sizes, Array) else sizes, batch_first, -1, length)
    made = x.index_select(0, taken.flatten().clamp(min=0)).unflatten(0, taken.shape[:2])
    return made.masked_fill(taken < 0, padding), lengths


def _backward(*args: Any, **kwargs: Any) -> None:
    """`Tensor.backward`: torch adds to the `.grad` of an earlier call in place, which an Array does not allow."""
    try:
        torch.Tensor.backward(*args, **kwargs)
    except ImmutableError as error:
        raise ImmutableError(
            "backward() would change an Array in place",
            got=str(error).splitlines()[1].removeprefix("  got:").strip(),
            rule="torch adds to a .grad that an earlier backward() has left; a hook may change what it is given",
            try_="x.grad = None before it; to sum gradients, add those of ts.grad or torch.autograd.grad",
        ) from error


def _compared(name: str) -> Callable[[Any, Any], Any]:
    """A comparison; where a tensor is refused, the function under the operator is asked, whose error is not hidden."""
    operator, function = getattr(torch.Tensor, f"__{name}__"), getattr(torch, name)

    def compare(x: Any, other: Any) -> Any:
        made = operator(x, other)
        return function(x, other) if made is NotImplemented and isinstance(other, torch.Tensor) else made

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_name}__", _compared(_name))
INSTEAD.update(TAKE_CLASSES)
INSTEAD[torch.nn.functional.one_hot] = one_hot
INSTEAD[torch.Tensor.backward] = _backward
for _split in (torch.tensor_split, torch.Tensor.tensor_split):
    INSTEAD[_split] = partial(_second_on_host, _split)
_of_torch: Any = torch  # its stubs do not have these two
_pack, _pad = _of_torch._pack_padded_sequence, _of_torch._pad_packed_sequence
INSTEAD.update({_pack: _packed, _pad: _padded})
for _name in ("gru", "lstm", "rnn_tanh", "rnn_relu"):
    for _func in (getattr(torch, _name), getattr(torch, f"{_name}_cell")):
        INSTEAD[_func] = partial(_recurrent, _func)

_to_dlpack_of_torch = torch.utils.dlpack.to_dlpack


def to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.dlpack.to_dlpack`, which takes Arrays too: this function takes its place."""
    return _to_dlpack_of_torch(tensor._gather() if isinstance(tensor, Array) else tensor, *args, **kwargs)


_stand_in: Any = to_dlpack
torch.utils.dlpack.to_dlpack = torch.to_dlpack = _stand_in
