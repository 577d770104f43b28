"""Collectives of a few bytes between processes that share memory: one exchange of signals, and no blocks.

Each member writes its operand into a note of its own, the one that the number of its exchange names, waits until all
have come, and computes its own result from the notes. A note is written anew when all its readers have read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.collectives import COLLECTIVES, own_block, reduced
from tinyshard.program import Meta
from tinyshard.runtime.arena import Arena
from tinyshard.runtime.board import NOTE_NBYTES, NOTES
from tinyshard.runtime.group import Group
from tinyshard.runtime.signals import Signals


class Notes:
    """This device's notes, and its sight of those of the others.

    Args:
        arena: the memory.
        signals: how the members meet.
    """

    def __init__(self, arena: Arena, signals: Signals) -> None:
        self._arena = arena
        self._device = arena.member
        self._signals = signals
        self._read = arena.board.read.data
        self._offset = arena.board.note_offset
        # by note, who is to have read it before it is written anew, and when each has
        self._readers: list[tuple[tuple[int, ...], list[int]]] = [((), [])] * NOTES

    def ready(self, name: str, group: Group, meta: Meta, params: dict[str, Any]) -> Callable[[Tensor], Tensor]:
        """One collective, as a function of this member's operand. It raises PeerLostError if a member is gone.

        Args:
            name: of a row of `tinyshard.collectives`.
            group: who takes part.
            meta: of the operand, of at most NOTE_NBYTES.
            params: the row's.
        """
        signals, device, others, readers = self._signals, self._device, group.others, self._readers
        own = [self._noted(device, note, meta) for note in range(NOTES)]
        # where all members count alike, as they mostly do, what is combined is one tensor
        is_one = name == "all_reduce" and group.step > 0
        rows = [self._rows(group, note, meta) for note in range(NOTES)] if is_one else []

        def exchange(x: Tensor) -> Tensor:
            number = signals.number + 1
            note = number % NOTES
            signals.wait_until(self._read, *readers[note])
            own[note].copy_(x)
            signals.come(group)
            try:
                numbers = signals.wait(group)
                readers[note] = (others, numbers)
                if rows and numbers.count(number) == len(numbers):
                    return reduced(rows[note], params["op"])
                return self._from_notes(name, group, meta, number, numbers, params)
            finally:
                self._read[device] = number

        return exchange

    def _noted(self, device: int, note: int, meta: Meta) -> Tensor:
        """A note as a tensor."""
        return self._arena.view(self._offset + (device * NOTES + note) * NOTE_NBYTES, meta.shape, meta.dtype)

    def _rows(self, group: Group, note: int, meta: Meta) -> Tensor:
        """The notes of this number of all members of a group, whose ids are equally far apart, as one tensor."""
        first = self._noted(group.members[0], note, meta)
        step = group.step * NOTES * NOTE_NBYTES // meta.dtype.itemsize
        return first.as_strided((group.count, *meta.shape), (step, *first.stride()))

    def _from_notes(
        self, name: str, group: Group, meta: Meta, number: int, numbers: list[int], params: dict[str, Any]
    ) -> Tensor:
        """The result, in memory of its own: the notes will be written anew."""
        all_numbers = [*numbers[: group.place], number, *numbers[group.place :]]
        shards = [self._noted(m, k % NOTES, meta) for m, k in zip(group.members, all_numbers, strict=True)]
        return _FROM_SHARDS.get(name, from_all)(name, shards, group.place, **params).clone()


def from_all(name: str, shards: Sequence[Tensor], place: int, **params: Any) -> Tensor:
    """The result of the member at `place`, by the function of the collective's own row."""
    form = COLLECTIVES[name].form
    assert form is not None
    return form(torch.stack(list(shards)), **params)[place]


def _joined(name: str, shards: list[Tensor], place: int, *, dim: int) -> Tensor:
    return torch.cat(shards, dim)


def _exchanged(name: str, shards: list[Tensor], place: int, *, split: int, join: int) -> Tensor:
    return torch.cat([own_block(shard, place, len(shards), dim=split) for shard in shards], join)


def _moved(name: str, shards: list[Tensor], place: int, *, pairs: Any) -> Tensor:
    source = next((s for s, t in pairs if t == place), None)
    return torch.zeros_like(shards[place]) if source is None else shards[source]


# not every member's result is wanted, as `COLLECTIVES` would compute it, but one
_FROM_SHARDS: dict[str, Callable[..., Tensor]] = {
    "all_gather": _joined,
    "all_to_all": _exchanged,
    "collective_permute": _moved,
}
