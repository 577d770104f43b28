"""The connection to one worker: bytes to write, messages received, printed lines, and how far the worker is.

A Link is changed with the dispatcher's lock held; `done`, `lost`, `channel.nbytes`, `lent_nbytes` and `sight` are also
read without it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tinyshard.runtime import wire
from tinyshard.runtime.controller.items import Request
from tinyshard.runtime.controller.watchdog import FORGET_S, Sight
from tinyshard.runtime.forks import abandon_in_child

_PIECES_AT_ONCE = 64
_OUTPUT_NBYTES = 1 << 16
# over sockets the controller asks a device how far it is after so many calls
_RUNS_BETWEEN_REPORTS = 64


class Stream:
    """One end of a socket: neither reading nor writing blocks, and what is still to be written is kept.

    Attributes:
        nbytes: size of what is still to be written.
        is_open: the other end has not closed it.
        is_watched: the I/O thread waits until the socket is writable.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.nbytes = 0
        self.is_open = True
        self.is_watched = False
        self._reader = wire.Reader(sock)
        self._out: collections.deque[memoryview] = collections.deque()

    def queue(self, pieces: list[memoryview]) -> None:
        """Queue a message."""
        self._out.extend(pieces)
        self.nbytes += sum(piece.nbytes for piece in pieces)

    def write(self) -> None:
        """Write as much as the socket takes, many messages at a time."""
        while self._out:
            try:
                sent = self.sock.sendmsg(itertools.islice(self._out, _PIECES_AT_ONCE))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the worker is lost; its last messages are read before the end of the stream
                self.drop()
                return
            self.nbytes -= sent
            while sent:
                piece = self._out.popleft()
                if sent < piece.nbytes:
                    self._out.appendleft(piece[sent:])
                sent = max(0, sent - piece.nbytes)

    def drop(self) -> None:
        """Drop what is still to be written."""
        self._out.clear()
        self.nbytes = 0

    def read(self) -> list[wire.Message] | None:
        """The messages received; None at the end."""
        return self._reader.read()

    @property
    def broken(self) -> OSError | None:
        """The error by which a network has lost the connection; None where the other end has closed it."""
        error = self._reader.error
        return None if isinstance(error, ConnectionError) else error


@dataclass(eq=False)
class Link:
    """The connection to one worker.

    Attributes:
        channel: carries calls and answers.
        control: the control line.
        output: descriptor of the pipe with what the worker prints; -1 after its end.
        asked: requests that the worker has not answered, by number.
        done: number of the last call that the worker is known to have finished.
        failures: how many failures have been received from the worker.
        is_up: the worker is connected to the other workers and takes calls.
        lost: how the worker ended; empty while it lives.
        sight: what the controller last saw of the worker, for the watchdog.
    """

    device: int
    channel: Stream
    control: Stream
    output: int
    pid: int
    asked: dict[int, Request] = field(default_factory=dict)
    since_report: int = 0
    done: int = 0
    failures: int = 0
    is_up: bool = False
    lost: str = ""
    sight: Sight | None = None

    def __post_init__(self) -> None:
        os.set_blocking(self.output, False)
        self._line = b""
        self._lent: collections.deque[tuple[int, int]] = collections.deque()  # calls, and the bytes lent up to each
        self._ever_lent_nbytes = 0
        self._taken_nbytes = 0
        abandon_in_child(self)

    @property
    def broken(self) -> OSError | None:
        """The error by which a network has lost a connection to the worker, if one has."""
        return self.channel.broken or self.control.broken

    @property
    def lent_nbytes(self) -> int:
        """Size of the shared blocks that are lent to the worker by unfinished calls."""
        taken_nbytes = self._taken_nbytes
        for number, nbytes in list(self._lent):  # one atomic step
            if number > self.done:
                break
            taken_nbytes = nbytes
        return self._ever_lent_nbytes - taken_nbytes

    def queue(self, pieces: list[memoryview]) -> None:
        """Queue a message for the channel."""
        if not self.lost:
            self.channel.queue(pieces)

    def ask_now_and_then(self) -> None:
        """After a call that was written to the socket: now and then ask the worker how far it is."""
        self.since_report += 1
        if self.since_report >= _RUNS_BETWEEN_REPORTS:
            self.since_report = 0
            self.queue(wire.frame(("sync", 0, None)))

    def send_control(self, *head: Any) -> None:
        """Write a message to the control line; what it does not take now is written later."""
        if not self.lost:
            self.control.queue(wire.frame(head))
            self.control.write()

    def look(self, now_s: float) -> None:
        """Ask the worker on the control line how far it is, unless an answer is still due."""
        if self.sight is None or (now_s - self.sight.seen_s > FORGET_S and not self.sight.is_silent):
            self.sight = Sight(self.device, now_s, now_s, is_silent=False)
        if not self.sight.is_silent:
            self.sight = replace(self.sight, is_silent=True)
            self.send_control("look")

    def fail_asked(self) -> None:
        """Wake the threads that wait for answers of this worker: none will come."""
        while self.asked:
            self.asked.popitem()[1].over.open()

    def lend(self, number: int, nbytes: int) -> None:
        """Note that a call lends the worker a shared block. Idempotent."""
        while self._lent and self._lent[0][0] <= self.done:
            self._taken_nbytes = self._lent[0][1]
            self._lent.popleft()
        if not self._lent or self._lent[-1][0] != number:
            self._ever_lent_nbytes += nbytes
            self._lent.append((number, self._ever_lent_nbytes))

    def read_lines(self, at_end: Callable[[], object] = lambda: None) -> list[str]:
        """The complete lines received on the output pipe; `at_end` is called before its descriptor is closed."""
        while self.output >= 0:
            try:
                received = os.read(self.output, _OUTPUT_NBYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # the output comes over a network, and the connection broke
                received = b""
            self._line += received or (b"\n" if self._line else b"")  # the end of the pipe ends a line
            if not received:
                at_end()
                self._close_output()
        *lines, self._line = self._line.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _close_output(self) -> None:
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close this end."""
        self.close()

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self.channel.sock.close()
            self.control.sock.close()
        self._close_output()


class Printed:
    """The lines of all workers, and their pipes. One thread at a time may use it."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self._pipes = select.poll()

    def take(self) -> list[tuple[int, str]]:
        """The lines received since the last call, each with its device, in device order."""
        lines, self._lines = self._lines, []
        return sorted(lines, key=lambda line: line[0])

    def is_all_read(self) -> bool:
        """Whether the pipes are empty."""
        return not self._pipes.poll(0)

    def watch(self, link: Link) -> None:
        """Add this worker's pipe to those that `is_all_read` polls."""
        self._pipes.register(link.output, select.POLLIN | select.POLLHUP)

    def read(self, link: Link, at_end: Callable[[int], object]) -> None:
        """Read what a worker's pipe has; `at_end` is called with the pipe at its end, before it is closed."""
        pipe = link.output
        if pipe < 0:
            return

        def end() -> None:
            at_end(pipe)
            self._pipes.unregister(pipe)

        self._lines.extend((link.device, line) for line in link.read_lines(end))
