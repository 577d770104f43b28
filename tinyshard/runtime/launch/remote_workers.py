"""The agents on other machines, as the controller sees them, and the workers of one pool that they fork."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from tinyshard.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.remote_errors import lost_error
from tinyshard.runtime.launch.connect import WORKER_LINES

# a fork, and four connections; on a machine that is busy
START_WITHIN_S = 90
# how a worker ended is its agent's news, and comes a moment after the end of its connections
NEWS_WITHIN_S = 2


@dataclass(eq=False)
class Agent:
    """A process that a launcher has started on some machine, and the worker that it has forked.

    Attributes:
        host: the address from which it came.
        rank: its number.
        facts: what it says of itself: how many its launcher has started, its machine's name and GPUs, versions.
        changed: guards what follows, and is notified when it changes.
        lost: why it is gone; empty while it is there.
        pool: name of the pool that its worker belongs to.
        store: in which the workers of that pool meet.
        lines: the connections of its worker, by role.
        pid, ended: of its worker, and how it ended; empty while it runs.
    """

    sock: socket.socket
    host: str
    rank: int
    facts: dict[str, Any]
    changed: threading.Condition
    lost: str = ""
    pool: str = ""
    store: Any = None
    lines: dict[str, socket.socket] = field(default_factory=dict)
    pid: int = 0
    ended: str = ""

    def tell(self, *words: Any) -> None:
        """Write to it; that it is gone is seen elsewhere."""
        with self.changed, contextlib.suppress(OSError):
            wire.send(self.sock, words)

    def end_lines(self) -> None:
        """End its worker's connections: threads that read them see the end."""
        for sock in self.lines.values():
            with contextlib.suppress(OSError):  # closed before
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def place(self) -> str:
        """Its machine, for people."""
        name = self.facts["name"]
        return self.host if name == self.host else f"{self.host} ({name})"


class RemoteWorkers:
    """One worker for each of some agents. A `launch.Starter`.

    Args:
        agents: which agents fork, by device.
        platform: what the devices are called.
        collectives: what joins the workers: "gloo" or "nccl".
        gpus: by device, the number of its GPU on its machine; none for CPUs.
    """

    def __init__(self, agents: Sequence[Agent], platform: str, collectives: str, gpus: Sequence[int] = ()) -> None:
        self._agents = agents
        self._platform = platform
        self._facts = {"count": len(agents), "collectives": collectives}
        self._gpus: Sequence[int | None] = gpus or [None] * len(agents)
        self._name = secrets.token_hex(8)
        self._changed = agents[0].changed

    def host(self, device: int) -> str:
        """The address of a device's machine."""
        return self._agents[device].host

    def links(self, is_wanted: Callable[[], bool]) -> Iterator[Link]:
        """Start the workers; a Link to each, as soon as all are connected.

        Args:
            is_wanted: whether to go on waiting.

        Raises:
            DeviceLostError: one of them ends, or its machine goes, before.
            RuntimeStateError: they do not come in time.
        """
        store = dist.HashStore()
        are_up = False
        with self._changed:
            for device, agent in enumerate(self._agents):
                agent.pool, agent.store, agent.lines, agent.ended = self._name, store, {}, ""
                agent.tell("start", self._name, {"device": device, "gpu": self._gpus[device], **self._facts})
            try:
                are_up = self._wait_for_lines(is_wanted)
            finally:
                if not are_up:
                    self._call_off()
        for device, agent in enumerate(self._agents) if are_up else ():
            sock, control, output, _ = (agent.lines[role] for role in WORKER_LINES)
            yield Link(device, sock, control, output.detach(), agent.pid)

    def _call_off(self) -> None:
        for agent in self._agents:
            agent.pool = ""  # what connects from here on is refused
            agent.tell("kill", self._name)
            for sock in agent.lines.values():
                sock.close()

    def _wait_for_lines(self, is_wanted: Callable[[], bool]) -> bool:
        end_s = time.monotonic() + START_WITHIN_S
        while missing := [agent for agent in self._agents if len(agent.lines) < len(WORKER_LINES)]:
            if not is_wanted():
                return False
            for device in range(len(self._agents)):
                if why := self._end_of(device):
                    raise lost_error(device, why, self._platform)
            if time.monotonic() > end_s:
                raise RuntimeStateError(
                    message(
                        f"not all workers have connected within {START_WITHIN_S} s",
                        got="\n".join(f"{a.place}: no connection of worker {self._agents.index(a)}" for a in missing),
                        rule=f"each worker opens {len(WORKER_LINES)} connections to the controller",
                        try_="ts.init() again; is there a limit on connections between the machines?",
                    )
                )
            self._changed.wait(0.1)
        return True

    def end(self, link: Link) -> str:
        """End a worker, if it has not ended; how it ended."""
        agent = self._agents[link.device]
        agent.tell("kill", self._name)
        with self._changed:
            self._changed.wait_for(lambda: self._end_of(link.device), NEWS_WITHIN_S)
        agent.end_lines()
        return self._end_of(link.device) or f"nobody on {agent.place} tells how it ended"

    def _end_of(self, device: int) -> str:
        """How a worker ended, or its machine with all workers there; empty if neither did."""
        agent = self._agents[device]
        there = [other for other, each in enumerate(self._agents) if each.host == agent.host]
        return f"{agent.lost} ({self._platform.upper()} {ids_text(there)} there)" if agent.lost else agent.ended


def ids_text(ids: Iterable[int]) -> str:
    """Numbers for people, runs of them shortened.

    Example:
        >>> ids_text([0, 1, 2, 3, 6])
        '0-3, 6'
    """
    by_run = itertools.groupby(enumerate(sorted(ids)), lambda place_and_id: place_and_id[1] - place_and_id[0])
    runs = [[number for _, number in run] for _, run in by_run]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
