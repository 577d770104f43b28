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
from tinyshard.runtime.arena import Arena
from tinyshard.runtime.board import NOTE_NBYTES, NOTES
from tinyshard.runtime.group import Group
from tinyshard.runtime.signals import Signals

_MOST_VIEWS = 1000


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
        self._views: dict[Any, Tensor] = {}
        # by note, who is to have read it before it is written anew, and when each has
        self._readers: list[tuple[tuple[int, ...], list[int]]] = [((), [])] * NOTES

    def exchange(self, name: str, group: Group, x: Tensor, params: dict[str, Any]) -> Tensor:
        """Take part in one collective.

        Args:
            name: of a row of `tinyshard.collectives`.
            group: who takes part.
            x: this member's operand, of at most NOTE_NBYTES.
            params: the row's.

        Raises:
            PeerLostError: a member is gone.
        """
        signals, device = self._signals, self._device
        number = signals.number + 1
        note = number % NOTES
        signals.wait_until(self._read, *self._readers[note])
        self._noted(device, note, x.shape, x.dtype).copy_(x)
        signals.come(group)
        try:
            numbers = signals.wait(group)
            self._readers[note] = (group.others, numbers)
            notes = [other % NOTES for other in numbers]
            notes.insert(group.place, note)
            return self._from_notes(name, group, x, notes, params)
        finally:
            self._read[device] = number

    def _noted(
        self, device: int, number: int, shape: Sequence[int], dtype: torch.dtype, group: Group | None = None
    ) -> Tensor:
        """A note as a tensor; with a group, the notes of this number of all its members as one."""
        key = (device, number, shape, dtype, group and group.members)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            offset = self._offset + (device * NOTES + number) * NOTE_NBYTES
            view = self._arena.view(offset, shape, dtype)
            if group is not None:
                step = group.step * NOTES * NOTE_NBYTES // dtype.itemsize
                view = view.as_strided((group.count, *shape), (step, *view.stride()))
            self._views[key] = view
        return view

    def _from_notes(self, name: str, group: Group, x: Tensor, numbers: list[int], params: dict[str, Any]) -> Tensor:
        """The result, in memory of its own: the notes will be written anew."""
        shape, dtype = tuple(x.shape), x.dtype
        if name == "all_reduce" and group.step and len(set(numbers)) == 1:
            return reduced(self._noted(group.members[0], numbers[0], shape, dtype, group), params["op"])
        shards = [self._noted(m, k, shape, dtype) for m, k in zip(group.members, numbers, strict=True)]
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
