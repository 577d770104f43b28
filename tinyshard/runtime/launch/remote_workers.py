"""A pool of workers on other machines: waiting for enough agents, and having each of them fork a worker."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime.controller.connection import Link, Stream
from tinyshard.runtime.controller.remote_errors import ending, lost_error
from tinyshard.runtime.controller.watchdog import STOPPED
from tinyshard.runtime.forks import held_off
from tinyshard.runtime.launch.hosts import Agent, Hosts
from tinyshard.runtime.launch.local import Starter

_LOOK_EVERY_S = 0.1
# instructions are not printed for workers that connect within this time
_SAY_AFTER_S = 2
# how long to wait for an agent, which answers at once unless its machine is busy
_NEWS_WITHIN_S = 2
# how long an agent may take to fork a worker and to connect it
_START_WITHIN_S = 60


def gather(hosts: Hosts, devices: int | None, within_s: float) -> list[Agent]:
    """Wait until enough agents have connected; if they do not soon, print the command to start. Ctrl-C ends it.

    Args:
        devices: their number; by default as many as the launcher has started.
        within_s: how long to wait.

    Returns:
        The agents, by rank.

    Raises:
        RuntimeStateError: they do not connect in time, or the launcher has not started that many.
    """
    began_s = time.monotonic()
    has_said = False
    while True:
        there = hosts.agents
        started = max((agent.facts["count"] for agent in there.values()), default=0)
        wanted = devices or started
        if devices and 0 < started < devices:
            raise RuntimeStateError(
                "there are fewer workers than devices",
                got=f"{devices} devices; {started} workers were started",
                rule="each device is a worker on one of the machines",
                try_=f"ts.init(devices={started}), or start more workers:\n{_command(hosts)}",
            )
        if wanted and len(there) >= wanted:
            return [there[rank] for rank in sorted(there)][:wanted]
        waited_s = time.monotonic() - began_s
        if waited_s > within_s:
            raise _incomplete(hosts, wanted, within_s)
        if waited_s > _SAY_AFTER_S and not has_said:
            has_said = True
            text = f"waiting for workers at {hosts.address}; start them on every machine by\n"
            print(text + _command(hosts), file=sys.stderr)
        time.sleep(_LOOK_EVERY_S)


def _incomplete(hosts: Hosts, wanted: int, within_s: float) -> RuntimeStateError:
    there = hosts.agents
    by_place: dict[str, list[int]] = {}
    for rank, agent in there.items():
        by_place.setdefault(agent.place, []).append(rank)
    got = [f"{len(there)} of {wanted}" if wanted else "no worker has come"]
    got += [f"{place}: worker {ids_text(ranks)}" for place, ranks in sorted(by_place.items())]
    got += [f"missing: worker {ids_text(set(range(wanted)) - set(there))}"] if there else []
    got += [f"refused: {reason}" for reason in dict.fromkeys(hosts.refused)]
    return RuntimeStateError(
        f"the workers of other machines have not all come to {hosts.address} within {within_s:.0f} s",
        got="\n".join(got),
        rule="on every machine the same command runs, knows the secret, and reaches this address",
        try_=f'{_command(hosts)}\nor ts.config.update("hosts_timeout_s", seconds) to wait longer, or fewer devices',
    )


def _command(hosts: Hosts) -> str:
    """The command for the user on every machine."""
    return (
        "torchrun --nnodes=MACHINES --nproc-per-node=WORKERS --rdzv-backend=c10d --rdzv-endpoint=ONE_OF_THEM:29500 "
        f"-m tinyshard.worker --controller {hosts.address}"
    )


class RemoteWorkers(Starter):
    """One worker for each of some agents.

    Args:
        agents: which agents fork, by device.
        platform: "cpu" or "gpu".
        collectives, gpus, limit_nbytes: those of `Starter`.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        platform: str,
        collectives: str,
        gpus: Sequence[int] = (),
        limit_nbytes: int | None = None,
    ) -> None:
        super().__init__(len(agents), collectives, gpus, limit_nbytes)
        self._agents = agents
        self._platform = platform

    def host(self, device: int) -> str:
        """The address of a device's machine."""
        return self._agents[device].host

    def links(self) -> Iterator[Link | None]:
        """Start the first worker, which has the store, then the rest at once; yields a Link to each, None in between.

        Raises:
            DeviceLostError: an agent, or its machine, is lost, cannot fork, or does not answer for a minute.
        """
        started = 0
        orders = [self._order(0, None)]
        try:
            for device, agent in enumerate(self._agents):
                end_s = time.monotonic() + _START_WITHIN_S
                while (answer := agent.answer(orders[device], _LOOK_EVERY_S)) is None:
                    if time.monotonic() > end_s:
                        agent.lose(TimeoutError())
                    if agent.lost:
                        raise lost_error(device, self._loss(device), self._platform)
                    yield None
                pid, store = answer
                if isinstance(pid, str):
                    raise lost_error(device, f"it could not be forked on {agent.place}: {pid}", self._platform)
                if device == 0:
                    orders += [self._order(other, store) for other in range(1, len(self._agents))]
                lines, agent.lines = agent.lines, {}
                channel, control = Stream(lines["channel"]), Stream(lines["control"])
                with held_off():  # a child that is forked meanwhile would keep the descriptor of the output
                    link = Link(device, channel, control, lines["output"].detach(), pid)
                started += 1
                yield link
        finally:
            for agent in self._agents[started : len(orders)]:
                agent.order("kill all")

    def _order(self, device: int, store: tuple[str, int] | None) -> int:
        given = {"device": device, "gpu": self._gpus[device], "store": store, **self._facts}
        return self._agents[device].order("start", given)

    def end(self, link: Link) -> str:
        """End a worker, if it has not ended; returns how it ended."""
        agent = self._agents[link.device]
        if not agent.lost and link.broken is not None:  # its machine is silent, and so are the agents there
            for each in self._agents:
                if each.host == agent.host:
                    each.lose(link.broken)
        status = agent.ask("kill", link.pid, _NEWS_WITHIN_S)
        if agent.lost:
            return self._loss(link.device)
        return f"no word from {agent.place} on how it ended" if status is None else f"{ending(status)} on {agent.place}"

    def why_silent(self, device: int) -> str:
        """Why a device does not answer: its process is stopped if its agent, beside it, answers."""
        agent = self._agents[device]
        if agent.ask("there", None, _NEWS_WITHIN_S):
            return f"{STOPPED} on {agent.place}"
        return f"the connection to {agent.place} is lost or cut"

    def _loss(self, device: int) -> str:
        """How the agent of a device ended, or its machine, with all workers there."""
        agent = self._agents[device]
        there = [other for other, each in enumerate(self._agents) if each.host == agent.host]
        return f"{agent.lost} ({self._platform.upper()} {ids_text(there)} there)"


def ids_text(ids: Iterable[int]) -> str:
    """Numbers as text, with abbreviated runs.

    Example:
        >>> ids_text([0, 1, 2, 3, 6])
        '0-3, 6'
    """
    by_run = itertools.groupby(enumerate(sorted(ids)), lambda place_and_id: place_and_id[1] - place_and_id[0])
    runs = [[number for _, number in run] for _, run in by_run]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
