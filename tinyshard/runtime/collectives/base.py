"""What all communicators share: the group of a collective, the request for one, and the `Communicator` protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tinyshard.core.types import ShapedType

# how many of its last collectives a device records, for tests
MOST_HANDED = 1000


class PeerLostError(RuntimeError):
    """A collective cannot complete: a device is gone."""


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a collective, from the view of one of them.

    Attributes:
        members: device ids in the order of the group.
        place: this device's position among them.
        others: the ids of the other members.
    """

    members: tuple[int, ...]
    place: int
    others: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of members."""
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
    """One collective of a program, or a transfer.

    Attributes:
        name: a row of `tinyshard.core.collectives`, or "transfer".
        devices, axes: the program's devices and mesh axes.
        named: the axes along which it communicates.
        params: its other parameters.
        meta: shape and dtype of the operand, on devices that have one.
        made: shape and dtype of the result.
        step: index of its step in the program.
    """

    name: str
    devices: tuple[int, ...]
    axes: tuple[int, ...]
    named: tuple[int, ...]
    params: dict[str, Any]
    meta: ShapedType | None
    made: ShapedType | None
    step: int


# (operand, number of the call) -> result
Perform = Callable[[Any, int], Any]


class Communicator(Protocol):
    """Runs the collectives of one device.

    Attributes:
        handed: the last collectives: (name, group size, bytes of the operand).
    """

    handed: deque[tuple[str, int, int]]

    def ready(self, request: Request) -> Perform:
        """A collective, or a transfer, as a function. It raises if a device of the group is lost."""

    def settle(self) -> None:
        """Called after each call."""

    def abort(self) -> None:
        """Abort all collectives, from another thread: a device that waits in one gets an error."""
