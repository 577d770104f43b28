"""Collectives of small operands through shared memory: one barrier, and no blocks.

Each member copies its operand into one of its own slots, chosen by the exchange's number, waits at the barrier, and
computes its result from the slots. In an all_reduce the last member to arrive computes the result, in the slot of the
first member, before the barrier opens, and all copy it. A slot is written again only after all its readers have left
the exchange: its owner waits for that before it arrives. Several operands stand in a slot one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import local_slice
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Group, Moment, Perform
from tinyshard.runtime.collectives.reduction import reduce_into
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.barrier import Barrier, exchange_number
from tinyshard.runtime.shm.control_block import EAGER_SLOTS, aligned

# more is gathered in a block of the arena, which all members hold
GATHERED_NBYTES = 1 << 18
Empty = Callable[[Sequence[int], torch.dtype], Tensor]  # makes memory for a result


class Eager:
    """The eager collectives of one device."""

    def __init__(self, arena: Arena, barrier: Barrier) -> None:
        self._arena = arena
        self._device = arena.member
        self._barrier = barrier
        # by slot: the other members of its last exchange, and the exchange's number
        self._readers: list[tuple[tuple[int, ...], int]] = [((), 0)] * EAGER_SLOTS
        self._passed: dict[tuple[int, ...], int] = {}  # by the other members of a group, its last exchange

    def ready(self, name: str, group: Group, metas: Sequence[ShapedType], params: dict[str, Any]) -> Perform:
        """A collective of several operands as a function; `fits` must be true for the same arguments."""
        barrier = self._barrier
        # by slot, for each operand those of all members
        shards = [
            list(zip(*(self._places(member, slot, metas) for member in group.members), strict=True))
            for slot in range(EAGER_SLOTS)
        ]
        slots = range(EAGER_SLOTS) if name == "all_reduce" else ()
        results = [self._places(group.members[0], slot, metas, is_result=True) for slot in slots]

        def reduce(slot: int) -> None:
            for total, operands in zip(results[slot], shards[slot], strict=True):
                reduce_into(total, operands, params["op"])

        def perform(xs: Sequence[Tensor], moment: Moment) -> list[Tensor]:
            slot, number = sum(moment) % EAGER_SLOTS, exchange_number(*moment)
            self._wait_for_readers(slot)
            for operands, x in zip(shards[slot], xs, strict=True):
                operands[group.place].copy_(x)
            self._readers[slot], self._passed[group.others] = (group.others, number), number
            try:
                if name != "all_reduce":
                    barrier.wait(group, number)
                    return [result_from(name, operands, group.place, params, _private) for operands in shards[slot]]
                # if the last member fails, the call fails on all devices: the copies of other members are not used
                barrier.wait(group, number, action=lambda: reduce(slot))
                return [total.clone() for total in results[slot]]
            finally:
                barrier.leave(number)

        return perform

    def _wait_for_readers(self, slot: int) -> None:
        """Block until no device reads a slot. After a later exchange with the same members none does."""
        others, number = self._readers[slot]
        if number and self._passed[others] == number:
            self._barrier.wait_until_left(others, number)

    def _places(self, device: int, slot: int, metas: Sequence[ShapedType], *, is_result: bool = False) -> list[Tensor]:
        """The operands of a device in a slot, or their results."""
        control = self._arena.control
        start = control.eager_offset + ((device * EAGER_SLOTS + slot) * 2 + is_result) * control.eager_nbytes
        starts = itertools.accumulate((aligned(meta.nbytes) for meta in metas), initial=start)
        return [self._arena.view(place, m.shape, m.dtype) for place, m in zip(starts, metas, strict=False)]


def fits(name: str, group: Group, metas: Sequence[ShapedType], slot_nbytes: int) -> bool:
    """Whether operands are small enough, together, for a slot, and what is gathered small enough for copies of it."""
    if name == "all_gather" and sum(meta.nbytes for meta in metas) * group.count > GATHERED_NBYTES:
        return False
    return sum(aligned(meta.nbytes) for meta in metas) <= slot_nbytes


def _private(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


def result_from(name: str, shards: Sequence[Tensor], place: int, params: dict[str, Any], empty: Empty) -> Tensor:
    """The result of the member at `place`, in new memory, which `empty` makes where it may be large."""
    return _FROM_SHARDS[name](shards, place, empty, **params)


def _joined(shards: Sequence[Tensor], place: int, empty: Empty, *, dim: int) -> Tensor:
    return torch.cat(list(shards), dim)


def _scattered(shards: Sequence[Tensor], place: int, empty: Empty, *, dim: int, op: str) -> Tensor:
    parts = [local_slice(shard, place, len(shards), dim=dim) for shard in shards]
    out = empty(parts[0].shape, parts[0].dtype)
    reduce_into(out, parts, op)
    return out


def _exchanged(shards: Sequence[Tensor], place: int, empty: Empty, *, split: int, join: int) -> Tensor:
    parts = [local_slice(shard, place, len(shards), dim=split) for shard in shards]
    shape = list(parts[0].shape)
    shape[join] *= len(parts)
    return torch.cat(parts, join, out=empty(shape, parts[0].dtype))


def _moved(shards: Sequence[Tensor], place: int, empty: Empty, *, pairs: Any) -> Tensor:
    source = next((s for s, t in pairs if t == place), None)
    return torch.zeros_like(shards[place]) if source is None else shards[source].clone()


# each computes one member's result alone, where those of `COLLECTIVES` compute all
_FROM_SHARDS: dict[str, Callable[..., Tensor]] = {
    "all_gather": _joined,
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
    "collective_permute": _moved,
}
