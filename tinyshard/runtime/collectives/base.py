"""What every way between devices has in common: the members of a collective, and what a device asks of a way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tinyshard.core.types import Meta

# what a device remembers of its exchanges, for tests
MOST_HANDED = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a collective as one of them sees them.

    Attributes:
        members: device ids in the order of the group.
        place: which of them this device is.
        others: the other ids.
    """

    members: tuple[int, ...]
    place: int
    others: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many members."""
        return len(self.members)


def group_of(members: tuple[int, ...], device: int) -> Group:
    """The group of these devices, of which `device` is one.

    Example:
        >>> group_of((4, 6), 6)
        Group(members=(4, 6), place=1, others=(4,))
    """
    return Group(members, members.index(device), tuple(m for m in members if m != device))


@dataclass(frozen=True, slots=True)
class Request:
    """One collective of a program, or a transfer, as its program has it.

    Attributes:
        name: of a row of `tinyshard.core.collectives`, or "transfer".
        devices, axes: the program's.
        named: the axes along which it communicates.
        params: its other parameters.
        meta: of the operand, wherever there is one.
        made: of the result.
        step: its place in the program.
    """

    name: str
    devices: tuple[int, ...]
    axes: tuple[int, ...]
    named: tuple[int, ...]
    params: dict[str, Any]
    meta: Meta | None
    made: Meta | None
    step: int


# takes the operand and the number of the call, and gives the result
Perform = Callable[[Any, int], Any]


class Communicator(Protocol):
    """A device's way to the others.

    Attributes:
        handed: what was exchanged lately: (name, group size, bytes of the operand).
    """

    handed: deque[tuple[str, int, int]]

    def ready(self, request: Request) -> Perform:
        """A collective, or a transfer, as a function. It raises if a device of the group is gone."""

    def settle(self) -> None:
        """A call is over."""

    def abort(self) -> None:
        """End every exchange, from another thread: a device that waits in one gets an error."""
