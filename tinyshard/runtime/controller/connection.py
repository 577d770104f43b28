"""The connection to one worker: what is still to be written, what has come, and how far the worker is.

What several threads use of a Link is changed with the dispatcher's lock held; `done`, `lost`, `nbytes`, `lent_nbytes`
and `sight` are also read without it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tinyshard.runtime import wire
from tinyshard.runtime.controller.latch import Latch
from tinyshard.runtime.controller.watchdog import FORGET_S, Sight
from tinyshard.runtime.forks import abandon_in_child

_PIECES_AT_ONCE = 64
_OUTPUT_NBYTES = 1 << 16
# over sockets a device is asked how far it is after so many calls
_RUNS_BETWEEN_REPORTS = 64


@dataclass(eq=False)
class Request:
    """A question to some devices, and their answers so far.

    Attributes:
        waiting: those that have not answered.
        number: its place in the order of all calls; 0 until the dispatcher gives it one.
        over: opens when all have answered, or one of them cannot.
    """

    waiting: set[int]
    number: int = 0
    answers: dict[int, tuple[Any, bytearray | None]] = field(default_factory=dict)
    over: Latch = field(default_factory=Latch)


@dataclass(eq=False)
class Link:
    """The connection to one worker.

    Attributes:
        control: the control line.
        output: descriptor on which what the worker prints arrives; -1 after its end.
        nbytes: size of what is still to be written to the socket.
        asked: questions that it has not yet answered, by number.
        done: number of the last call that it has finished, as far as it has told.
        failures: how many failures have come from it.
        is_up: it has met the other workers and takes calls.
        is_watched: the I/O thread waits for room in its socket.
        lost: why it is gone; empty while it lives.
        sight: what was last seen of it, for whoever waits.
        words: what is still to be written to the control line.
        is_control_watched: the I/O thread waits for room in it.
    """

    device: int
    sock: socket.socket
    control: socket.socket
    output: int
    pid: int
    nbytes: int = 0
    asked: dict[int, Request] = field(default_factory=dict)
    since_report: int = 0
    done: int = 0
    failures: int = 0
    is_up: bool = False
    is_watched: bool = False
    lost: str = ""
    sight: Sight | None = None
    words: bytearray = field(default_factory=bytearray)
    is_control_watched: bool = False

    def __post_init__(self) -> None:
        self.sock.setblocking(False)
        self.control.setblocking(False)
        self._control_reader = wire.Reader(self.control)
        os.set_blocking(self.output, False)
        self._reader = wire.Reader(self.sock)
        self._out: collections.deque[memoryview] = collections.deque()
        self._line = b""
        self._lent: collections.deque[tuple[int, int]] = collections.deque()  # calls, and how much was lent up to each
        self._told_nbytes = 0
        self._taken_nbytes = 0
        abandon_in_child(self)

    @property
    def has_output(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._out)

    @property
    def lent_nbytes(self) -> int:
        """Size of the shared blocks that it has been told of and may not have taken yet."""
        taken_nbytes = self._taken_nbytes
        for number, nbytes in list(self._lent):  # made in one step
            if number > self.done:
                break
            taken_nbytes = nbytes
        return self._told_nbytes - taken_nbytes

    def queue(self, pieces: list[memoryview]) -> None:
        """Append a message to what is to be written to the socket."""
        if self.lost:
            return
        self._out.extend(pieces)
        self.nbytes += sum(piece.nbytes for piece in pieces)

    def ask_now_and_then(self) -> None:
        """After a call that was written to the socket: ask how far it is, if it was not asked for some time."""
        self.since_report += 1
        if self.since_report >= _RUNS_BETWEEN_REPORTS:
            self.since_report = 0
            self.queue(wire.frame(("sync", 0, None)))

    def write(self) -> None:
        """Write what the socket takes, many messages at a time."""
        while self._out:
            try:
                sent = self.sock.sendmsg(itertools.islice(self._out, _PIECES_AT_ONCE))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the worker is gone; what it has still said is read before the end is seen
                self.drop()
                return
            self.nbytes -= sent
            while sent:
                piece = self._out.popleft()
                if sent < piece.nbytes:
                    self._out.appendleft(piece[sent:])
                sent = max(0, sent - piece.nbytes)

    def tell(self, *words: Any) -> None:
        """Write to the control line; what it has no room for now stays in `words` until `write_words`."""
        if not self.lost:
            self.words += b"".join(wire.frame(words))
            self.write_words()

    def write_words(self) -> None:
        """Write what the control line takes of what is still to be said there."""
        try:
            while self.words:
                del self.words[: self.control.send(self.words)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the worker is gone: the channel says so
            self.words.clear()

    def read_control(self) -> list[wire.Message] | None:
        """What has come on the control line; None at the end."""
        return self._control_reader.read()

    def look(self, now_s: float) -> None:
        """Ask how far it is, unless it has not answered yet."""
        if self.sight is None or (now_s - self.sight.seen_s > FORGET_S and not self.sight.is_silent):
            self.sight = Sight(self.device, now_s, now_s, is_silent=False)
        if not self.sight.is_silent:
            self.sight = replace(self.sight, is_silent=True)
            self.tell("look")

    def fail_asked(self) -> None:
        """Let go all who wait for an answer of it: there will be none."""
        while self.asked:
            self.asked.popitem()[1].over.open()

    def drop(self) -> None:
        """Forget what is still to be written."""
        self._out.clear()
        self.nbytes = 0

    def read(self) -> list[wire.Message] | None:
        """Messages that have come; None at the end."""
        return self._reader.read()

    def lend(self, number: int, nbytes: int) -> None:
        """Note that a call hands it a shared block. To do it again changes nothing."""
        while self._lent and self._lent[0][0] <= self.done:
            self._taken_nbytes = self._lent[0][1]
            self._lent.popleft()
        if not self._lent or self._lent[-1][0] != number:
            self._told_nbytes += nbytes
            self._lent.append((number, self._told_nbytes))

    def read_lines(self, at_end: Callable[[], object] = lambda: None) -> list[str]:
        """Whole lines that the worker has printed.

        Args:
            at_end: called before the descriptor is closed, if there will be no more.
        """
        while self.output >= 0:
            try:
                received = os.read(self.output, _OUTPUT_NBYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # it comes over a network, and the connection broke
                received = b""
            self._line += received or (b"\n" if self._line else b"")  # the end also ends a line
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
            self.sock.close()
            self.control.close()
        self._close_output()
