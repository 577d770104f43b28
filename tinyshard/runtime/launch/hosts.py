"""The controller's end for other machines: it listens at the user's address, and accepts agents with the secret.

    controller                           agent of a slot
                                    ←    ("agent", rank, facts)           as the hello of its connection
    (number, "start", arguments)    →    ends the worker that it has; opens the connections of a new one and forks it
                                    ←    (number, (pid or why there is none, address of the workers' store))
    (number, "kill", pid)           →    ends it
                                    ←    (number, wait status)            of what ended it first
    (number, "kill all", None)      →    the same, if the start was cancelled
    (number, "there", None)         →
                                    ←    (number, True)
    (number, "leave", None)         →    ends its worker and itself

The first worker keeps the store in which gloo and NCCL find the other workers: torch's TCPStore.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import threading
import time
import weakref
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime import wire
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.launch import connect

_LOOK_EVERY_S = 0.1
_MOST_GREETED_AT_ONCE = 64
_MOST_REFUSED_SHOWN = 5


@dataclass(eq=False)
class Agent:
    """A process that a launcher has started on some machine, and that forks a worker.

    Attributes:
        host: the address from which it came.
        rank: its number.
        facts: its own description: how many agents its launcher has started, its machine's name and GPUs, versions.
        lost: why the agent is gone; empty while it is connected.
        lines: the connections of the worker that it forks next, by role.
    """

    sock: socket.socket
    host: str
    rank: int
    facts: dict[str, Any]
    lost: str = ""
    lines: dict[str, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._reader = wire.Reader(self.sock)
        self._answers: dict[int, Any] = {}  # received and not taken yet, or to abandoned orders
        self._lock = threading.RLock()  # the I/O threads of an ending pool and of the next one may use it concurrently

    @property
    def place(self) -> str:
        """The name of its machine in messages."""
        name = self.facts["name"]
        return self.host if name == self.host else f"{self.host} ({name})"

    @property
    def is_there(self) -> bool:
        """Whether its connection has not ended. It reads nothing: Ctrl-C may interrupt it, and no answer is lost."""
        if not self.lost:
            try:
                if not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    self.lose(ConnectionError())
            except BlockingIOError:
                pass
            except OSError as error:
                self.lose(error)
        return not self.lost

    def lose(self, error: OSError) -> None:
        """Note that its connection has ended by this error, and close it: an agent that is alive connects again."""
        if self.lost:
            return
        if isinstance(error, ConnectionError):
            self.lost = f"the process that had started it on {self.place} ended"
        else:  # no answer came in time
            self.lost = f"the connection to its machine {self.place} was lost"
        _shut_down(self.sock)

    def order(self, word: str, what: Any = None) -> int:
        """Send it an order; the order's number."""
        number = next(self._numbers)
        try:
            with self._lock:
                wire.send(self.sock, (number, word, what))
        except OSError as error:
            self.lose(error)
        return number

    def answer(self, number: int, within_s: float) -> Any:
        """The answer to the order of this number; None if there is none in time, or it is lost."""
        end_s = time.monotonic() + within_s
        while True:
            self._receive()
            if number in self._answers:
                return self._answers.pop(number)
            if self.lost or (left_s := end_s - time.monotonic()) <= 0:
                return None
            wait([self.sock], min(left_s, _LOOK_EVERY_S))  # another thread may receive this answer meanwhile

    def _receive(self) -> None:
        """Keep the answers that have arrived, and note if its connection has ended."""
        with self._lock:
            while not self.lost and wait([self.sock], 0):
                received = self._reader.read()
                if received is None:
                    self.lose(self._reader.error or ConnectionError())
                else:
                    self._answers.update(head for head, _ in received)

    def ask(self, word: str, what: Any, within_s: float) -> Any:
        """Send it an order, and wait for the answer, as `answer` does."""
        return self.answer(self.order(word, what), within_s)

    def close(self) -> None:
        """Close its connection, and those of a worker that no pool has taken."""
        for sock in (self.sock, *self.lines.values()):
            sock.close()


