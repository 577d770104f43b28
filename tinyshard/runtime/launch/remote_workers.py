"""The workers of one pool that live on other machines: how they are started, connected and ended."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tinyshard.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.remote_errors import lost_error
from tinyshard.runtime.launch.hosts import Agent, Hosts
from tinyshard.runtime.launch.rendezvous import KeyValueStore
from tinyshard.runtime.launch.slots import ids_text

ROLES = ("channel", "control", "output", "store")
# a fork, and four connections; on a machine that is busy
START_WITHIN_S = 90
# how a worker ended is its agent's news, and comes a moment after the end of its lines
NEWS_WITHIN_S = 2


class RemoteWorkers:
    """One worker for each of some agents. A `launch.Starter`.

    Args:
        hosts: where they come.
        agents: which agents fork, by device.
        platform: what the devices are called.
        collectives: what joins the workers: "gloo" or "nccl".
        gpus: by device, the number of its GPU on its machine; none for CPUs.
    """

    def __init__(
        self, hosts: Hosts, agents: Sequence[Agent], platform: str, collectives: str, gpus: Sequence[int] = ()
    ) -> None:
        self._gpus = gpus
        self._hosts = hosts
        self._agents = list(agents)
        self._platform = platform
        self._collectives = collectives
        self._name = secrets.token_hex(8)
        self._key_values = KeyValueStore()
        self._lines: dict[int, dict[str, socket.socket]] = {device: {} for device in range(len(agents))}
        self._pids: dict[int, int] = {}

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
        self._hosts.expect(self)
        for device, agent in enumerate(self._agents):
            agent.tell("start", self._name, self._facts(device))
        are_up = False
        try:
            are_up = self._wait_for_lines(is_wanted)
        finally:
            if not are_up:
                self._call_off()
        for device, by_role in self._lines.items() if are_up else ():
            sock, control, output, _ = (by_role[role] for role in ROLES)
            yield Link(device, sock, control, output.detach(), self._pids[device])

    def _call_off(self) -> None:
        self._hosts.expect(None)
        for agent in self._agents:
            agent.tell("kill", self._name)
        for by_role in self._lines.values():
            for sock in by_role.values():
                sock.close()

    def _facts(self, device: int) -> dict[str, Any]:
        gpu = self._gpus[device] if self._gpus else None
        return {"device": device, "count": len(self._agents), "collectives": self._collectives, "gpu": gpu}

    def _wait_for_lines(self, is_wanted: Callable[[], bool]) -> bool:
        end_s = time.monotonic() + START_WITHIN_S
        changed = self._hosts.changed
        with changed:
            while any(len(by_role) < len(ROLES) for by_role in self._lines.values()):
                if not is_wanted():
                    return False
                for device in range(len(self._agents)):
                    if why := self._end_of(device):
                        raise lost_error(device, why, self._platform)
                if time.monotonic() > end_s:
                    raise self._incomplete()
                changed.wait(0.1)
        return True

    def _incomplete(self) -> RuntimeStateError:
        missing = [device for device, by_role in self._lines.items() if len(by_role) < len(ROLES)]
        return RuntimeStateError(
            message(
                f"not all workers have connected within {START_WITHIN_S} s",
                got="\n".join(f"{self._agents[d].place}: no connection of worker {d}" for d in missing),
                rule=f"each worker opens {len(ROLES)} connections to {self._hosts.address}",
                try_="ts.init() again; is there a limit on connections between the machines?",
            )
        )

    def expects(self, role: str, name: str, device: int, pid: int) -> bool:
        """Whether a line with this hello is one that is still missing."""
        return name == self._name and role in ROLES and device in self._lines and role not in self._lines[device]

    def take(self, role: str, sock: socket.socket, name: str, device: int, pid: int) -> None:
        """A worker has opened a line."""
        self._lines[device][role] = sock
        self._pids[device] = pid
        if role == "store":
            reader = wire.Reader(sock)
            self._hosts.hear(sock, lambda: self._hear_store(sock, reader))

    def _hear_store(self, sock: socket.socket, reader: wire.Reader) -> None:
        messages = reader.read()
        if messages is None:
            self._hosts.drop(sock)
            return
        for question, _ in messages:
            self._key_values.take(question, lambda value: _answer(sock, value))

    def lose(self, agent: Agent) -> None:
        """An agent is gone: so are its workers, whatever their connections say."""
        for device, other in enumerate(self._agents):
            for sock in self._lines[device].values() if other is agent else ():
                with contextlib.suppress(OSError):  # the thread that reads it sees the end now
                    sock.shutdown(socket.SHUT_RDWR)

    def companions(self, agent: Agent) -> str:
        """Which devices are on an agent's machine, for an error; empty if it has none."""
        there = [device for device, other in enumerate(self._agents) if other.host == agent.host]
        return f" ({self._platform.upper()} {ids_text(there)} there)" if agent in self._agents else ""

    def end(self, link: Link) -> str:
        """End a worker, if it has not ended; how it ended."""
        agent = self._agents[link.device]
        agent.tell("kill", self._name)
        changed = self._hosts.changed
        end_s = time.monotonic() + NEWS_WITHIN_S
        with changed:
            while not (why := self._end_of(link.device)) and time.monotonic() < end_s and not self._hosts.is_closed:
                changed.wait(0.1)
        for sock in self._lines[link.device].values():
            if sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        return why or f"nobody on {agent.place} tells how it ended"

    def _end_of(self, device: int) -> str:
        agent = self._agents[device]
        return agent.lost or agent.ended.get(self._name, "")


def _answer(sock: socket.socket, value: Any) -> None:
    with contextlib.suppress(OSError):  # it is gone: its other lines say so
        wire.send(sock, ("value", value))
