"""The base of all communicators: the group and the request of a collective, and collectives of a single device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyshard.core.collectives import COLLECTIVES, group_positions
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
    """The group of these devices, from the view of its member `device`.

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
        metas: shape and dtype of each operand, on devices that have one.
        result: shape and dtype of the first result.
        groups: if it communicates in smaller groups, their members, counted along the named axes.
    """

    name: str
    devices: tuple[int, ...]
    axes: tuple[int, ...]
    named: tuple[int, ...]
    params: dict[str, Any]
    metas: tuple[ShapedType | None, ...]
    result: ShapedType | None
    groups: Sequence[Sequence[int]] | None = None

    def positions(self, position: int) -> tuple[int, ...]:
        """The group of devices with which the device at a position exchanges data, including itself."""
        if self.name == "transfer":
            return tuple(range(len(self.devices)))
        return tuple(group_positions(self.axes, self.named, position, self.groups))


# identifies an exchange of a device: the call, and the number of exchanges in the call before it
Moment = tuple[int, int]
Perform = Callable[[Sequence[Any], Moment], Sequence[Any]]  # (operands, moment) -> the result of each


class Communicator:
    """Runs the collectives of one device.

    Args:
        device: its id.

    Attributes:
        handed: the last collectives: (name, group size, bytes of the operands).
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self.handed: deque[tuple[str, int, int]] = deque(maxlen=MOST_HANDED)

    def ready(self, request: Request) -> Perform:
        """A collective, or a transfer, as a function. It raises PeerLostError if a device of the group is lost."""
        if request.name == "transfer":
            return self._ready_transfer(request)
        params = request.params
        positions = request.positions(request.devices.index(self._device))
        group = group_of(tuple(request.devices[p] for p in positions), self._device)
        own = COLLECTIVES[request.name].own
        if own is not None:
            return lambda xs, moment: [own(x, group.place, group.count, **params) for x in xs]
        if group.count == 1:
            return lambda xs, moment: xs
        metas: Any = request.metas
        assert None not in metas, "a collective's operand has a known shape"
        note = (request.name, group.count, sum(meta.nbytes for meta in metas))
        exchange = self._ready_exchange(request.name, group, metas, params)

        def perform(xs: Sequence[Any], moment: Moment) -> Sequence[Any]:
            self.handed.append(note)
            return exchange(xs, moment)

        return perform

    def _ready_transfer(self, request: Request) -> Perform:
        """A transfer of blocks between any devices. An operand or a result is None where a device does not have it.

        Its parameter `moves`: (source position, target position, slices of the source, slices of the target).
        """
        raise NotImplementedError

    def _ready_exchange(self, name: str, group: Group, metas: Sequence[ShapedType], params: dict[str, Any]) -> Perform:
        """A collective of one or several operands, each of whose results has the bits that it has alone.

        Args:
            group: at least two devices.
            metas: shape and dtype of the operands.
            params: the collective's parameters.
        """
        raise NotImplementedError

    def settle(self) -> bool:
        """Called after each call, and again while it returns False, which means that work is left."""
        return True

    def abort(self) -> None:
        """Abort all collectives, from another thread: a device that waits in one gets an error."""
        raise NotImplementedError