class Hosts:
    """Listens for agents, and for the connections of the workers that they fork.

    A thread handles each new connection, so one that sends nothing does not delay the rest.

    Args:
        address: "HOST:PORT" of this machine.
        secret: shared with agents and workers.

    Attributes:
        refused: the processes that were refused last, and why.

    Raises:
        RuntimeStateError: nothing can listen there.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self.address = address
        self.is_closed = False
        self.refused: collections.deque[str] = collections.deque(maxlen=_MOST_REFUSED_SHOWN)
        self._secret = secret
        self._agents: dict[int, Agent] = {}
        self._lock = threading.Lock()  # of the agents
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

    @property
    def agents(self) -> dict[int, Agent]:
        """The connected agents, by rank."""
        return {rank: agent for rank, agent in list(self._agents.items()) if agent.is_there}

    def close(self) -> None:
        """End the service of the agents, and close all connections. Idempotent."""
        for agent in list(self._agents.values()):
            agent.order("leave")
        self.is_closed = True
        for sock in list(self._sockets):
            _shut_down(sock)
        self._thread.join()
        for agent in list(self._agents.values()):
            agent.close()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close the shared descriptors."""
        self.is_closed = True
        for sock in list(self._sockets):
            sock.close()

    def _accept(self) -> None:
        with self._listener:
            while not self.is_closed:
                wait([self._listener], _LOOK_EVERY_S)  # only Linux wakes an accept that is shut down
                try:
                    with held_off():  # a child that is forked meanwhile would keep the socket
                        sock, peer = self._listener.accept()
                        self._sockets.add(sock)
                except BlockingIOError:
                    continue
                except OSError:  # it has disconnected again, or there are no descriptors left
                    time.sleep(_LOOK_EVERY_S)
                    continue
                if self._places.acquire(blocking=False):
                    threading.Thread(target=self._greet, args=(sock, peer[0]), name="greeting", daemon=True).start()
                else:
                    sock.close()

    def _greet(self, sock: socket.socket, host: str) -> None:
        """Accept a process that proves that it knows the secret; any other is only added to the refused ones."""
        try:
            connect.prove_controller(sock, self._secret, connect.SPEAK_WITHIN_S)
            role, rank, facts = wire.receive(sock)
            with self._lock:
                self._let_in(sock, host, role, rank, facts)
        except Exception as error:  # an unknown process may send anything
            self.refused.append(f"{host}: {error}")
            sock.close()
        finally:
            self._places.release()

    def _let_in(self, sock: socket.socket, host: str, role: str, rank: int, facts: dict[str, Any]) -> None:
        """Accept an agent, or a connection of its worker; or refuse it, and raise the reason."""
        there = self._agents.get(rank)
        refusal = self._refusal(role, there, facts)
        if refusal is not None:
            wire.send(sock, (refusal,))
            raise refusal
        connect.keep_alive(sock, role)
        if role == "agent":
            wire.send(sock, (None,))  # before any order
            self._agents[rank] = Agent(sock, host, rank, facts)
            before = there.sock if there is not None else None
        else:
            assert there is not None
            before = there.lines.get(role)  # of a worker whose start was cancelled
            there.lines[role] = sock
            wire.send(sock, (None,))  # then the agent forks
        if before is not None:
            before.close()

    def _refusal(self, role: str, there: Agent | None, facts: dict[str, Any]) -> ConnectionError | None:
        """The error that refuses an agent or a worker's connection; unless it is a RefusedError, it may try again."""
        if role != "agent":
            is_known = there is not None and role in connect.WORKER_LINES
            return None if is_known else connect.RefusedError("it belongs to no agent")
        for name, own in connect.versions().items():
            if facts[name] != own:
                why = f"it has {name} {facts[name]}, the controller {own}; they must be the same"
                return connect.RefusedError(why)
        if there is not None and there.is_there:
            return ConnectionError(f"worker {there.rank} is there already, on {there.place}")
        for other in {agent.facts["count"] for agent in self.agents.values()} - {facts["count"]}:
            return ConnectionError(f"it is one of {facts['count']} workers, those that are there are of {other}")
        return None


def _listen(address: str) -> socket.socket:
    host, port = connect.parse(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_MOST_GREETED_AT_ONCE)
    except OSError as error:
        raise RuntimeStateError(
            "the controller cannot listen for other machines",
            got=f"{address}: {error}",
            rule="an address of this machine that the other machines can reach, and a free port",
            try_="`ip addr` lists the addresses; another port may be free",
        ) from None
    listener.setblocking(False)
    return listener


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed before
        sock.shutdown(socket.SHUT_RDWR)


_listening: dict[str, Hosts] = {}


def join(address: str) -> Hosts:
    """This process's listener at an address; agents that have connected stay from pool to pool."""
    connect.parse(address)  # before a secret is made
    if address not in _listening or _listening[address].is_closed:
        _listening[address] = Hosts(address, connect.read_secret(may_make=True))
    return _listening[address]


def leave(but: str = "") -> None:
    """End the listeners, except at one address, and with them all workers on other machines."""
    for address in [address for address in _listening if address != but]:
        _listening[address].close()
        del _listening[address]
