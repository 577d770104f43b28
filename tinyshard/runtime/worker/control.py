"""What a device's loop shares with its control thread: how far the loop is, and which calls are not to be run.

The channel is read in order, by a loop that may be busy for long or wait in a collective. What must not wait for it
comes by a second socket, the control line:

    controller                     device
    ("freeze",)                    starts no further call, and answers ("frozen", the last call that it started)
    ("cancel", upto, skip, by)     goes on: calls up to `upto` are cancelled, and those in `skip` are not even started
    ("look",)                      answers ("seen", calls finished, the collective it waits in, processor time in s)
    ("lost", device, how)          another device is gone: no collective can end any more
    end of the stream              the controller is gone: the process ends, whatever it does
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tinyshard.core.collectives import group_positions
from tinyshard.runtime import wire
from tinyshard.runtime.failure import Failure, gone, interrupted
from tinyshard.runtime.shm.barrier import PeerLostError
from tinyshard.runtime.wire import Current
from tinyshard.runtime.worker.executor import ReadyProgram, ReadyStep

# a peer's end breaks the connection at once; how it ended is the controller's news, and comes a moment later
NEWS_WITHIN_S = 10


class CurrentCollective(NamedTuple):
    """A collective that the loop is in.

    Attributes:
        number: of the call.
        ready: its program.
        step: the collective.
    """

    number: int
    ready: ReadyProgram
    step: ReadyStep

    def told(self, device: int) -> Current:
        """As plain data."""
        program = self.ready.program
        assert self.step.collective is not None
        name, named, params = self.step.collective
        place = self.step.results[0]
        if name == "transfer":
            return self.number, place, name, program.devices
        positions = group_positions(program.axes, named, program.devices.index(device), params.get("groups"))
        return self.number, place, name, tuple(program.devices[p] for p in positions)


class CallControl:
    """Every call passes here before it starts. Made by the thread whose loop it is.

    Attributes:
        done: the last call that is over.
        current: what `CurrentCollective` says of the collective that the loop is in, if it is in one.
        cancelled_upto: calls up to this one are cancelled: what they still exchange are zeros.
        lost: what is told of the device that is gone, if one is.
        processor_s: tells the processor time that the loop has used.
    """

    def __init__(self) -> None:
        self.done = 0
        self.current: tuple[int, ReadyProgram, ReadyStep] | None = None
        self.cancelled_upto = 0
        self.lost: Failure | None = None
        self.processor_s = _own_clock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._started = 0
        self._is_frozen = False
        self._skip: set[int] = set()
        self._by = ""

    # ---- the loop -----------------------------------------------------------------------------------------------

    def enter(self, number: int) -> bool:
        """Wait while calls are held, then say whether this one is to start."""
        self._started = number  # first: who freezes from here on counts it as started, and so does this thread
        if not self._is_frozen and not self._skip:
            return True
        with self._changed:
            while self._is_frozen:
                self._changed.wait()
            if number not in self._skip:
                return True
            self._skip.discard(number)
            return False

    def cancelled(self, device: int) -> Failure:
        """What is told of a call that was cancelled."""
        return interrupted(device, self._by)

    def why_broken(self, error: Exception) -> Failure | None:
        """What is told of a collective that raised, if a lost device is the reason."""
        if self.lost is None and not isinstance(error, PeerLostError) and "gloo" not in str(error):
            return None
        with self._changed:
            self._changed.wait_for(lambda: self.lost is not None, NEWS_WITHIN_S)
        return self.lost

    # ---- the control thread -------------------------------------------------------------------------------------

    def freeze(self) -> int:
        """Let no further call start; the number of the last one that has."""
        with self._changed:
            self._is_frozen = True
            return self._started

    def cancel(self, upto: int, skip: frozenset[int], by: str) -> None:
        """Cancel calls, and let the others pass."""
        with self._changed:
            self.cancelled_upto, self._by = upto, by
            self._skip |= skip
            self._is_frozen = False
            self._changed.notify_all()

    def lose(self, failure: Failure) -> None:
        """A device is gone."""
        with self._changed:
            self.lost = failure
            self._changed.notify_all()


def _own_clock() -> Callable[[], float]:
    """The processor time of this thread, for any thread to ask; that of the process where the system cannot tell.

    gloo's thread looks around a hundred times a second, which takes one or two hundredths of a slow processor.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def listen(sock: socket.socket, device: int, call_control: CallControl, abort: Callable[[], None]) -> None:
    """Do what comes on the control line, until the controller is gone; then end this process, whatever it does.

    Args:
        sock: the line.
        device: this device's id.
        call_control: shared with the loop.
        abort: ends every exchange with other devices.
    """
    reader = wire.Reader(sock)
    while (messages := reader.read()) is not None:
        for head, _ in messages:
            if head[0] == "freeze":
                wire.send(sock, ("frozen", call_control.freeze()))
            elif head[0] == "cancel":
                call_control.cancel(*head[1:])
            elif head[0] == "look":
                current = call_control.current
                told = CurrentCollective(*current).told(device) if current is not None else None
                wire.send(sock, ("seen", call_control.done, told, call_control.processor_s()))
            elif head[0] == "lost":
                call_control.lose(gone(*head[1:]))
                abort()
    os._exit(0)
