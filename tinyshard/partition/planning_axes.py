"""The axes to plan an op on: DTensor's rules take 10 ms on two axes, 0.6 s on four, so as few as the operands need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from tinyshard.core.layout import Axes
from tinyshard.partition.reshard import ShardedVar


def planning_axes(operands: Sequence[ShardedVar], *, merge: bool = True) -> tuple[list[Axes], set[tuple[int, int]]]:
    """The axes to plan on: as few as the operands need, ordered so that each cut names them in ascending order.

    Args:
        operands: the tensors that the op takes.
        merge: join axes that all operands use as one; a view may need them apart.

    Returns:
        Groups of axes that all operands use as one, and the (value number, dim) whose cut fits no such order.

    Example:
        >>> import torch
        >>> x = ShardedVar(0, (8, 8), torch.float32, ((2, 0), (1,)))
        >>> planning_axes([x])
        ([(1,), (2, 0)], set())
    """
    cuts = [(x, d, cut) for x in sorted(operands, key=lambda x: -math.prod(x.shape)) for d, cut in enumerate(x.dims)]
    refused: set[tuple[int, int]] = set()
    after: dict[int, set[int]] = {}
    for x, d, cut in cuts:
        trial = {a: set(b) for a, b in after.items()}
        for a in cut:
            trial.setdefault(a, set())
        for a, b in pairwise(cut):
            trial[a].add(b)
        if _order(trial) is None:
            refused.add((x.number, d))
        else:
            after = trial
    for x in operands:
        for a, _ in x.partial:
            after.setdefault(a, set())
    order = _order(after) or []
    kept = [cut for x, d, cut in cuts if (x.number, d) not in refused]
    reduced = [dict(x.partial) for x in operands]
    groups: list[Axes] = []
    for a in order:
        if merge and groups and _used_as_one(groups[-1][-1], a, kept, reduced):
            groups[-1] += (a,)
        else:
            groups.append((a,))
    return groups, refused


def _used_as_one(a: int, b: int, cuts: Sequence[Axes], partial: Sequence[dict[int, str]]) -> bool:
    for cut in cuts:
        if (a in cut or b in cut) and (a, b) not in pairwise(cut):
            return False
    return all(p.get(a) == p.get(b) for p in partial)


def _order(after: dict[int, set[int]]) -> list[int] | None:
    """A topological order, neighbours of one cut kept together where possible; None if there is a cycle."""
    order: list[int] = []
    left = {a: set(b) for a, b in after.items()}
    while left:
        blocked = {b for bs in left.values() for b in bs}
        free = [a for a in left if a not in blocked]
        if not free:
            return None
        follows = [a for a in free if order and a in after.get(order[-1], ())]
        chosen = min(follows or free)
        order.append(chosen)
        del left[chosen]
    return order
