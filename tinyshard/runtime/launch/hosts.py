"""The controller's end of other machines: it listens where the user said, and lets in the agents that know the secret.

Each connection has a thread of its own, so that a stranger who says nothing holds up nothing else.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from tinyshard.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.controller.remote_errors import ending
from tinyshard.runtime.forks import abandon_in_child
from tinyshard.runtime.launch import authentication, connect, rendezvous
from tinyshard.runtime.launch.agent import versions
from tinyshard.runtime.launch.remote_workers import Agent, ids_text

MOST_GREETED_AT_ONCE = 64
# workers that are expected soon need no instructions
SAY_AFTER_S = 2
_LOOK_EVERY_S = 0.1
_MOST_REFUSED_SHOWN = 5


class Hosts:
    """Listens for agents, and for the connections of the workers that they fork.

    Args:
        address: "HOST:PORT" of this machine.
        secret: what agents and workers must know.

    Attributes:
        agents: those that are there, by rank. Replaced as a whole, so that any thread may read it.

    Raises:
        RuntimeStateError: nothing can listen there.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self.address = address
        self.agents: dict[int, Agent] = {}
        self.is_closed = False
        self._refused: collections.deque[str] = collections.deque(maxlen=_MOST_REFUSED_SHOWN)
        self._changed = threading.Condition()  # the agents'
        self._secret = secret
        self._listener = _listen(address)
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet([self._listener])
        self._places = threading.BoundedSemaphore(MOST_GREETED_AT_ONCE)
        abandon_in_child(self)
        self._thread = threading.Thread(target=self._accept, name="tinyshard hosts", daemon=True)
        self._thread.start()

    def gather(self, devices: int | None, within_s: float, say: Callable[[str], None]) -> list[Agent]:
        """Wait until enough agents are there. Ctrl-C ends it.

        Args:
            devices: how many; by default as many as the launcher has started.
            within_s: how long to wait.
            say: tells the user what to start, if none comes soon.

        Returns:
            The agents, by rank.

        Raises:
            RuntimeStateError: they do not come in time, or the launcher has not started that many.
        """
        began_s = time.monotonic()
        say_at_s = began_s + SAY_AFTER_S
        while True:
            there = self.agents
            started = max((agent.facts["count"] for agent in there.values()), default=0)
            wanted = devices or started
            if devices and 0 < started < devices:
                raise RuntimeStateError(
                    message(
                        "there are fewer workers than devices",
                        got=f"{devices} devices; {started} workers were started",
                        rule="each device is a worker on one of the machines",
                        try_=f"ts.init(devices={started}), or start more workers:\n{command(self.address)}",
                    )
                )
            if wanted and len(there) >= wanted:
                return [there[rank] for rank in sorted(there)][:wanted]
            now_s = time.monotonic()
            if now_s > began_s + within_s:
                raise self._incomplete(wanted, within_s)
            if now_s > say_at_s:
                say_at_s = began_s + within_s
                say(f"waiting for workers at {self.address}; start them on every machine by\n{command(self.address)}")
            time.sleep(_LOOK_EVERY_S)

    def _incomplete(self, wanted: int, within_s: float) -> RuntimeStateError:
        there = self.agents
        by_place: dict[str, list[int]] = {}
        for rank, agent in there.items():
            by_place.setdefault(agent.place, []).append(rank)
        got = [f"{len(there)} of {wanted}" if wanted else "nobody has come"]
        got += [f"{place}: workers {ids_text(ranks)}" for place, ranks in sorted(by_place.items())]
        got += [f"missing: {ids_text(set(range(wanted)) - set(there))}"] if there else []
        got += [f"refused: {told}" for told in dict.fromkeys(self._refused)]
        return RuntimeStateError(
            message(
                f"the workers of other machines have not all come to {self.address} within {within_s:.0f} s",
                got="\n".join(got),
                rule="on every machine the same command runs, knows the secret, and reaches this address",
                try_=f"{command(self.address)}\n"
                'or ts.config.update("hosts_timeout_s", seconds) to wait longer, or fewer devices',
            )
        )

    def close(self) -> None:
        """Tell the agents that it is over, and end all connections."""
        for agent in self.agents.values():
            agent.tell("leave")
        self.is_closed = True
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):  # its thread sees the end, and closes it
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close what the two share."""
        self.is_closed = True
        for sock in list(self._sockets):
            sock.close()

    # ---- threads ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with self._listener:
            while not self.is_closed:
                try:
                    sock, peer = self._listener.accept()
                except OSError:  # none came lately, or it has gone again, or there are no descriptors left
                    continue
                self._sockets.add(sock)
                if self._places.acquire(blocking=False):
                    threading.Thread(target=self._greet, args=(sock, peer[0]), name="greeting", daemon=True).start()
                else:
                    sock.close()

    def _greet(self, sock: socket.socket, host: str) -> None:
        """Let in what proves that it knows the secret; anything else has changed nothing but the list of refused."""
        try:
            serve = self._let_in(sock, host)
        except Exception as error:  # whatever a stranger sends ends here
            self._refused.append(f"{host}: {error}")
            sock.close()
            return
        finally:
            self._places.release()
        serve()

    def _let_in(self, sock: socket.socket, host: str) -> Callable[[], None]:
        """Take in an agent, or a connection of its worker; what this thread then does for it."""
        authentication.answer(sock, self._secret, connect.SPEAK_WITHIN_S)
        sock.settimeout(connect.SPEAK_WITHIN_S)
        role, rank, facts = wire.receive(sock)
        with self._changed:
            word, why = self._objection(role, rank, facts)
            wire.send(sock, (word, why))
            if word != connect.WELCOME:
                raise authentication.RefusedError(why)
            connect.keep_alive(sock, role)
            if role == "agent":
                agent = Agent(sock, host, rank, facts, self._changed)
                self.agents = {**self.agents, rank: agent}
                return partial(self._attend, agent)
            agent = self.agents[rank]
            agent.lines[role], agent.pid = sock, facts["pid"]
            self._changed.notify_all()
            return partial(rendezvous.serve, sock, agent.store) if role == "store" else lambda: None

    def _objection(self, role: str, rank: int, facts: dict[str, Any]) -> tuple[str, str]:
        """Whether an agent or a worker's connection may come in, or may try again later; and why not."""
        there = self.agents.get(rank)
        if role != "agent":
            if there is None or there.pool != facts["pool"] or role not in {*connect.WORKER_LINES} - {*there.lines}:
                return connect.REFUSED, "its pool has ended"
            return connect.WELCOME, ""
        for name, own in versions().items():
            if facts[name] != own:
                return connect.REFUSED, f"it has {name} {facts[name]}, the controller {own}; they must be the same"
        if there is not None:
            return connect.LATER, f"worker {rank} is there already, on {there.place}"
        for other in {agent.facts["count"] for agent in self.agents.values()} - {facts["count"]}:
            return connect.LATER, f"it is one of {facts['count']} workers, those that are there are of {other}"
        return connect.WELCOME, ""

    def _attend(self, agent: Agent) -> None:
        """Note how an agent's workers end, until it is gone."""
        try:
            while True:
                _, pool, code = wire.receive(agent.sock)
                with self._changed:
                    if pool == agent.pool:
                        wait_status = -code if code < 0 else code << 8  # a signal, or an exit code
                        agent.ended = f"{ending(wait_status)} on {agent.place}"
                        self._changed.notify_all()
        except OSError as error:
            why = f"its machine {agent.place} does not answer any more"
            if isinstance(error, ConnectionError):  # else no answer came in time
                why = f"the process that had started it on {agent.place} ended"
            with self._changed:
                agent.lost = why
                self.agents = {rank: other for rank, other in self.agents.items() if other is not agent}
                agent.end_lines()
                agent.sock.close()
                self._changed.notify_all()


