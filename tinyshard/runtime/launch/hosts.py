"""The controller's end of other machines: it listens where the user said, lets in who knows the secret, and watches.

One thread accepts, hears the agents and answers the boards; whoever comes is greeted by a thread of its own, so that a
stranger who says nothing holds nobody up.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tinyshard.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.controller.remote_errors import ending
from tinyshard.runtime.forks import abandon_in_child
from tinyshard.runtime.launch import authentication, connect
from tinyshard.runtime.launch.agent import versions
from tinyshard.runtime.launch.slots import ids_text

MOST_GREETED_AT_ONCE = 64
# who is expected soon gets no instructions
SAY_AFTER_S = 2
_LOOK_EVERY_S = 0.1
_MOST_REFUSED_SHOWN = 5


@dataclass(eq=False)
class Agent:
    """A process that a launcher has started on some machine, ready to fork a worker.

    Attributes:
        host: the address from which it came.
        count: how many its launcher has started.
        told: what it says of itself.
        lost: why it is gone; empty while it is there.
        ended: by pool, how its worker ended.
    """

    sock: socket.socket
    host: str
    rank: int
    count: int
    local_rank: int
    told: dict[str, Any]
    lost: str = ""
    ended: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reader = wire.Reader(self.sock)
        self._lock = threading.Lock()

    def tell(self, *words: Any) -> None:
        """Write to it; that it is gone is seen elsewhere."""
        with self._lock, contextlib.suppress(OSError):
            wire.send(self.sock, words)

    @property
    def place(self) -> str:
        """Its machine, for people."""
        name = self.told["name"]
        return self.host if name == self.host else f"{self.host} ({name})"


class Hosts:
    """Listens for agents, and for the lines of the workers that they fork.

    Args:
        address: "HOST:PORT" of this machine.
        secret: what agents and workers must know.

    Attributes:
        agents: those that are there, by rank. Replaced as a whole, so that any thread may read it.
        changed: guards all else; notified when somebody came, or an agent spoke or went.

    Raises:
        RuntimeStateError: nothing can listen there.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self.address = address
        self.agents: dict[int, Agent] = {}
        self.changed = threading.Condition()
        self.refused: collections.deque[str] = collections.deque(maxlen=_MOST_REFUSED_SHOWN)
        self.is_closed = False
        self._secret = secret
        self._remote_workers: Any = None  # the workers of the pool in use
        self._listener = _listen(address)
        self._places = threading.BoundedSemaphore(MOST_GREETED_AT_ONCE)
        self._greeting = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._new: collections.deque[tuple[socket.socket, Any]] = collections.deque()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._take_new)
        abandon_in_child(self)
        self._thread = threading.Thread(target=self._serve, name="tinyshard hosts", daemon=True)
        self._thread.start()

    # ---- from any thread ----------------------------------------------------------------------------------------

    def gather(self, devices: int | None, within_s: float, say: Callable[[str], None]) -> list[Agent]:
        """Wait until enough agents are there. Ctrl-C ends it.

        Args:
            devices: how many; by default as many as the launcher has started.
            within_s: how long to wait.
            say: tells the user what to start, if nobody comes soon.

        Returns:
            The agents, by rank.

        Raises:
            RuntimeStateError: they do not come in time, or the launcher has not started that many.
        """
        began_s = time.monotonic()
        has_said = False
        while True:
            there = self.agents
            started = max((agent.count for agent in there.values()), default=0)
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
            waited_s = time.monotonic() - began_s
            if waited_s > within_s:
                raise self._incomplete(wanted, within_s)
            if waited_s > SAY_AFTER_S and not has_said:
                has_said = True
                say(f"waiting for workers at {self.address}; start them on every machine by\n{command(self.address)}")
            time.sleep(_LOOK_EVERY_S)

    def _incomplete(self, wanted: int, within_s: float) -> RuntimeStateError:
        there = self.agents
        by_place: dict[str, list[int]] = {}
        for rank, agent in there.items():
            by_place.setdefault(agent.place, []).append(rank)
        got = [f"{len(there)} of {wanted}" if wanted else "nobody has come"]
        got += [f"{place}: workers {ids_text(ranks)}" for place, ranks in sorted(by_place.items())]
        if wanted and there:
            got.append(f"missing: {ids_text([r for r in range(wanted) if r not in there])}")
        got += [f"refused: {told}" for told in dict.fromkeys(self.refused)]
        return RuntimeStateError(
            message(
                f"the workers of other machines have not all come to {self.address} within {within_s:.0f} s",
                got="\n".join(got),
                rule="on every machine the same command runs, knows the secret, and reaches this address",
                try_=f"{command(self.address)}\n"
                'or ts.config.update("hosts_timeout_s", seconds) to wait longer, or fewer devices',
            )
        )

    def expect(self, remote_workers: Any) -> None:
        """From now on, whoever comes as a worker is one of these; None if nobody is expected."""
        with self.changed:
            self._remote_workers = remote_workers

    def hear(self, sock: socket.socket, take: Callable[[], None]) -> None:
        """Call `take` in this thread whenever the socket can be read, until it is closed."""
        self._new.append((sock, take))
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")

    def close(self) -> None:
        """Tell the agents that it is over, and let go of all."""
        for agent in self.agents.values():
            agent.tell("leave")
        self.is_closed = True  # only now: from here on the thread may close what the words go through
        with contextlib.suppress(OSError):
            self._wake_out.send(b"x")
        self._thread.join()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: let go of what the two share."""
        self.is_closed = True
        self._close_all()

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self.is_closed:
                for key, _ in self._selector.select():
                    key.data()
        finally:
            self.is_closed = True
            self._close_all()

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._wake_out.close()

    def _take_new(self) -> None:
        self._wake_in.recv(64)
        while self._new:
            sock, take = self._new.popleft()
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                self._selector.register(sock, selectors.EVENT_READ, take)

    def drop(self, sock: socket.socket) -> None:
        """Hear a socket no more, from this thread, and close it."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._selector.unregister(sock)
        sock.close()

    def _accept(self) -> None:
        try:
            sock, peer = self._listener.accept()
        except OSError:  # it has gone again, or there are no descriptors left
            return
        if not self._places.acquire(blocking=False):
            sock.close()
            return
        threading.Thread(target=self._greet, args=(sock, peer[0]), name="tinyshard greeting", daemon=True).start()

    def _hear_agent(self, agent: Agent) -> None:
        messages = agent.reader.read()
        remote_workers = self._remote_workers
        with self.changed:
            for (_, pool, status), _ in messages or ():
                agent.ended[pool] = f"{ending(status)} on {agent.place}"
            if messages is None:
                agent.lost = _why_lost(agent) + (remote_workers.companions(agent) if remote_workers is not None else "")
                self.agents = {rank: other for rank, other in self.agents.items() if other is not agent}
            self.changed.notify_all()
        if messages is None:
            self.drop(agent.sock)
            if remote_workers is not None:
                remote_workers.lose(agent)

    # ---- a thread for each who comes ------------------------------------------------------------------------------

    def _greet(self, sock: socket.socket, host: str) -> None:
        """Let in who proves that it knows the secret; whoever does not has changed nothing but the list of refused."""
        try:
            sock.settimeout(connect.SPEAK_WITHIN_S)
            authentication.answer(sock, self._secret, connect.SPEAK_WITHIN_S)
            hello = wire.receive(sock)
            with self._greeting:
                refusal = self._objection(hello, host)
                wire.send(sock, refusal or connect.WELCOME)
                if refusal:
                    raise authentication.RefusedError(refusal[1])
                connect.tune(sock)
                sock.settimeout(None)
                self._let_in(sock, hello, host)
        except Exception as error:  # whatever a stranger sends ends here
            self.refused.append(f"{host}: {error}")
            sock.close()
        finally:
            self._places.release()

    def _objection(self, hello: tuple[Any, ...], host: str) -> tuple[str, str] | None:
        """What speaks against letting it in: a word that tells whether it may come again, and why."""
        role, *what = hello
        if role != "agent":
            remote_workers = self._remote_workers
            return (
                None
                if remote_workers is not None and remote_workers.expects(role, *what)
                else (connect.REFUSED, "its pool has ended")
            )
        rank, count, _, told = what
        there = self.agents
        for name, own in versions().items():
            if told[name] != own:
                return connect.REFUSED, f"it has {name} {told[name]}, the controller {own}; they must be the same"
        if rank in there:
            return connect.LATER, f"worker {rank} is there already, on {there[rank].place}"
        other = next((agent.count for agent in there.values() if agent.count != count), count)
        if other != count:
            return connect.LATER, f"it is one of {count} workers, those that are there are of {other}"
        return None

    def _let_in(self, sock: socket.socket, hello: tuple[Any, ...], host: str) -> None:
        role, *what = hello
        with self.changed:
            if role == "agent":
                connect.watch(sock)
                agent = Agent(sock, host, *what)
                self.agents = {**self.agents, agent.rank: agent}
                self.hear(sock, lambda: self._hear_agent(agent))
            else:
                self._remote_workers.take(role, sock, *what)
            self.changed.notify_all()


def _why_lost(agent: Agent) -> str:
    if agent.reader.error is None or isinstance(agent.reader.error, ConnectionResetError):
        return f"the process that had started it on {agent.place} ended"
    return f"its machine {agent.place} does not answer any more"


def _listen(address: str) -> socket.socket:
    host, port = connect.parse(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MOST_GREETED_AT_ONCE)
    except OSError as error:
        raise RuntimeStateError(
            message(
                "the controller cannot listen for other machines",
                got=f"{address}: {error}",
                rule="an address of this machine that the other machines can reach, and a free port",
                try_="`ip addr` lists the addresses; another port may be free",
            )
        ) from None


def command(address: str) -> str:
    """What a user types on every machine."""
    return (
        "torchrun --nnodes=MACHINES --nproc-per-node=WORKERS --rdzv-backend=c10d --rdzv-endpoint=ONE_OF_THEM:29500 "
        f"-m tinyshard.worker --controller {address}"
    )


_hosts: Hosts | None = None


def join(address: str) -> Hosts:
    """The one listener of this process, at this address; whoever has joined it stays from pool to pool."""
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
