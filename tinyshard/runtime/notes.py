"""Collectives of a few bytes between processes that share memory: one exchange of signals, and no blocks.

Each member writes its operand into a note of its own, the one that the number of its exchange names, waits until all
have come, and computes its own result from the notes. Where all get the same, one of them computes it and notes it for
the others: who finds that it is the last, unless another that had nothing else to do waits for that (`adding`). The
others have done their part before, and what they copy is there before that one says that it has done its. Who relies on
one of another core for the sum says so with that (`progress`). A note is written anew when all its readers have read
it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.collectives import COLLECTIVES, own_block, reduced
from tinyshard.program import Meta
from tinyshard.runtime.adding import Adding
from tinyshard.runtime.collectives.base import Group
from tinyshard.runtime.collectives.reduction import add_rows, adds_by_rows
from tinyshard.runtime.readers import NOBODY, Readers
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.control_block import NOTE_NBYTES, NOTES
from tinyshard.runtime.signals import Signals

_MOST_VIEWS = 1000
# one is not enough where others have let this device run again and again
_TURNS = 3


class Notes:
    """This device's notes, and its sight of those of the others.

    Args:
        arena: the memory.
        signals: how the members meet.
        readers: who still reads what this device has written.
    """

    def __init__(self, arena: Arena, signals: Signals, readers: Readers) -> None:
        board = arena.board
        self._arena = arena
        self._device = arena.member
        self._signals = signals
        self._read, self._made = board.read.data, board.made.data
        self._offset, self._result_offset = board.note_offset, board.result_offset
        self._readers = readers
        self._views: dict[tuple[Any, ...], Tensor] = {}

    def ready(
        self,
        name: str,
        group: Group,
        mates: tuple[int, ...],
        meta: Meta,
        params: dict[str, Any],
        note_it: Callable[[], object],
    ) -> Callable[[Tensor, Callable[..., None]], Tensor]:
        """One collective, as `fabric.Fabric.ready` says. It raises PeerLostError if a member is gone.

        For a device that has just got its core, each call of a function takes 1 to 3 µs, and the other devices of the
        core wait for it: so up to where others can go on, there are few.

        Args:
            name: of a row of `tinyshard.collectives`.
            group: who takes part.
            mates: ids of the others that keep to this device's core.
            meta: of the operand, of at most NOTE_NBYTES.
            params: the row's.
            note_it: is called when all have come.
        """
        signals, device, others, readers = self._signals, self._device, group.others, self._readers
        awaited, gates, memmove = readers.awaited, signals.gates, ctypes.memmove
        own = [self._noted(self._offset, device, note, meta) for note in range(NOTES)]
        for_all = name == "all_reduce"
        results = [self._noted(self._result_offset, device, note, meta) for note in range(NOTES)] if for_all else []
        # where all members count alike, as they mostly do, what is combined is one tensor
        rows = [self._rows(group, note, meta) for note in range(NOTES)] if for_all and group.step else []
        sums = []  # by note, where NumPy is to add up rows: those, and the result
        if rows and adds_by_rows(meta.shape, meta.dtype, params["op"], group.count):
            sums = [
                (stack.view(group.count, -1).numpy(), result.view(-1).numpy())
                for stack, result in zip(rows, results, strict=True)
            ]
        adding = Adding(self._arena.board, signals, group, mates) if sums else None
        places, nbytes = [view.data_ptr() for view in own], meta.nbytes

        def made(number: int, numbers: list[int]) -> Tensor:
            if rows and numbers.count(number) == len(numbers):
                return reduced(rows[number % NOTES], params["op"])
            return self._from_notes(name, group, meta, number, numbers, params)

        def give_and_come(x: Tensor) -> int:
            if signals.is_out_of_step:
                signals.check(group)
            number = signals.number + 1
            note = number % NOTES
            if awaited[note] is not NOBODY:
                readers.wait(number)
            if sums and x.is_contiguous() and not x.is_neg():
                memmove(places[note], x.data_ptr(), nbytes)  # then no op of torch's is on the way to the sum
            else:
                own[note].copy_(x)
            signals.come(group)
            return number

        def exchange(x: Tensor, done: Callable[[], None]) -> Tensor:
            number = give_and_come(x)
            try:
                numbers = signals.wait(group)
                note_it()
                readers.note(number, others, numbers)
                return made(number, numbers)
            finally:
                self._read[device] = number

        def exchange_for_all(x: Tensor, done: Callable[..., None]) -> Tensor:
            gate = gates[group.gate]
            number = give_and_come(x)
            note = number % NOTES
            is_last_of_core = signals.have_come(mates)
            have_all_come = is_last_of_core and signals.have_come(others)
            is_made = is_for_another = False
            if adding is not None:
                if have_all_come:
                    is_for_another = adding.is_for_another()
                elif is_last_of_core and adding.is_for_this_one():
                    is_made = adding.waits_to_add(*sums[note])
                    have_all_come = is_made or signals.have_come(others)
            is_maker = have_all_come and not is_for_another
            try:
                if is_for_another:
                    done(True)
                elif is_made or not is_maker:
                    done()
                if is_made:
                    self._made[device] = number  # not before: who sees it lets the controller have the core
                elif not is_last_of_core:
                    signals.nap(group, gate)  # at once: others need the core before they come
                    have_all_come = signals.have_come(others)
                numbers = signals.hear(group) if have_all_come else signals.wait(group)
                note_it()
                readers.note(number, others, numbers)
                if not is_maker:
                    noted = self._result_of(group, numbers, meta)
                    return made(number, numbers) if noted is None else noted.clone()
                if is_made:
                    return results[note].clone()
                out = None
                if sums and numbers.count(number) == len(numbers):
                    add_rows(*sums[note])
                else:
                    out = made(number, numbers)
                    results[note].copy_(out)
                self._made[device] = number
                done()
                return results[note].clone() if out is None else out
            finally:
                self._read[device] = number
                if is_maker:  # also if it could not make it
                    signals.let_on(group)

        return exchange_for_all if for_all else exchange

    def _result_of(self, group: Group, numbers: list[int], meta: Meta) -> Tensor | None:
        """What one of the others has noted as the result, or soon does; None if nobody does, or has noted more."""
        made, others, found = self._made, group.others, -1

        def is_over() -> bool:
            nonlocal found
            found = next((k for k, other in enumerate(others) if made[other] == numbers[k]), -1)
            return found >= 0 or any(made[other] > number for other, number in zip(others, numbers, strict=True))

        if not is_over():
            self._signals.comes_soon(is_over)
        if found < 0:
            return None
        self._signals.give_way(_TURNS)  # the controller waits for this call to be over, not for this device's copy
        return self._noted(self._result_offset, others[found], numbers[found] % NOTES, meta)

    def _noted(self, start: int, device: int, note: int, meta: Meta) -> Tensor:
        """A note of those that start there, as a tensor."""
        at = start + (device * NOTES + note) * NOTE_NBYTES
        shape, dtype = meta.shape, meta.dtype
        view = self._views.get((at, shape, dtype))  # hashed in C, as `meta` is not
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            view = self._views[at, shape, dtype] = self._arena.view(at, shape, dtype)
        return view

    def _rows(self, group: Group, note: int, meta: Meta) -> Tensor:
        """The notes of this number of all members of a group, whose ids are equally far apart, as one tensor."""
        first = self._noted(self._offset, group.members[0], note, meta)
        step = group.step * NOTES * NOTE_NBYTES // meta.dtype.itemsize
        return first.as_strided((group.count, *meta.shape), (step, *first.stride()))

    def _from_notes(
        self, name: str, group: Group, meta: Meta, number: int, numbers: list[int], params: dict[str, Any]
    ) -> Tensor:
        """The result, in memory of its own: the notes will be written anew."""
        all_numbers = [*numbers[: group.place], number, *numbers[group.place :]]
        shards = [
            self._noted(self._offset, m, k % NOTES, meta) for m, k in zip(group.members, all_numbers, strict=True)
        ]
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
