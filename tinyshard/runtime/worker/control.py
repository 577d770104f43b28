"""The control thread of a device, and its shared state with the loop: the loop's progress, and the calls to skip.

The loop reads calls in order, and may compute for long or wait in a collective. Messages that must not wait for the
loop use a second socket, the control line:

    controller sends               device
    ("freeze", upto)               starts no further call, and answers ("frozen", the last call that it started, upto)
    ("cancel", upto, skip, by)     resumes: calls up to `upto` are cancelled, and those in `skip` are not started
    ("look",)                      answers ("seen", calls finished, the collective it waits in, processor time in s)
    ("lost", device, how)          another device is lost: every collective fails from now on
    end of the stream              the controller has ended: the process ends at once
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from tinyshard.runtime import wire
from tinyshard.runtime.collectives.base import Communicator, Moment, PeerLostError, Request
from tinyshard.runtime.failure import Failure

# a peer's death breaks the connection at once; the controller sends how the peer ended a moment later
LOST_WITHIN_S = 10


class CallControl:
    """Which calls may start, and the loop's progress. The loop's thread makes it.

    Attributes:
        done: the last call that the loop has finished.
        started: the last call that it has come to: it may be frozen before it, or skip it.
        current: while the loop is in a collective, the exchange and the collective; else None.
        cancelled_upto: calls up to this one are cancelled: in their collectives the device sends zeros.
        cancelled_by: the line that was interrupted, as text.
        lost: the failure of a lost device, if there is one.
        processor_s: returns the processor time that the loop has used.
    """

    def __init__(self) -> None:
        self.done = 0
        self.current: tuple[Moment, Request] | None = None
        self.cancelled_upto = 0
        self.cancelled_by = ""
        self.lost: Failure | None = None
        self.processor_s = _own_clock()
        self._changed = threading.Condition()
        self.started = 0
        self._is_frozen = False
        self._skip: set[int] = set()

    # ---- the loop -----------------------------------------------------------------------------------------------

    def enter(self, number: int) -> bool:
        """Block while the device is frozen; whether this call should start."""
        self.started = number  # before the check: a freeze after this line counts the call as started
        if not self._is_frozen and not self._skip:
            return True
        with self._changed:
            while self._is_frozen:
                self._changed.wait()
            if number not in self._skip:
                return True
            self._skip.discard(number)
            return False

    def why_broken(self, error: Exception) -> Failure | None:
        """The failure of a lost device, if that is why a collective raised; blocks until the controller has sent it."""
        if self.lost is None and not isinstance(error, PeerLostError):
            return None
        with self._changed:
            self._changed.wait_for(lambda: self.lost is not None, LOST_WITHIN_S)
        return self.lost

    # ---- the control thread -------------------------------------------------------------------------------------

    def freeze(self) -> int:
        """Block all further calls. Returns the number of the last call that has started."""
        with self._changed:
            self._is_frozen = True
            return self.started

    def cancel(self, upto: int, skip: frozenset[int], by: str) -> None:
        """Cancel calls up to `upto`, skip those in `skip`, and let calls start again."""
        with self._changed:
            self.cancelled_by, self.cancelled_upto = by, upto
            self._skip |= skip
            self._is_frozen = False
            self._changed.notify_all()

    def lose(self, failure: Failure) -> None:
        """Note that a device is lost."""
        with self._changed:
            self.lost = failure
            self._changed.notify_all()


def _own_clock() -> Callable[[], float]:
    """A function that returns the calling thread's processor time, or the process's if the system lacks that clock.

    (gloo's thread polls a hundred times a second, which takes one or two hundredths of a slow processor.)
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def listen(sock: socket.socket, device: int, call_control: CallControl, communicators: Sequence[Communicator]) -> None:
    """The control thread: handle the control line until the controller has ended; then end this process at once."""
    reader = wire.Reader(sock)
    with contextlib.suppress(OSError):  # the controller ended before it read an answer
        while (messages := reader.read()) is not None:
            for head, _ in messages:
                if head[0] == "freeze":
                    wire.send(sock, ("frozen", call_control.freeze(), head[1]))
                elif head[0] == "cancel":
                    call_control.cancel(*head[1:])
                elif head[0] == "look":
                    seen = None
                    if (current := call_control.current) is not None:
                        moment, request = current
                        places = request.positions(request.devices.index(device))
                        seen = *moment, request.name, tuple(request.devices[p] for p in places)
                    wire.send(sock, ("seen", call_control.done, seen, call_control.processor_s()))
                elif head[0] == "lost":
                    call_control.lose(Failure(head[1], lost=head[2]))
                    for communicator in communicators:
                        communicator.abort()
    os._exit(0)
