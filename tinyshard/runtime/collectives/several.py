"""An exchange of one or several large operands: what a member does between the two barriers of `collectives.shm`.

Each result has the bits that its collective gives alone, so each operand is reduced as it is alone: a small one whole,
by one member; of a large one each member reduces a part. Nothing is copied that is in the arena already: each member
publishes where its operand is, of several a list of these. Results that are the same for all are parts of one block.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES, local_slice
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Group
from tinyshard.runtime.collectives.eager import Empty, result_from
from tinyshard.runtime.collectives.reduction import SMALL_NBYTES, reduce_into
from tinyshard.runtime.shm.allocator import SMALLEST_NBYTES, Arena, Block
from tinyshard.runtime.shm.control_block import ALIGNED_NBYTES, aligned


def listed(arena: Arena, xs: Sequence[Tensor]) -> Block:
    """A new block with the offsets of these operands, and with the values of those that are not in the arena."""
    offsets = [arena.offset_of(x) for x in xs]
    elsewhere = [k for k, offset in enumerate(offsets) if offset < 0]
    *starts, nbytes = itertools.accumulate((aligned(xs[k].nbytes) for k in elsewhere), initial=aligned(8 * len(xs)))
    block = arena.allocate(nbytes, [arena.member])
    for k, start in zip(elsewhere, starts, strict=True):
        offsets[k] = block.offset + start
        arena.view(offsets[k], xs[k].shape, xs[k].dtype).copy_(xs[k])
    arena.view(block.offset, (len(xs),), torch.int64).copy_(torch.tensor(offsets))
    return block


@dataclass(eq=False)
class Several:
    """A collective of operands that are too large for the slots, on one device.

    Attributes:
        arena: the memory.
        name: the collective's.
        group: its members.
        metas: shape and dtype of each operand.
        params: the collective's other parameters.
        empty: makes memory for a result of this device's own.
        shared_nbytes: size of the block for results that are the same on all members; 0 where they differ.
    """

    arena: Arena
    name: str
    group: Group
    metas: Sequence[ShapedType]
    params: dict[str, Any]
    empty: Empty

    def __post_init__(self) -> None:
        sizes, place, count = [meta.nbytes for meta in self.metas], self.group.place, self.group.count
        self._results = [COLLECTIVES[self.name].meta(meta, count, self.params) for meta in self.metas]
        *self._starts, nbytes = itertools.accumulate((aligned(meta.nbytes) for meta in self._results), initial=0)
        self.shared_nbytes = nbytes if self.name in ("all_reduce", "all_gather") else 0
        self._pieces = pieces(sizes, place, count) if self.name == "all_reduce" else ()

    def run(self, xs: Sequence[Tensor], lists: Sequence[int], block: Block) -> list[Tensor]:
        """This device's share, between the two barriers.

        Args:
            xs: its operands.
            lists: by member, the offset of its operand, or of the list of its operands.
            block: for the results that are the same on all members.

        Returns:
            Its results; none where they are the same on all members.
        """
        view, params, group = self.arena.view, self.params, self.group
        if self.name == "all_gather":
            for x, meta, start in zip(xs, self._results, self._starts, strict=True):
                whole = view(block.offset + start, meta.shape, meta.dtype)
                local_slice(whole, group.place, group.count, **params).copy_(x)
            return []
        where = [view(at, (len(xs),), torch.int64).tolist() if len(xs) > 1 else [at] for at in lists]
        if self.name != "all_reduce":
            shards = [[view(offsets[k], m.shape, m.dtype) for offsets in where] for k, m in enumerate(self.metas)]
            return [result_from(self.name, operands, group.place, params, self.empty) for operands in shards]
        for k, low, high in self._pieces:
            dtype = self.metas[k].dtype
            places = [*(offsets[k] + low for offsets in where), block.offset + self._starts[k] + low]
            *parts, out = (view(place, ((high - low) // dtype.itemsize,), dtype) for place in places)
            reduce_into(out, parts, params["op"])
        return []

    def shared(self, block: Block) -> list[Tensor]:
        """The results that are the same on all members: small ones as copies, others as parts of the block."""
        arena, results = self.arena, []
        for meta, start in zip(self._results, self._starts, strict=True):
            part = block._replace(offset=block.offset + start)
            if meta.nbytes < SMALLEST_NBYTES:
                results.append(arena.view(part.offset, meta.shape, meta.dtype).clone())
            else:
                results.append(arena.hold(part, meta.shape, meta.dtype))
        if all(meta.nbytes < SMALLEST_NBYTES for meta in self._results):
            arena.release(block)
        return results


def pieces(sizes: Sequence[int], place: int, count: int) -> tuple[tuple[int, int, int], ...]:
    """What one of `count` members reduces: an equal share of all bytes, small operands whole.

    Args:
        sizes: of the operands, in bytes.

    Returns:
        For each piece the operand, and where the piece starts and ends in it, in bytes.

    Example:
        >>> pieces([1 << 20, 100, 100], 0, 2), pieces([1 << 20, 100, 100], 1, 2)
        (((0, 0, 524288),), ((0, 524288, 1048576), (1, 0, 100), (2, 0, 100)))
    """
    total, found, before = sum(sizes), [], 0
    low, high = (total * k // count for k in (place, place + 1))
    for k, nbytes in enumerate(sizes):
        if nbytes > SMALL_NBYTES:
            ends = [min(max(0, at - before), nbytes) for at in (low, high)]
            start, end = (at if at == nbytes else at // ALIGNED_NBYTES * ALIGNED_NBYTES for at in ends)
        else:
            start, end = 0, nbytes if low <= before < high else 0
        if start < end:
            found.append((k, start, end))
        before += nbytes
    return tuple(found)
