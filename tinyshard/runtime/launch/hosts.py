"""The controller's end of other machines: it listens where the user said, and lets in the agents that know the secret.

    controller                          agent of a slot
                                   ←    ("agent", rank, facts)            as the hello of its connection
    ("start", pool, arguments)     →    ends the worker that it has, forks the next; this opens connections of its own
    ("kill", pool)                 →    ends it
                                   ←    ("ended", pool, exit code)        however it ended
    ("leave",)                     →    ends its worker and itself

Each connection has a thread of its own, which blocks: a stranger that says nothing holds up no other connection.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tinyshard.core.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.controller.remote_errors import ending
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.launch import connect

_LOOK_EVERY_S = 0.1
_MOST_GREETED_AT_ONCE = 64
_MOST_REFUSED_SHOWN = 5


@dataclass(eq=False)
class Agent:
    """A process that a launcher has started on some machine, and the worker that it has forked.

    Attributes:
        host: the address from which it came.
        rank: its number.
        facts: what it says of itself: how many its launcher has started, its machine's name and GPUs, versions.
        changed: guards what follows, and is notified when it changes.
        lost: why the agent is gone; empty while it is there.
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

    @property
    def place(self) -> str:
        """Its machine, for people."""
        name = self.facts["name"]
        return self.host if name == self.host else f"{self.host} ({name})"

    def tell(self, *words: Any) -> None:
        """Write to it. The thread that reads from it sees if it is gone."""
        with self.changed, contextlib.suppress(OSError):
            wire.send(self.sock, words)

    def end_lines(self) -> None:
        """End its worker's connections: threads that read them see the end."""
        for sock in self.lines.values():
            _shut_down(sock)


class Hosts:
    """Listens for agents, and for the connections of the workers that they fork.

    Args:
        address: "HOST:PORT" of this machine.
        secret: what agents and workers must know.

    Attributes:
        agents: those that are there, by rank. Replaced as a whole, so that any thread may read it.
        refused: the processes that were refused last, and why.

    Raises:
        RuntimeStateError: nothing can listen there.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self.address = address
        self.agents: dict[int, Agent] = {}
        self.is_closed = False
        self._secret = secret
        self._changed = threading.Condition()  # the agents'
        self.refused: collections.deque[str] = collections.deque(maxlen=_MOST_REFUSED_SHOWN)
        self._places = threading.BoundedSemaphore(_MOST_GREETED_AT_ONCE)
        self._thread = threading.Thread(target=self._accept, name="tinyshard hosts", daemon=True)
        with held_off():
            self._listener = _listen(address)
            try:
                self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet([self._listener])
                abandon_in_child(self)
                self._thread.start()
            except BaseException:
                self.is_closed = True
                self._listener.close()
                raise

    def close(self) -> None:
        """Tell the agents that it is over, and end all connections. To do it again changes nothing."""
        for agent in self.agents.values():
            agent.tell("leave")
        self.is_closed = True
        for sock in list(self._sockets):
            _shut_down(sock)  # its thread sees the end, and closes it
        self._thread.join()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close what the two share."""
        self.is_closed = True
        for sock in list(self._sockets):
            sock.close()

    def _accept(self) -> None:
        with self._listener:
            while not self.is_closed:
                select.select([self._listener], [], [], _LOOK_EVERY_S)  # only Linux wakes an accept that is shut down
                try:
                    with held_off():  # a child that is forked meanwhile would keep the socket
                        sock, peer = self._listener.accept()
                        self._sockets.add(sock)
                except BlockingIOError:
                    continue
                except OSError:  # it has gone again, or there are no descriptors left
                    time.sleep(_LOOK_EVERY_S)
                    continue
                if self._places.acquire(blocking=False):
                    threading.Thread(target=self._greet, args=(sock, peer[0]), name="greeting", daemon=True).start()
                else:
                    sock.close()

    def _greet(self, sock: socket.socket, host: str) -> None:
        """Let in what proves that it knows the secret; anything else changes nothing but the list of refused."""
        try:
            serve = self._let_in(sock, host)
        except Exception as error:  # whatever a stranger sends ends here
            self.refused.append(f"{host}: {error}")
            sock.close()
            return
        finally:
            self._places.release()
        serve()

    def _let_in(self, sock: socket.socket, host: str) -> Callable[[], None]:
        """Take in an agent, or a connection of its worker; what this thread then does for it."""
        connect.prove_controller(sock, self._secret, connect.SPEAK_WITHIN_S)
        role, rank, facts = wire.receive(sock)
        with self._changed:
            refusal = self._refusal(role, rank, facts)
            wire.send(sock, (refusal,))
            if refusal is not None:
                raise refusal
            connect.keep_alive(sock, role)
            if role == "agent":
                agent = Agent(sock, host, rank, facts, self._changed)
                self.agents = {**self.agents, rank: agent}
                return partial(self._attend, agent)
            agent = self.agents[rank]
            agent.lines[role], agent.pid = sock, facts["pid"]
            self._changed.notify_all()
            return partial(connect.serve_store, sock, agent.store) if role == "store" else lambda: None

    def _refusal(self, role: str, rank: int, facts: dict[str, Any]) -> ConnectionError | None:
        """Why an agent or a worker's connection may not come in; one that is no RefusedError: it may try again."""
        there = self.agents.get(rank)
        if role != "agent":
            if there is None or there.pool != facts["pool"] or role not in {*connect.WORKER_LINES} - {*there.lines}:
                return connect.RefusedError("its pool has ended")
            return None
        for name, own in connect.versions().items():
            if facts[name] != own:
                why = f"it has {name} {facts[name]}, the controller {own}; they must be the same"
                return connect.RefusedError(why)
        if there is not None:
            return ConnectionError(f"worker {rank} is there already, on {there.place}")
        for other in {agent.facts["count"] for agent in self.agents.values()} - {facts["count"]}:
            return ConnectionError(f"it is one of {facts['count']} workers, those that are there are of {other}")
        return None

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
        listener = socket.create_server((host, port), family=family, backlog=_MOST_GREETED_AT_ONCE)
    except OSError as error:
        raise RuntimeStateError(
            message(
                "the controller cannot listen for other machines",
                got=f"{address}: {error}",
                rule="an address of this machine that the other machines can reach, and a free port",
                try_="`ip addr` lists the addresses; another port may be free",
            )
        ) from None
    listener.setblocking(False)
    return listener


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed before
        sock.shutdown(socket.SHUT_RDWR)


_hosts: Hosts | None = None


def join(address: str) -> Hosts:
    """The one listener of this process, at this address; agents that have joined it stay from pool to pool."""
    global _hosts
    if _hosts is not None and (_hosts.address != address or _hosts.is_closed):
        leave()
    if _hosts is None:
        _hosts = Hosts(address, connect.read_secret(may_make=True))
    return _hosts


def leave() -> None:
    """End it, and with it all workers on other machines."""
    global _hosts
    if _hosts is not None:
        _hosts.close()
        _hosts = None
