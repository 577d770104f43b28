"""The members of a collective as one of them sees them."""

from __future__ import annotations

from collections.abc import Sequence
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
    others = tuple(m for m in members if m != device)
    return Group(members, members.index(device), others, min(members), step_of(members))


def step_of(numbers: Sequence[int]) -> int:
    """How far apart numbers are that ascend evenly; 0 if they do not, or for one."""
    if len(numbers) < 2:
        return 0
    first, last, step = numbers[0], numbers[-1], numbers[1] - numbers[0]
    if step <= 0 or last - first != step * (len(numbers) - 1):  # so the range is as long as they are
        return 0
    return step if list(numbers) == list(range(first, last + 1, step)) else 0
