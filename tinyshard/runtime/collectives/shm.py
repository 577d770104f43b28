"""The collectives between worker processes of one host, through memory that all of them map.

Each function does between processes what its namesake in `tinyshard.collectives` says over a list of shards. Two ways:

    small   every member writes its operand into a note, and waits for all (`tinyshard.runtime.notes`)
    large   1. every member says where its operand lies (it is copied into the arena only if it lies elsewhere)
            2. all wait for all; each computes its part, where all get the same result into one block that all hold
            3. all wait for all: the parts are there, and nobody reads an operand any more. Who comes has done its part
    sums    the same, but only one member of each core computes and is waited for (`tinyshard.runtime.crews`)

Sums are taken in the order of the members, so a result does not depend on who was first.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinyshard.collectives import COLLECTIVES, group_positions, own_block
from tinyshard.program import Meta
from tinyshard.runtime.collectives.base import Group, group_of, step_of
from tinyshard.runtime.collectives.gloo import MOST_HANDED
from tinyshard.runtime.collectives.reduction import combine, combine_rows
from tinyshard.runtime.crews import Crew, Crews, crews_of
from tinyshard.runtime.notes import Notes, from_all
from tinyshard.runtime.readers import Readers
from tinyshard.runtime.shm.allocator import SMALLEST_NBYTES, Arena, Block
from tinyshard.runtime.shm.control_block import LETTER_WORDS, NOTE_NBYTES, NOTES
from tinyshard.runtime.signals import PeerLostError, Signals

# parts begin at multiples of it, so that vector instructions do the same as in one go
_ALIGNED_NBYTES = 256
# a letter: where the operand lies, or one of these; and a block, or nowhere
_NO_OPERAND, _NO_ROOM = -1, -2
_NOWHERE = Block(0, 0, 0)


@dataclass(slots=True)
class Exchange:
    """What the members have told each other. Whoever leaves waits for all of them to be done with it.

    Attributes:
        operands: by place, where each operand lies.
        blocks: by place, the block that a member gives away: as a result, or the first one's, for all to make one in.
        leave: is called in the end, with whether this member has made its part.
    """

    operands: list[int]
    blocks: list[Block]
    leave: Callable[[bool], None]

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: object, *args: object) -> None:
        self.leave(kind is None)


class SharedFabric:
    """This device's way to the others. Has the methods of `fabric.Fabric`.

    Args:
        arena: the memory.
        kept: by device, the core that it keeps to; none where they go wherever there is room. The same for all.
    """

    def __init__(self, arena: Arena, kept: Sequence[int] = ()) -> None:
        board = arena.board
        self._arena = arena
        self._device = arena.member
        board.pids[self._device] = os.getpid()
        self._signals = Signals(board.signals, board.gates, board.pids, board.crowded, self._device)
        self._letters = board.letters.reshape(-1).data
        self._kept = kept
        self._readers = Readers(board.read.data, self._signals)
        self._notes = Notes(arena, self._signals, self._readers)
        self._read = board.read.data
        self._crew = Crew(board, self._signals, self._device)
        self.handed: deque[tuple[str, int, int]] = deque(maxlen=MOST_HANDED)

    def abort(self) -> None:
        """End every exchange, from another thread: who waits in one gets an error."""
        self._signals.abort()

    def ready(
        self, name: str, devices: tuple[int, ...], axes: tuple[int, ...], named: tuple[int, ...],
        params: dict[str, Any], meta: Meta | None, made: Meta | None,
    ) -> Callable[[Any, Callable[..., None]], Any]:  # fmt: skip
        """A collective of a program, or a transfer, as a function; the arguments are those of `fabric.Fabric.ready`.

        The function raises PeerLostError if another device of the group is gone.
        """
        assert meta is not None, "a collective's operand has a known shape"
        if name == "transfer":
            group = group_of(devices, self._device)
            return lambda x, done: self.transfer(group, x, done, meta, made, **params)
        params = dict(params)
        positions = group_positions(axes, named, devices.index(self._device), params.pop("groups", None))
        group = group_of(tuple(devices[p] for p in positions), self._device)
        own = COLLECTIVES[name].own
        if own is not None:
            return lambda x, done: own(x, group.place, group.count, **params)
        if group.count == 1:
            return lambda x, done: x
        note_it = partial(self.handed.append, (name, group.count, meta.nbytes))
        crews = crews_of(group, self._kept)
        if meta.nbytes <= NOTE_NBYTES:
            return self._notes.ready(name, group, crews.mates, meta, params, note_it)
        if name == "all_reduce":
            params = {**params, "crews": crews}
        large = partial(_LARGE.get(name) or partial(SharedFabric.any_other, name=name), self, group, **params)

        def perform(x: Tensor, done: Callable[[], None]) -> Tensor:
            note_it()
            return large(x, done)

        return perform

    def room_for(self, name: str, meta: Meta) -> Callable[[], Tensor] | None:
        """What makes room for an operand that the others read where it lies; the arguments are those of `Fabric`'s."""
        is_read_there = COLLECTIVES[name].own is None and name != "all_gather"  # there each copies its own, anyway
        if not is_read_there or meta.nbytes <= NOTE_NBYTES:
            return None
        return partial(self._empty, meta.shape, meta.dtype)

    def transfer(
        self, group: Group, x: Tensor | None, done: Callable[[], None], meta: Meta, made: Any, moves: Any
    ) -> Tensor | None:
        """Move blocks between any devices of the group; the arguments are those of `fabric.Fabric.transfer`."""
        here = group.place
        gives = any(m[0] == here for m in moves)
        gets = any(m[1] == here for m in moves)
        with self._meeting(group, done, operand=x if gives else None) as told:
            if not gets:
                return None
            out = self._empty(made.shape, made.dtype)
            for source, target, cut, place in moves:
                if target == here:
                    out[place] = self._arena.view(told.operands[source], meta.shape, meta.dtype)[cut]
            return out

    # ---- large operands -------------------------------------------------------------------------------------------

    def _meeting(
        self,
        group: Group,
        done: Callable[[], None],
        *,
        operand: Tensor | None = None,
        result_nbytes: int = 0,
        lent: Tensor | None = None,
    ) -> Exchange:
        """Wait for all members: what they have told each other. They stay together until each has left it.

        Args:
            group: the members.
            done: is called when this one has made its part.
            operand: what the others are to read.
            result_nbytes: size of a block of the first member's, of which parts are written and which all hold
                afterwards; 0 for none.
            lent: values whose block others are to hold too.

        Raises:
            MemoryError: a member has no room. It comes all the same, and no other reads what is not there.
        """
        staged, error = self._write_letter(group, operand, result_nbytes, lent)
        signals = self._signals
        signals.come(group)
        try:
            numbers = signals.wait(group)
        except PeerLostError:
            signals.come(group)  # the others may wait for this device's going
            raise
        operands, blocks = self._read_letters(group, numbers, is_lent=lent is not None)

        def leave(is_made: bool) -> None:
            signals.come(group)
            if is_made:
                done()
            signals.wait(group)
            self._leave(staged)

        if _NO_ROOM in operands:
            leave(False)
            raise self._no_room(group, operands, blocks if result_nbytes else [], error)
        return Exchange(operands, blocks, leave)

    def _write_letter(
        self, group: Group, operand: Tensor | None, result_nbytes: int, lent: Tensor | None = None
    ) -> tuple[Block | None, MemoryError | None]:
        """Write what the others are to know of this device in its next exchange; the arguments are `_meeting`'s.

        Returns:
            The block to which values had to be copied, if they had to be; and what is raised in the end if there was
            no room for it or for the result.
        """
        number = self._signals.number + 1
        self._signals.check(group)
        self._readers.wait(number)
        staged: Block | None = None
        where, block = _NO_OPERAND, _NOWHERE
        error: MemoryError | None = None
        try:
            if operand is not None:
                where, staged = self._located(operand)
            elif lent is not None:
                held = self._arena.block_of(lent)
                if held is None:
                    held = staged = self._arena.copied(lent, [self._device])
                block = held
            if result_nbytes and group.place == 0:
                block = self._arena.allocate(result_nbytes, group.members)
        except MemoryError as caught:
            where, error = _NO_ROOM, caught
        at = (self._device * NOTES + number % NOTES) * LETTER_WORDS
        self._letters[at : at + LETTER_WORDS] = array("l", (where, *block))
        return staged, error

    def _read_letters(
        self, group: Group, numbers: list[int], *, is_lent: bool = False
    ) -> tuple[list[int], list[Block]]:
        """What all members have written, who count this exchange as `numbers`: `Exchange.operands` and `blocks`."""
        all_numbers = [*numbers[: group.place], self._signals.number, *numbers[group.place :]]
        letters = self._letters.tolist()
        starts = [
            (member * NOTES + number % NOTES) * LETTER_WORDS
            for member, number in zip(group.members, all_numbers, strict=True)
        ]
        blocks = [Block(*letters[at + 1 : at + LETTER_WORDS]) for at in starts[: None if is_lent else 1]]
        return [letters[at] for at in starts], blocks

    def _leave(self, staged: Block | None) -> None:
        """Let go of the copy of the operand, and of what has been freed since the last exchange: others may need it."""
        if staged is not None:
            self._arena.release(staged)
        self._arena.let_go()

    def _no_room(
        self, group: Group, operands: list[int], results: list[Block], error: MemoryError | None
    ) -> MemoryError:
        """Let go of the block in which nobody will make a result; what is raised for the device that had no room."""
        if results and results[0] != _NOWHERE:
            self._arena.release(results[0])
        member = group.members[operands.index(_NO_ROOM)]
        return error or MemoryError(f"device {member} had no room for its part")

    def _located(self, x: Tensor) -> tuple[int, Block | None]:
        """Where the others can read a tensor, and the block that it was copied to for that."""
        offset = self._arena.offset_of(x)
        if offset >= 0:
            return offset, None
        staged = self._arena.copied(x, [self._device])
        return staged.offset, staged

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A place for this device's own result, in the arena, for it may be an operand next."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < SMALLEST_NBYTES:
            return torch.empty(tuple(shape), dtype=dtype)
        return self._arena.hold(self._arena.allocate(nbytes, [self._device]), shape, dtype)

    def all_reduce(self, group: Group, x: Tensor, done: Callable[[], None], *, op: str, crews: Crews) -> Tensor:
        """Each crew combines its part of all operands, into one result that all hold."""
        staged, no_room = self._write_letter(group, x, x.nbytes)
        error: Exception | None = no_room
        signals, crew = self._signals, self._crew
        signals.come(group)
        is_done, numbers = error is None, []
        if crew.is_maker(crews):
            numbers = signals.wait(group)
            try:
                is_done = self._make_part(group, crews, numbers, x, op)
            except Exception as caught:  # the others wait all the same; the call has failed for them too
                is_done, error = False, caught
            crew.say_made()
        if is_done:
            done()
        if not numbers:
            signals.give_way()
        numbers = crew.wait(group, crews, numbers)
        operands, blocks = self._read_letters(group, numbers)
        self._readers.note(signals.number, group.others, numbers)
        self._read[self._device] = signals.number
        self._leave(staged)
        if _NO_ROOM in operands:
            raise self._no_room(group, operands, blocks, no_room)
        if error is not None:
            self._arena.release(blocks[0])
            raise error
        return self._arena.hold(blocks[0], x.shape, x.dtype)

    def _make_part(self, group: Group, crews: Crews, numbers: list[int], x: Tensor, op: str) -> bool:
        """Combine what is to this device's crew, of operands like `x`; whether there is room for all of it."""
        operands, blocks = self._read_letters(group, numbers)
        if _NO_ROOM in operands:
            return False
        unit = _ALIGNED_NBYTES // x.dtype.itemsize
        units = -(-x.numel() // unit)
        low, high = (min(x.numel(), units * k // crews.count * unit) for k in (crews.place, crews.place + 1))
        size, start = high - low, low * x.dtype.itemsize
        self._arena.map_at_once(blocks[0].offset + start, size * x.dtype.itemsize)
        out = self._arena.view(blocks[0].offset + start, (size,), x.dtype)
        step = step_of(operands)
        if step and step >= size * x.dtype.itemsize:
            combine_rows(self._arena.rows(operands[0] + start, step, (len(operands), size), x.dtype), op, out)
        else:
            combine([self._arena.view(at + start, (size,), x.dtype) for at in operands], op, out)
        return True

    def all_gather(self, group: Group, x: Tensor, done: Callable[[], None], *, dim: int) -> Tensor:
        """Each member copies its operand into one result that all hold."""
        shape = list(x.shape)
        shape[dim] *= group.count
        with self._meeting(group, done, result_nbytes=x.nbytes * group.count) as told:
            out = self._arena.hold(told.blocks[0], shape, x.dtype)
            own_block(out, group.place, group.count, dim=dim).copy_(x)
        return out

    def reduce_scatter(self, group: Group, x: Tensor, done: Callable[[], None], *, dim: int, op: str) -> Tensor:
        """Each member combines its block of all operands."""
        with self._meeting(group, done, operand=x) as told:
            parts = [own_block(shard, group.place, group.count, dim=dim) for shard in self._shards(told, x)]
            out = self._empty(parts[0].shape, x.dtype)
            combine(parts, op, out)
        return out

    def all_to_all(self, group: Group, x: Tensor, done: Callable[[], None], *, split: int, join: int) -> Tensor:
        """Each member joins its block of all operands."""
        with self._meeting(group, done, operand=x) as told:
            parts = [own_block(shard, group.place, group.count, dim=split) for shard in self._shards(told, x)]
            shape = list(parts[0].shape)
            shape[join] *= group.count
            out = self._empty(shape, x.dtype)
            torch.cat(parts, join, out=out)
        return out

    def collective_permute(self, group: Group, x: Tensor, done: Callable[[], None], *, pairs: Any) -> Tensor:
        """A target holds the very block of its source: values do not change, so two may have one copy."""
        x = x.resolve_conj().resolve_neg()  # as those get it that get a copy
        sends = any(source == group.place for source, _ in pairs)
        source = next((s for s, t in pairs if t == group.place), None)
        with self._meeting(group, done, lent=x if sends else None) as told:
            out = torch.zeros_like(x, memory_format=torch.contiguous_format) if source is None else x
            if source is not None and source != group.place:
                out = self._arena.adopt(told.blocks[source], x.shape, x.dtype)
        return out

    def any_other(self, group: Group, x: Tensor, done: Callable[[], None], *, name: str, **params: Any) -> Tensor:
        """A row of the table that has no way of its own here: from all operands, by the row's own function."""
        with self._meeting(group, done, operand=x) as told:
            return from_all(name, self._shards(told, x), group.place, **params).clone()

    def _shards(self, told: Exchange, x: Tensor) -> list[Tensor]:
        return [self._arena.view(at, x.shape, x.dtype) for at in told.operands]


_LARGE: dict[str, Callable[..., Tensor]] = {
    "all_reduce": SharedFabric.all_reduce,
    "all_gather": SharedFabric.all_gather,
    "reduce_scatter": SharedFabric.reduce_scatter,
    "all_to_all": SharedFabric.all_to_all,
    "collective_permute": SharedFabric.collective_permute,
}
