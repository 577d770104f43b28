"""The connections to the workers: bytes to write, messages received, printed lines, and each worker's progress.

A Link is changed by the I/O thread, or with the dispatcher's lock held; `done`, `lost` and `sight` are also read
without it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinyshard.runtime import wire
from tinyshard.runtime.controller.items import Request
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.forks import abandon_in_child

# an older sight of a device belongs to another wait; a device that answers after such a silence was stopped and has
# resumed
FORGET_S = 2
_PIECES_AT_ONCE = 64
_OUTPUT_NBYTES = 1 << 16


class Stream:
    """One end of a socket: reads and writes do not block.

    Attributes:
        unwritten: the bytes that are still to be written, as pieces.
        reader: parses what is received.
        is_open: the other end has not closed it.
        is_watched: the I/O thread waits until the socket is writable.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.unwritten: collections.deque[memoryview] = collections.deque()
        self.reader = wire.Reader(sock)
        self.is_open = True
        self.is_watched = False

    def write(self) -> None:
        """Write as much as the socket takes, many messages at a time."""
        while self.unwritten:
            try:
                sent = self.sock.sendmsg(itertools.islice(self.unwritten, _PIECES_AT_ONCE))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the worker is lost; its last messages are read before the end of the stream
                self.unwritten.clear()
                return
            while sent:
                piece = self.unwritten.popleft()
                if sent < piece.nbytes:
                    self.unwritten.appendleft(piece[sent:])
                sent = max(0, sent - piece.nbytes)


@dataclass(frozen=True, slots=True)
class Sight:
    """The controller's last information about a device.

    Attributes:
        device: its id.
        moved_s: when it was last seen to make progress.
        seen_s: when it last answered.
        is_silent: it has not answered since it was last asked.
        done: the last call that it has finished.
        current: the collective that it is in, or None: (call, place in it, name, ids of its devices).
        processor_s: processor time that it has used.
    """

    device: int
    moved_s: float
    seen_s: float
    is_silent: bool = True
    done: int = 0
    current: wire.Current | None = None
    processor_s: float = 0.0


@dataclass(eq=False)
class Link:
    """The connection to one worker.

    Attributes:
        channel: carries calls and answers.
        control: the control line.
        output: descriptor of the pipe with the worker's printed output.
        asked: requests that the worker has not answered, by number.
        done: number of the last call that the worker is known to have finished.
        is_up: the worker is connected to the other workers and takes calls.
        lost: how the worker ended; empty while it is alive.
        sight: the controller's last information about the worker, for the watchdog.
    """

    device: int
    channel: Stream
    control: Stream
    output: int
    pid: int
    asked: dict[int, Request] = field(default_factory=dict)
    done: int = 0
    is_up: bool = False
    lost: str = ""
    sight: Sight | None = None

    def __post_init__(self) -> None:
        os.set_blocking(self.output, False)
        self._line = b""
        abandon_in_child(self)

    @property
    def broken(self) -> OSError | None:
        """The error by which a network has lost a connection to the worker; None where the worker has closed it."""
        errors = (self.channel.reader.error, self.control.reader.error)
        return next((error for error in errors if error and not isinstance(error, ConnectionError)), None)

    def queue(self, pieces: list[memoryview]) -> None:
        """Queue a message for the channel."""
        if not self.lost:
            self.channel.unwritten.extend(pieces)

    def send_control(self, *head: Any) -> None:
        """Write a message to the control line; bytes that it does not accept now are written later."""
        if not self.lost:
            self.control.unwritten.extend(wire.frame(head))
            self.control.write()

    def look(self, now_s: float) -> None:
        """Ask the worker on the control line for its progress, unless an answer is pending."""
        if self.sight is None or (now_s - self.sight.seen_s > FORGET_S and not self.sight.is_silent):
            self.sight = Sight(self.device, now_s, now_s, is_silent=False)
        if not self.sight.is_silent:
            self.sight = replace(self.sight, is_silent=True)
            self.send_control("look")

    def fail_asked(self) -> None:
        """Wake the threads that wait for answers of this worker, which will not come."""
        while self.asked:
            self.asked.popitem()[1].over.open()

    def read_lines(self) -> tuple[list[str], bool]:
        """The complete lines received on the output pipe, and whether that was its end."""
        received = b"x"
        while received:
            try:
                received = os.read(self.output, _OUTPUT_NBYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # the output comes over a network, and the connection broke
                received = b""
            self._line += received or (b"\n" if self._line else b"")  # the end of the pipe ends a line
        *lines, self._line = self._line.split(b"\n")
        return [line.decode(errors="replace") for line in lines], not received

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self.channel.sock.close()
            self.control.sock.close()
        output, self.output = self.output, -1  # first, as `forks.Shared` says
        if output >= 0:
            os.close(output)

    abandon = close  # in a process that user code has forked from this one


class Calls:
    """The state of the devices that the controller's threads share. Once all run it is changed with `lock` held.

    Attributes:
        lock: guards all of this; reentrant.
        links: the links to all devices that have been started.
        unsettled: the calls that were sent and are not known to be finished, the oldest first.
        has_lost: a device is lost.
        incoming: polls the sockets and pipes by which devices send failures and answers, and print.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.links: list[Link] = []
        self.unsettled: collections.deque[Run] = collections.deque()
        self.has_lost = False
        self.incoming = select.poll()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def record_progress(self, finished: Sequence[int]) -> bool:
        """Note the finished calls of each device whose failures have all been received.

        Returns:
            Whether everything that devices have sent and printed has been received.
        """
        with self.lock:  # the I/O thread holds it from reading a message until it has handled it
            unread = dict(self.incoming.poll(0))  # by descriptor; made in C, as each wait needs it
            for link, number in zip(self.links, finished, strict=True):
                if number > link.done and not (unread and link.channel.sock.fileno() in unread):
                    link.done = number
            self.settle()
            return not unread

    def settle(self) -> None:
        """Settle the calls that all their devices have finished, in order."""
        with self.lock:
            while self.unsettled:
                run = self.unsettled[0]
                for device in run.devices:
                    link = self.links[device]
                    if link.done < run.number and not link.lost:
                        return
                settle(run)
                self.unsettled.popleft()
