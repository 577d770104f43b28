"""The one thread that talks to the workers, and the queue before it.

Any thread appends an item to the queue, which is one atomic step, and goes on. The I/O thread hands each item to the
devices that it concerns, in one order for all, and takes their answers. So a KeyboardInterrupt, which strikes the main
thread anywhere, never leaves half a broadcast behind, and a finalizer, which may strike inside any lock, only appends.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyshard.errors import RuntimeStateError, message
from tinyshard.program import Program
from tinyshard.runtime import channel
from tinyshard.runtime.runs import Run, settle
from tinyshard.runtime.zygote import Zygote

RUNS_BETWEEN_REPORTS = 64


@dataclass(eq=False)
class Link:
    """The connection to one worker.

    Attributes:
        output: descriptor on which what the worker prints arrives.
        out: pieces still to be written, each with the number of tensor bytes that it counts for.
        sent: programs that the worker knows.
        ahead: numbers of calls that it has not yet reported as done.
        done: number of the last call that it has finished, as far as it has told.
        lost: why it is gone; empty while it lives.
    """

    device: int
    sock: socket.socket
    output: int
    pid: int
    reader: channel.Reader
    out: collections.deque[tuple[memoryview, int]] = field(default_factory=collections.deque)
    sent: set[int] = field(default_factory=set)
    ahead: collections.deque[int] = field(default_factory=collections.deque)
    since_report: int = 0
    done: int = 0
    lost: str = ""
    line: bytes = b""


@dataclass(eq=False)
class Request:
    """A question to some devices, and their answers so far."""

    number: int
    waiting: set[int]
    answers: dict[int, tuple[Any, bytearray | None]] = field(default_factory=dict)


class Switchboard:
    """Starts the workers and carries messages. All fields that both threads touch are guarded by `changed`.

    Args:
        zygote: forks the workers.
        count: number of devices.
    """

    def __init__(self, zygote: Zygote, count: int) -> None:
        self.changed = threading.Condition()
        self.started = threading.Event()
        self.links: list[Link] = []
        self.broken = ""
        self.closing = False
        self.bytes_ahead = 0
        self.printed: list[tuple[int, str]] = []
        self.requests: dict[int, Request] = {}
        self._zygote = zygote
        self._count = count
        self._queue: collections.deque[tuple[Any, ...]] = collections.deque()
        self._unsettled: collections.deque[Run] = collections.deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="tinyshard I/O", daemon=True)
        self._thread.start()

    # ---- from any thread --------------------------------------------------------------------------------------

    def post(self, *item: Any) -> None:
        """Queue a message: ("put", run, value, blocks), ("run", run, program, inputs, outputs) or (question, request, what)."""
        self._queue.append(item)
        self._wake()

    def release(self, value: int) -> None:
        """Queue that nobody needs a value any more; it rides with the next message."""
        self._queue.append(("free", value))

    def runs_ahead(self, devices: Sequence[int]) -> int:
        """How many calls are queued or unreported, for the device of these that is furthest behind."""
        behind = max((len(self.links[d].ahead) for d in devices), default=0) if self.links else 0
        return behind + len(self._queue)

    def close(self) -> None:
        """End the thread and the workers."""
        self.started.wait()
        self.closing = True
        self._wake()
        self._thread.join()
        for link in self.links:
            self._zygote.kill(link.pid)
            link.sock.close()
            os.close(link.output)
        self._wake_in.close()
        self._wake_out.close()
        with self.changed:
            self.changed.notify_all()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes just as well
            self._wake_out.send(b"x")

    # ---- the I/O thread ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._start_workers()
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"
        finally:
            self.started.set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        for link in self.links:
            self._selector.register(link.sock, selectors.EVENT_READ, link)
            self._selector.register(link.output, selectors.EVENT_READ, link)
        while not self.closing:
            self._distribute()
            for link in self.links:
                self._write(link)
            for key, _ in self._selector.select():
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_in.recv(4096)
                elif key.fileobj == key.data.output:
                    self._read_output(key.data)
                else:
                    self._read(key.data)
        self._selector.close()

    def _start_workers(self) -> None:
        """Fork the workers; they find each other through a file that has no name."""
        path, store = "", -1
        if hasattr(os, "memfd_create"):
            store = os.memfd_create("tinyshard rendezvous")
        else:
            path = os.path.join(tempfile.mkdtemp(prefix="tinyshard-"), "rendezvous")
            store = os.open(os.devnull, os.O_RDWR)
        try:
            for device in range(self._count):
                ours, theirs = socket.socketpair()
                output, write_end = os.pipe()
                request = {"device": device, "count": self._count, "store": path}
                try:
                    pid = self._zygote.fork(request, [theirs.fileno(), write_end, store])
                finally:
                    theirs.close()
                    os.close(write_end)
                for end in (ours.fileno(), output):
                    os.set_blocking(end, False)
                ours.setblocking(False)
                self.links.append(Link(device, ours, output, pid, channel.Reader(ours)))
        finally:
            os.close(store)

    def _distribute(self) -> None:
        """Give every queued item to its devices."""
        freed: list[int] = []
        while self._queue:
            kind, *item = self._queue.popleft()
            if kind == "free":
                freed.append(item[0])
                continue
            if kind in ("run", "put"):
                if freed:  # before the call: what was released before it is not among its inputs
                    self._send(self.links, ("free", tuple(freed)))
                    freed = []
                (self._send_run if kind == "run" else self._send_put)(*item)
            elif kind == "forget":
                self._forget(item[0])
            else:
                request, what = item
                self._send([self.links[d] for d in request.waiting], (kind, request.number, what))
        if freed:
            self._send(self.links, ("free", tuple(freed)))

    def _send_run(self, run: Run, program: Program, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        links = [self.links[d] for d in run.devices]
        new = [link for link in links if program.number not in link.sent]
        if new:
            self._send(new, ("program", program.number, program))
            for link in new:
                link.sent.add(program.number)
        self._count_run(run, links)
        self._send(links, ("run", run.number, program.number, inputs, outputs))
        self._ask_for_reports(links)

    def _forget(self, program: int) -> None:
        links = [link for link in self.links if program in link.sent]
        for link in links:
            link.sent.discard(program)
        self._send(links, ("forget", program))

    def _send_put(self, run: Run, value: int, blocks: dict[int, Any]) -> None:
        links = [self.links[d] for d in blocks]
        self._count_run(run, links)
        for link in links:
            block = blocks[link.device]
            head = ("put", run.number, value, tuple(block.shape), block.dtype)
            self._send([link], head, channel.tensor_bytes(block), block.nbytes)
        self._ask_for_reports(links)

    def _count_run(self, run: Run, links: Sequence[Link]) -> None:
        self._unsettled.append(run)
        for link in links:
            link.ahead.append(run.number)
            link.since_report += 1

    def _ask_for_reports(self, links: Sequence[Link]) -> None:
        """Now and then, so that it is known how far each device has come."""
        for link in links:
            if link.since_report >= RUNS_BETWEEN_REPORTS:
                link.since_report = 0
                self._send([link], ("sync", 0, None))

    def _send(
        self, links: Sequence[Link], head: tuple[Any, ...], payload: memoryview | None = None, counted: int = 0
    ) -> None:
        pieces = channel.frame(head, payload)
        for link in links:
            if link.lost:
                self.bytes_ahead -= counted
                continue
            link.out.extend((piece, 0) for piece in pieces[:-1])
            link.out.append((pieces[-1], counted))

    def _write(self, link: Link) -> None:
        try:
            while link.out:
                piece, counted = link.out[0]
                sent = link.sock.send(piece)
                if sent < piece.nbytes:
                    link.out[0] = (piece[sent:], counted)
                else:
                    link.out.popleft()
                    if counted:
                        with self.changed:
                            self.bytes_ahead -= counted
                            self.changed.notify_all()
        except BlockingIOError:
            pass
        except OSError:
            self._lose(link)
        self._watch(link)

    def _watch(self, link: Link) -> None:
        if not link.lost:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.out else 0)
            if self._selector.get_key(link.sock).events != events:
                self._selector.modify(link.sock, events, link)

    def _read(self, link: Link) -> None:
        messages = link.reader.read() if not link.lost else []
        if messages is None:
            self._lose(link)
            return
        with self.changed:
            for head, payload in messages:
                self._take(link, head, payload)
            if messages:
                self.changed.notify_all()

    def _take(self, link: Link, head: tuple[Any, ...], payload: bytearray | None) -> None:
        if head[0] == "failed":
            _, number, failure = head
            for run in self._unsettled:
                if run.number == number:
                    run.failures[link.device] = (failure, run.where)
        elif head[0] == "reply":
            _, number, done, answer = head
            link.done = max(link.done, done)
            while link.ahead and link.ahead[0] <= done:
                link.ahead.popleft()
            self._settle()
            request = self.requests.get(number)
            if request is not None and link.device in request.waiting:
                request.answers[link.device] = (answer, payload)
                request.waiting.discard(link.device)

    def _settle(self) -> None:
        while self._unsettled:
            run = self._unsettled[0]
            if any(self.links[d].ahead and self.links[d].ahead[0] <= run.number for d in run.devices):
                return
            settle(self._unsettled.popleft())

    def _read_output(self, link: Link) -> None:
        try:
            got = os.read(link.output, 65536)
        except (BlockingIOError, OSError):
            return
        if not got:
            self._selector.unregister(link.output)
        *lines, link.line = (link.line + got).split(b"\n")
        with self.changed:
            self.printed.extend((link.device, line.decode(errors="replace")) for line in lines)

    def _lose(self, link: Link) -> None:
        """The worker is gone: say so to all who wait for it."""
        if link.lost or self.closing:
            return
        self._selector.unregister(link.sock)
        self._read_output(link)
        lost = _ending(self._zygote.wait(link.pid))
        with self.changed:
            link.lost = lost
            self.bytes_ahead -= sum(counted for _, counted in link.out)
            link.out.clear()
            self.changed.notify_all()


def _ending(status: int | None) -> str:
    if status is None:
        return "its channel was closed"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"killed by signal {number} ({signal.Signals(number).name})"
    return f"its process ended with exit code {os.WEXITSTATUS(status)}"


def print_output(board: Switchboard, names: Sequence[Any]) -> None:
    """Print in device order what workers wrote; from the asking thread, so that it lands in the asking cell."""
    with board.changed:
        lines, board.printed = board.printed, []
    for device, text in sorted(lines, key=lambda line: line[0]):
        print(f"[{names[device]}] {text}", file=sys.stderr)


def check_open(board: Switchboard) -> None:
    """Raise RuntimeStateError if the pool is closed or did not start."""
    if board.closing or board.broken:
        raise RuntimeStateError(
            message(
                "the pool did not start" if board.broken else "the pool that held this value has been shut down",
                got=board.broken,
                rule="values live in the workers and end with them",
                try_="ts.init() starts a fresh pool; make the arrays again there",
            )
        )
