"""Telling a device that computes for long from one that will never come: who reached a collective, and who did not.

A device gets on if it finishes calls, reaches another collective, or uses its processor. While one of those that a wait
depends on gets on, the wait goes on, for hours if need be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# a device that computes gets a larger share of a processor even where many compete for it
BUSY_SHARE = 0.01
# what was seen so long ago belongs to another wait, and who answers after such a silence has woken up
FORGET_S = 2

Current = tuple[int, int, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What the controller last saw of a device.

    Attributes:
        device: its id.
        moved_s: when it was last seen to get on.
        seen_s: when it last answered.
        is_silent: it has not answered since it was last asked.
        done: the last call that it has finished.
        current: the collective that it is in, if it is in one: (call, place in it, name, ids of those that take part).
        processor_s: processor time that it has used.
    """

    device: int
    moved_s: float
    seen_s: float
    is_silent: bool = True
    done: int = 0
    current: Current | None = None
    processor_s: float = 0.0


@dataclass
class Patience:
    """One wait, as far as it has looked.

    Attributes:
        since_s: when it began to look without a pause: what was seen before, or might have been, says nothing.
        looked_s: when it last looked.
    """

    since_s: float = 0.0
    looked_s: float = float("-inf")

    def look(self, now_s: float) -> None:
        """Note that it looks now."""
        if now_s - self.looked_s > FORGET_S:
            self.since_s = now_s
        self.looked_s = now_s


def look_again(before: Sight, now_s: float, done: int, current: Current | None, processor_s: float) -> Sight:
    """What is known of a device after an answer."""
    worked = processor_s - before.processor_s > BUSY_SHARE * (now_s - before.seen_s)
    woke = now_s - before.seen_s > FORGET_S
    moved = worked or woke or (done, current) != (before.done, before.current)
    moved_s = now_s if moved else before.moved_s
    return Sight(before.device, moved_s, now_s, False, done, current, processor_s)


def stalled(sights: Mapping[int, Sight], waited_for: Iterable[int], limit_s: float, now_s: float) -> list[Sight]:
    """The devices that a wait depends on, if none of them has got on for `limit_s`; else none.

    Args:
        sights: by device.
        waited_for: the devices whose answer is missing.
        limit_s: how long.
        now_s: the time of the last look.
    """
    found: set[int] = set()
    open_ = set(waited_for)
    while open_:
        device = open_.pop()
        found.add(device)
        current = sights[device].current
        open_ |= set(current[3] if current else ()) - found
    mine = [sights[device] for device in sorted(found)]
    return mine if all(now_s - sight.moved_s >= limit_s for sight in mine) else []


def who_reached(stuck: Iterable[Sight]) -> tuple[Current, list[int], list[int]] | None:
    """The first collective that holds these devices up.

    Returns:
        The collective; the ids of those that reached it, and of those that did not. None if they are in no collective.
    """
    seen = list(stuck)
    spots = [sight.current for sight in seen if sight.current is not None]
    if not spots:
        return None
    first = min(spots)
    there = {sight.device for sight in seen if sight.current == first or sight.done >= first[0]}
    return first, [d for d in first[3] if d in there], [d for d in first[3] if d not in there]
