"""Collectives of small operands through shared memory: one barrier, and no blocks.

Each member copies its operand into one of its own slots, chosen by the exchange's number, waits at the barrier, and
computes its result from the slots. In an all_reduce the last member to arrive computes the result before the barrier
opens, and all copy it. A slot is written again only after all its readers have left the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES, local_slice, reduce_stack
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Group, Moment, Perform
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.barrier import Barrier, exchange_number
from tinyshard.runtime.shm.control_block import EAGER_NBYTES, EAGER_SLOTS


class Eager:
    """The eager collectives of one device."""

    def __init__(self, arena: Arena, barrier: Barrier) -> None:
        self._arena = arena
        self._device = arena.member
        self._barrier = barrier
        # by slot: the other members of its last exchange, and the exchange's number
        self._readers: list[tuple[tuple[int, ...], int]] = [((), 0)] * EAGER_SLOTS
        self._passed: dict[tuple[int, ...], int] = {}  # by the other members of a group, its last exchange

    def ready(self, name: str, group: Group, meta: ShapedType, params: dict[str, Any]) -> Perform:
        """One collective as a function; `meta` is that of its operand, of at most EAGER_NBYTES."""
        barrier, device = self._barrier, self._device
        own = [self._place(device, slot, meta) for slot in range(EAGER_SLOTS)]
        shards = [[self._place(member, slot, meta) for member in group.members] for slot in range(EAGER_SLOTS)]
        results = {
            (member, slot): self._place(member, slot, meta, is_result=True)
            for member in (group.members if name == "all_reduce" else ())
            for slot in range(EAGER_SLOTS)
        }
        compute = _FROM_SHARDS.get(name, from_all)

        def perform(x: Tensor, moment: Moment) -> Tensor:
            slot, number = sum(moment) % EAGER_SLOTS, exchange_number(*moment)
            self._wait_for_readers(slot)
            own[slot].copy_(x)
            self._readers[slot], self._passed[group.others] = (group.others, number), number
            try:
                if name != "all_reduce":
                    barrier.wait(group, number)
                    return compute(name, shards[slot], group.place, **params).clone()
                # if the last member fails, the call fails on all devices: the copies of other members are not used
                total, operands = results[device, slot], shards[slot]
                maker = barrier.wait(group, number, action=lambda: total.copy_(reduce_stack(operands, params["op"])))
                return results[maker, slot].clone()
            finally:
                barrier.leave(number)

        return perform

    def _wait_for_readers(self, slot: int) -> None:
        """Block until no device reads a slot. After a later exchange with the same members none does."""
        others, number = self._readers[slot]
        if number and self._passed[others] == number:
            self._barrier.wait_until_left(others, number)

    def _place(self, device: int, slot: int, meta: ShapedType, *, is_result: bool = False) -> Tensor:
        start = self._arena.control.eager_offset + ((device * EAGER_SLOTS + slot) * 2 + is_result) * EAGER_NBYTES
        return self._arena.view(start, meta.shape, meta.dtype)


def from_all(name: str, shards: Sequence[Tensor], place: int, **params: Any) -> Tensor:
    """The result of the member at `place`, computed by the function of the collective's row."""
    form = COLLECTIVES[name].form
    assert form is not None
    return form(torch.stack(list(shards)), **params)[place]


def _joined(name: str, shards: Sequence[Tensor], place: int, *, dim: int) -> Tensor:
    return torch.cat(list(shards), dim)


def _exchanged(name: str, shards: Sequence[Tensor], place: int, *, split: int, join: int) -> Tensor:
    return torch.cat([local_slice(shard, place, len(shards), dim=split) for shard in shards], join)


def _moved(name: str, shards: Sequence[Tensor], place: int, *, pairs: Any) -> Tensor:
    source = next((s for s, t in pairs if t == place), None)
    return torch.zeros_like(shards[place]) if source is None else shards[source]


# functions that compute one member's result alone, where those of `COLLECTIVES` compute all
_FROM_SHARDS: dict[str, Callable[..., Tensor]] = {
    "all_gather": _joined,
    "all_to_all": _exchanged,
    "collective_permute": _moved,
}
