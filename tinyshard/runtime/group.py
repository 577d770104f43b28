"""The members of a collective as one of them sees them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a collective as one of them sees them.

    Attributes:
        members: device ids in the order of the group.
        place: which of them this device is.
        others: the other ids.
        gate: the least id.
        step: distance between the ids where they ascend and it is always the same, else 0.
    """

    members: tuple[int, ...]
    place: int
    others: tuple[int, ...]
    gate: int
    step: int

    @property
    def count(self) -> int:
        """How many members."""
        return len(self.members)


def group_of(members: tuple[int, ...], device: int) -> Group:
    """The group of these devices, of which `device` is one."""
    steps = {b - a for a, b in itertools.pairwise(members)}
    others = tuple(m for m in members if m != device)
    step = steps.pop() if len(steps) == 1 and min(steps) > 0 else 0
    return Group(members, members.index(device), others, min(members), step)
