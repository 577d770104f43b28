"""Who makes the parts of a large result, where several members run on one core.

A result that all get is made in parts, one for each core: the members that keep to it are its crew. Whoever comes last
of a crew makes its part, as soon as the other crews have come too. The rest of it has done its share by coming: nobody
waits for the core to be theirs again, once for each of them. Where each member has a core, each makes a part.

At least one of a crew finds itself the last, for each passes a fence between its coming and its look at the others. Two
may, for there is no atomic instruction; but only one may write. So each says what it has found, and of two that found
themselves the last the one with the lesser id makes the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.runtime.collectives.base import Group
from tinyshard.runtime.futex import fence
from tinyshard.runtime.shm.control_block import Board
from tinyshard.runtime.signals import Signals


@dataclass(frozen=True, slots=True)
class Crews:
    """The members of a group by core.

    Attributes:
        mates: ids of the others on this device's core.
        place: which of the crews this device's is.
        members: by crew, which of `Group.others` are of it.
    """

    mates: tuple[int, ...]
    place: int
    members: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """How many crews."""
        return len(self.members)


def crews_of(group: Group, kept: Sequence[int]) -> Crews:
    """The crews of a group.

    Args:
        group: the members.
        kept: by device, the core that it keeps to; none where each goes wherever there is room.
    """
    core_of = dict(zip(group.members, [kept[m] for m in group.members] if kept else group.members, strict=True))
    device = group.members[group.place]
    cores = list(dict.fromkeys(core_of.values()))
    mates = tuple(m for m in group.others if core_of[m] == core_of[device])
    members = tuple(tuple(k for k, m in enumerate(group.others) if core_of[m] == core) for core in cores)
    return Crews(mates, cores.index(core_of[device]), members)


class Crew:
    """This device's share in the work of crews.

    Args:
        board: what all of them see.
        signals: how they meet.
        device: whose share.
    """

    def __init__(self, board: Board, signals: Signals, device: int) -> None:
        self._signals = signals
        self._device = device
        self._claimed, self._made = board.claimed.data, board.made.data

    def is_maker(self, crews: Crews) -> bool:
        """Whether this device makes the part of its crew, in the exchange to which it has come last.

        Raises:
            PeerLostError: one of the crew is gone.
        """
        mates, device, claimed, signals = crews.mates, self._device, self._claimed, self._signals
        if not mates:
            return True
        is_last = signals.have_come(mates)
        claimed[device] = 2 * signals.number + is_last
        if not is_last:
            return False
        words = [2 * number for number in signals.numbers(mates)]  # of who is not the last
        signals.wait_until(claimed, mates, words)
        # who has claimed more is in a later exchange: somebody has made the part
        return not any(claimed[m] > word + (m > device) for m, word in zip(mates, words, strict=True))

    def say_made(self) -> None:
        """This device has made the part of its crew, or cannot."""
        self._made[self._device] = self._signals.number
        fence()

    def wait(self, group: Group, crews: Crews, numbers: list[int]) -> list[int]:
        """Wait until all parts are made. Who gives up makes none: what loses a device aborts the waiting of all.

        Args:
            group: the members.
            crews: of theirs.
            numbers: what `Signals.wait` returned, if this device has waited for all to come, and made a part.

        Returns:
            The same, also for who has not.

        Raises:
            PeerLostError: who would make one is gone.
        """
        signals, others, made = self._signals, group.others, self._made
        is_maker = bool(numbers)
        awaited = [crew for place, crew in enumerate(crews.members) if not is_maker or place != crews.place]

        def is_there() -> bool:
            nonlocal numbers
            if not numbers:
                if not signals.have_come(others):
                    return False
                numbers = signals.hear(group)
            for crew in awaited:
                for k in crew:
                    if made[others[k]] >= numbers[k]:
                        break
                else:
                    return False
            return True

        def missing() -> list[int]:
            if not numbers:
                return signals.missing(others) or list(others)  # they have come meanwhile, and may have given up
            made_by_crew = ((crew, any(made[others[k]] >= numbers[k] for k in crew)) for crew in awaited)
            return [others[k] for crew, is_made in made_by_crew if not is_made for k in crew]

        if not is_there():
            signals.wait_for(group, is_there, missing)
        elif is_maker:
            signals.let_on(group, again=True)
        return numbers
