"""The collectives between worker processes of one host, through memory that all of them map.

They do between processes what the functions of their names in `tinyshard.core.collectives` do on stacked shards. There
are two protocols, with MPI's names for them:

    eager        small operands: see `collectives.eager`
    rendezvous   1. each member publishes the offset of its operand (copied into the arena only if it is elsewhere)
                 2. barrier; each member computes its part. A result that is the same for all is one block that all hold
                 3. barrier: all parts are written, and no member reads an operand any more

What a member does between the barriers: `collectives.several`.

The sizes alone decide in which order a sum is added up: a result does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Communicator, Group, Moment, Perform, Request, group_of
from tinyshard.runtime.collectives.eager import Eager, fits
from tinyshard.runtime.collectives.several import Several, listed
from tinyshard.runtime.shm.allocator import SMALLEST_NBYTES, Arena, Block
from tinyshard.runtime.shm.barrier import Barrier, exchange_number

# in place of an operand's offset
_NO_OPERAND, _NO_ROOM = -1, -2
_NOWHERE = Block(0, 0, 0)


class SharedMemoryCommunicator(Communicator):
    """Collectives through the shared memory of an arena."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena.member)
        self._arena = arena
        self._barrier = Barrier(arena.control, arena.member)
        self._eager = Eager(arena, self._barrier)

    def abort(self) -> None:
        """End every wait with an error."""
        self._barrier.abort()

    def settle(self) -> bool:
        """Publish which exchanges this device has left."""
        return self._barrier.settle()

    def _ready_transfer(self, request: Request) -> Perform:
        group, moves = group_of(request.devices, self._device), request.params["moves"]
        gives, gets = (any(move[end] == group.place for move in moves) for end in (0, 1))
        (meta,) = request.metas
        result: Any = request.result

        def perform(xs: Sequence[Any], moment: Moment) -> Sequence[Tensor | None]:
            with self._rendezvous(group, moment, operand=xs if gives and xs[0] is not None else None) as (operands, _):
                if not gets:
                    return [None]
                assert meta is not None, "a transfer's operand has a known shape"
                out = self._empty(result.shape, result.dtype)
                for source, target, cut, place in moves:
                    if target == group.place:
                        out[place] = self._arena.view(operands[source], meta.shape, meta.dtype)[cut]
                return [out]

        return perform

    def _ready_exchange(self, name: str, group: Group, metas: Sequence[ShapedType], params: dict[str, Any]) -> Perform:
        if fits(name, group, metas, self._arena.control.eager_nbytes):
            return self._eager.ready(name, group, metas, params)
        if name == "collective_permute" and len(metas) == 1:
            return lambda xs, moment: (self._permuted(group, xs[0], moment, **params),)
        work = Several(self._arena, name, group, metas, params, self._empty)

        def perform(xs: Sequence[Tensor], moment: Moment) -> list[Tensor]:
            operands = xs if name != "all_gather" else None  # each member writes its own into the result
            with self._rendezvous(group, moment, operand=operands, result_nbytes=work.shared_nbytes) as (lists, blocks):
                results = work.run(xs, lists, blocks[0])
            return work.shared(blocks[0]) if work.shared_nbytes else results

        return perform

    # ---- large operands -------------------------------------------------------------------------------------------

    @contextmanager
    def _rendezvous(
        self,
        group: Group,
        moment: Moment,
        *,
        operand: Sequence[Tensor] | None = None,
        result_nbytes: int = 0,
        lent: Tensor | None = None,
    ) -> Iterator[tuple[list[int], list[Block]]]:
        """A block of code between two barriers, with the entries that all members published before the first.

        It yields, by member, the offset of its operand; and the block that it shares: its lent values, or the result's
        block from the first member.

        Args:
            moment: which exchange.
            operand: values that the other members read; the offset is that of the only one, or that of a list of
                their offsets.
            result_nbytes: size of the block, allocated by the first member; each member writes a part of it, and all
                hold it afterwards; 0 for none.
            lent: values whose block other members may hold afterwards.

        Raises:
            MemoryError: a member has no memory. It still arrives at both barriers, and all members raise.
        """
        staged: Block | None = None
        error: Exception | None = None
        where, block = _NO_OPERAND, _NOWHERE
        try:
            if operand is not None:
                is_one = len(operand) == 1
                where = self._arena.offset_of(operand[0]) if is_one else -1
                if where < 0:
                    staged = self._arena.copied(operand[0], [self._device]) if is_one else listed(self._arena, operand)
                    where = staged.offset
            elif lent is not None:
                held = self._arena.block_of(lent)
                if held is None:
                    held = staged = self._arena.copied(lent, [self._device])
                block = held
            if result_nbytes and group.place == 0:
                block = self._arena.allocate(result_nbytes, group.members)
        except Exception as failure:  # torch has its own errors when memory runs out
            where, error = _NO_ROOM, failure
        self._barrier.wait(group, exchange_number(*moment), (where, *block))
        published = self._barrier.messages(group)
        operands, blocks = [message[0] for message in published], [Block(*message[1:]) for message in published]
        has_result = bool(result_nbytes) and blocks[0] != _NOWHERE
        try:
            if _NO_ROOM in operands:
                member = group.members[operands.index(_NO_ROOM)]
                raise error or MemoryError(f"device {member} had no room for its part")
            yield operands, blocks
        except BaseException:
            self._barrier.wait(group, exchange_number(*moment, 1))
            if has_result:
                self._arena.release(blocks[0])
            raise
        else:
            self._barrier.wait(group, exchange_number(*moment, 1))
        finally:
            if staged is not None:
                self._arena.release(staged)
            self._arena.let_go()  # another member may need blocks that were freed meanwhile

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory for this device's own result: in the arena if it is large, as it may be the next operand."""
        nbytes = ShapedType(tuple(shape), dtype).nbytes
        if nbytes < SMALLEST_NBYTES:
            return torch.empty(tuple(shape), dtype=dtype)
        return self._arena.hold(self._arena.allocate(nbytes, [self._device]), shape, dtype)

    def _permuted(self, group: Group, x: Tensor, moment: Moment, *, pairs: Any) -> Tensor:
        """A target holds its source's block, without a copy: values never change, so two devices may hold one block."""
        sends = any(source == group.place for source, _ in pairs)
        source = next((s for s, t in pairs if t == group.place), None)
        with self._rendezvous(group, moment, lent=x if sends else None) as (_, blocks):
            out = torch.zeros_like(x, memory_format=torch.contiguous_format) if source is None else x
            if source is not None and source != group.place:
                out = self._arena.adopt(blocks[source], x.shape, x.dtype)
        return out