def _listen(address: str) -> socket.socket:
    host, port = connect.parse(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=MOST_GREETED_AT_ONCE)
    except OSError as error:
        raise RuntimeStateError(
            message(
                "the controller cannot listen for other machines",
                got=f"{address}: {error}",
                rule="an address of this machine that the other machines can reach, and a free port",
                try_="`ip addr` lists the addresses; another port may be free",
            )
        ) from None
    listener.settimeout(_LOOK_EVERY_S)  # on Linux alone a shutdown wakes a thread that waits in accept
    return listener


def command(address: str) -> str:
    """What a user types on every machine."""
    return (
        "torchrun --nnodes=MACHINES --nproc-per-node=WORKERS --rdzv-backend=c10d --rdzv-endpoint=ONE_OF_THEM:29500 "
        f"-m tinyshard.worker --controller {address}"
    )


_hosts: Hosts | None = None


def join(address: str) -> Hosts:
    """The one listener of this process, at this address; agents that have joined it stay from pool to pool."""
    global _hosts
    if _hosts is not None and (_hosts.address != address or _hosts.is_closed):
        leave()
    if _hosts is None:
        _hosts = Hosts(address, authentication.read_secret(may_make=True))
    return _hosts


def leave() -> None:
    """End it, and with it all workers on other machines."""
    global _hosts
    ending_, _hosts = _hosts, None
    if ending_ is not None and not ending_.is_closed:
        ending_.close()
