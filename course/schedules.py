"""Which device waits for which: devices that each work through a list of meetings, and the circle that blocks them.

A meeting is a collective, or a send with its receive. It takes place when all its members have reached it;
until then the members that have reached it wait for the rest.

    CPU 0: a, b        CPU 0 has reached a and waits for CPU 1,
    CPU 1: b, a        CPU 1 has reached b and waits for CPU 0: a deadlock
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Moment", "from_error", "ring", "start", "steps"]


@dataclass(frozen=True, slots=True)
class Moment:
    """How far each device has come.

    Attributes:
        plans: by device id, in ascending order: the names of its meetings, in its order. A device with a name on its
            list is a member of all meetings of that name; the second "a" of one device matches that of another.
        done: by device id, how many of them are over.
        still: ids of devices that do not move: stopped, dead, or still computing something.
        rounds: how many rounds of meetings have taken place.
    """

    plans: Mapping[int, tuple[str, ...]]
    done: Mapping[int, int]
    still: frozenset[int] = frozenset()
    rounds: int = 0

    def next_of(self, device: int) -> tuple[str, int] | None:
        """The next meeting of a device, with its number among those of the same name; None at the end."""
        plan, done = self.plans[device], self.done[device]
        return (plan[done], plan[:done].count(plan[done])) if done < len(plan) else None

    def members(self, name: str) -> tuple[int, ...]:
        """The members of the meetings of this name."""
        return tuple(device for device, plan in self.plans.items() if name in plan)

    @property
    def waits_for(self) -> dict[int, tuple[int, ...]]:
        """By device that waits: for whom.

        Example:
            >>> start({0: ["a", "b"], 1: ["b", "a"], 2: ["c"]}).waits_for
            {0: (1,), 1: (0,)}
        """
        found = {}
        for device in self.plans:
            meeting = self.next_of(device)
            if meeting is None or device in self.still:
                continue
            missing = tuple(
                other for other in self.members(meeting[0]) if other in self.still or self.next_of(other) != meeting
            )
            if missing:
                found[device] = missing
        return found

    @property
    def circle(self) -> tuple[int, ...]:
        """Devices that wait for each other in a circle, from the smallest id on; empty where there is none.

        Example:
            >>> start(ring(4, ["send", "receive"])).circle
            (0, 1, 2, 3)
        """
        waits_for = self.waits_for
        for first in waits_for:
            path = _path_back(first, waits_for)
            if path:
                return path
        return ()

    @property
    def is_over(self) -> bool:
        """Whether all devices are at the end of their lists."""
        return all(self.next_of(device) is None for device in self.plans)

    @property
    def after(self) -> Moment:
        """The moment after one more round: every meeting that all its members have reached takes place."""
        waiting = self.waits_for
        met = [
            device
            for device in self.plans
            if device not in self.still and device not in waiting and self.next_of(device) is not None
        ]
        done = {device: count + (device in met) for device, count in self.done.items()}
        return Moment(self.plans, done, self.still, self.rounds + 1) if met else self


def start(plans: Mapping[int, Sequence[str]], still: Iterable[int] = ()) -> Moment:
    """The moment before the first meeting.

    Args:
        plans: by device id, the names of its meetings in its order.
        still: ids of devices that do not move.

    Example:
        >>> start({0: ["a"], 1: ["a"]}).after.is_over
        True
    """
    ordered = {device: tuple(plans[device]) for device in sorted(plans)}
    return Moment(ordered, dict.fromkeys(ordered, 0), frozenset(still))


def steps(moment: Moment) -> list[Moment]:
    """This moment and all that follow, up to the one after which nothing moves.

    Example:
        >>> [step.done for step in steps(start({0: ["a", "b"], 1: ["a", "b"]}))]
        [{0: 0, 1: 0}, {0: 1, 1: 1}, {0: 2, 1: 2}]
    """
    found = [moment]
    while found[-1].after is not found[-1]:
        found.append(found[-1].after)
    return found


def ring(count: int, first: Sequence[str] | Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
    """The plans of devices in a ring; each sends to the next one and receives from the one before.

    Args:
        count: number of devices.
        first: the order of "send" and "receive", for all devices or for each.

    Example:
        >>> ring(3, ["send", "receive"])
        {0: ['0→1', '2→0'], 1: ['1→2', '0→1'], 2: ['2→0', '1→2']}
    """
    plans = {}
    for device in range(count):
        before, behind = (device - 1) % count, (device + 1) % count
        meeting = {"send": f"{device}→{behind}", "receive": f"{before}→{device}"}
        order = first[device] if isinstance(first, Mapping) else first
        plans[device] = [meeting[word] for word in order]
    return plans


def from_error(error: BaseException) -> Moment:
    """The moment that an error about an incomplete collective describes: which device waits for which.

    Args:
        error: a CollectiveTimeoutError.

    Raises:
        ValueError: it does not name a collective, or a missing device.

    Example:
        >>> words = "all_reduce cannot complete: …\\n  got:  reached by CPU 0,1; not reached by CPU 2\\n"
        >>> from_error(RuntimeError(words)).waits_for
        {0: (2,), 1: (2,)}
    """
    words = str(error)
    name = re.match(r"(\w+) cannot complete", words)
    who = re.search(r"; ?not reached by [A-Z]+ ([\d,]+)", words)
    there = re.search(r"\breached by [A-Z]+ ([\d,]+);", words)
    if name is None or who is None:
        raise ValueError(f"no collective that somebody has not reached, in: {words.splitlines()[0]}")
    missing = [int(device) for device in who[1].split(",")]
    reached = [int(device) for device in there[1].split(",")] if there else []
    return start({device: [name[1]] for device in [*reached, *missing]}, still=missing)


def _path_back(first: int, waits_for: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """A shortest path that leads from `first` back to it, along "waits for"."""
    paths: list[tuple[int, ...]] = [(first,)]
    seen: set[int] = set()
    while paths:
        path = paths.pop(0)
        for other in waits_for.get(path[-1], ()):
            if other == first:
                return path
            if other not in seen:
                seen.add(other)
                paths.append((*path, other))
    return ()
