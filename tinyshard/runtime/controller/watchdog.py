"""The watchdog: a wait whose devices make no progress raises an error that names which of them reached a collective.

A device makes progress if it finishes a call, reaches another collective, or uses its processor. While one of the
devices that a wait depends on makes progress, the wait continues, for hours if necessary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tinyshard.core import config
from tinyshard.core.errors import CollectiveTimeoutError
from tinyshard.runtime.controller.connection import FORGET_S, Link, Sight
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.wire import Current

# a device that computes gets a larger share of a processor, even where many devices compete
BUSY_SHARE = 0.01


def look_again(before: Sight, now_s: float, done: int, current: Current | None, processor_s: float) -> Sight:
    """The new information about a device, after an answer."""
    worked = processor_s - before.processor_s > BUSY_SHARE * (now_s - before.seen_s)
    woke = now_s - before.seen_s > FORGET_S
    moved = worked or woke or (done, current) != (before.done, before.current)
    moved_s = now_s if moved else before.moved_s
    return Sight(before.device, moved_s, now_s, False, done, current, processor_s)


def stalled(sights: Mapping[int, Sight], waited_for: Iterable[int], limit_s: float, now_s: float) -> list[Sight]:
    """The devices that a wait for these answers depends on, if none has made progress for `limit_s`; else none."""
    found: set[int] = set()
    open_ = set(waited_for)
    while open_:
        device = open_.pop()
        found.add(device)
        current = sights[device].current
        open_ |= sights.keys() & (set(current[3] if current else ()) - found)
    mine = [sights[device] for device in sorted(found)]
    return mine if all(now_s - sight.moved_s >= limit_s for sight in mine) else []


def stuck_collective(stuck: Iterable[Sight]) -> tuple[Current, list[int], list[int]] | None:
    """The first collective in which these devices wait, and its devices that reached it, and that did not; or None."""
    seen = list(stuck)
    currents = [sight.current for sight in seen if sight.current is not None]
    if not currents:
        return None
    first = min(currents)
    reached = {sight.device for sight in seen if sight.current == first or sight.done >= first[0]}
    return first, [d for d in first[3] if d in reached], [d for d in first[3] if d not in reached]


# why a device on a machine that answers does not answer
STOPPED = "its process is stopped, or the system does not let it run"
# a device that was asked a moment ago may still answer: on a busy machine seconds after its peers
ANSWERS_WITHIN_S = 10


def check_progress(
    links: Sequence[Link],
    calls: Iterable[Run],
    waited_for: Sequence[int],
    since_s: float,
    platform: str,
    why_silent: Callable[[int], str] = lambda device: STOPPED,
) -> None:
    """Raise CollectiveTimeoutError if none of the devices that a wait depends on makes progress.

    Args:
        calls: the calls that are not known to be finished.
        waited_for: the devices whose answer is missing.
        since_s: since when this wait checks without a pause.
        why_silent: returns why a device does not answer.
    """
    limit_s = config.read("collective_timeout_s")
    alive = [link for link in links if not link.lost]
    sights = {link.device: _present(link.sight, link.done) for link in alive if link.sight is not None}
    if len(sights) < len(alive) or any(device not in sights for device in waited_for):
        return  # a device was not checked yet; or the wait is for a lost device, which has its own error
    now_s = time.monotonic()
    if now_s - since_s < limit_s or any(not s.is_silent and now_s - s.seen_s > FORGET_S for s in sights.values()):
        return  # too early, or the next check is pending
    stuck = stalled(sights, waited_for, limit_s, now_s)
    if stuck:
        patience_s = 0.9 * min(limit_s, ANSWERS_WITHIN_S)  # a stopped device is silent for about the limit
        silent: dict[str, list[int]] = {}  # devices, by the reason why they do not answer
        for sight in sights.values():
            if sight.is_silent and now_s - sight.seen_s > patience_s:
                silent.setdefault(why_silent(sight.device), []).append(sight.device)
        raise _error(calls, sights, stuck, silent, limit_s, platform)


def _present(sight: Sight, done: int) -> Sight:
    """The information without its collective, if the device has finished that call since."""
    return replace(sight, current=None) if sight.current is not None and sight.current[0] <= done else sight


def _error(
    calls: Iterable[Run],
    sights: dict[int, Sight],
    stuck: list[Sight],
    silent: dict[str, list[int]],
    limit_s: int,
    platform: str,
) -> CollectiveTimeoutError:
    def names(ids: Sequence[int]) -> str:
        return f"{platform.upper()} {','.join(map(str, ids))}" if ids else "none"

    waiting = {sight.device for sight in stuck}
    beside = [s for s in sights.values() if s.device in waiting or (s.current and waiting & set(s.current[3]))]
    found = stuck_collective(beside)
    got = "".join(f"{names(ids)} does not answer: {why}\n" for why, ids in silent.items())
    if found is None:
        problem = f"{names([sight.device for sight in stuck])} has made no progress for {limit_s} s"
    else:
        (number, _, name, _), reached, missing = found
        problem = f"{name} cannot complete: none of its devices has made progress for {limit_s} s"
        got = f"reached by {names(reached)}; not reached by {names(missing)}\n{got}"
        run = next((run for run in calls if run.number == number), None)
        got += f"dispatched by {run.where}" if run is not None else ""
    return CollectiveTimeoutError(
        problem,
        got=got.strip(),
        rule="a device makes progress if it computes or exchanges; only when none does is a wait given up",
        try_="ask again if they may go on (nothing is lost); ts.init() starts a fresh pool;\n"
        'ts.config.update("collective_timeout_s", seconds) waits longer',
    )
