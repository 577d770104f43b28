"""The error for a wait that no device brings nearer its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tinyshard import config
from tinyshard.errors import CollectiveTimeoutError, message
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.controller.watchdog import FORGET_S, Sight, stalled, who_reached

# who was asked a moment ago may still answer, on a busy machine seconds after its peers
ANSWERS_WITHIN_S = 10


def check_progress(
    links: Sequence[Link], calls: Iterable[Run], waited_for: Sequence[int], since_s: float, platform: str
) -> None:
    """Raise CollectiveTimeoutError if none of the devices that a wait depends on gets on.

    Args:
        links: of all devices.
        calls: those that are not known to be over.
        waited_for: the devices whose answer is missing.
        since_s: since when this wait looks without a pause.
        platform: "cpu".
    """
    limit_s = config.read("collective_timeout_s")
    sights = {link.device: _present(link.sight, link.done) for link in links if link.sight is not None}
    if len(sights) < len(links) or any(link.lost for link in links):
        return  # not all have been looked at; or one is gone, and that is the error
    now_s = time.monotonic()
    if now_s - since_s < limit_s or any(not s.is_silent and now_s - s.seen_s > FORGET_S for s in sights.values()):
        return  # not yet, or the look that has been asked for is still to be taken
    stuck = stalled(sights, waited_for, limit_s, now_s)
    if stuck:
        patience_s = 0.9 * min(limit_s, ANSWERS_WITHIN_S)  # who is stopped has been silent for the limit, or nearly so
        silent = [s.device for s in sights.values() if s.is_silent and now_s - s.seen_s > patience_s]
        raise _error(calls, sights, stuck, silent, limit_s, platform)


def _present(sight: Sight, done: int) -> Sight:
    """A sight, without a collective that the device is known to have left since: it is done with a later call."""
    return replace(sight, current=None) if sight.current is not None and sight.current[0] < done else sight


def _error(
    calls: Iterable[Run], sights: dict[int, Sight], stuck: list[Sight], silent: list[int], limit_s: int, platform: str
) -> CollectiveTimeoutError:
    def names(ids: Sequence[int]) -> str:
        return f"{platform.upper()} {','.join(map(str, ids))}" if ids else "none"

    ids = {sight.device for sight in stuck}
    found = who_reached([s for s in sights.values() if s.device in ids or (s.current and ids & set(s.current[3]))])
    got = (
        f"{names(silent)} does not answer: its process is stopped, or the system does not let it run\n"
        if silent
        else ""
    )
    if found is None:
        problem = f"{names([sight.device for sight in stuck])} has not got on for {limit_s} s"
    else:
        (number, _, name, _), reached, missing = found
        problem = f"{name} cannot complete: none of its devices has got on for {limit_s} s"
        got = f"reached by {names(reached)}; not reached by {names(missing)}\n{got}"
        run = next((run for run in calls if run.number == number), None)
        got += f"dispatched by {run.where}" if run is not None else ""
    return CollectiveTimeoutError(
        message(
            problem,
            got=got.strip(),
            rule="a device gets on if it computes or exchanges; only when none does is a wait given up",
            try_="ask again if they may go on (nothing is lost); ts.init() starts a fresh pool;\n"
            'ts.config.update("collective_timeout_s", seconds) waits longer',
        )
    )
