"""From the threads that call to the devices: one queue, one order, and one way out for every message.

Any thread posts an item and hands out what is queued, under one lock, in the order in which the items got their
numbers. What cannot go out at once (the workers are still starting, the log is full, a socket takes no more) stays in
the queue, and the I/O thread (`receiver`) goes on with it.

A KeyboardInterrupt may strike the main thread between any two steps. So a message is prepared first, which changes
nothing that a device sees, and is then written down as the `Delivery` in hand; every step after that may be repeated,
and the next thread that hands something out repeats them all.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tinyshard.core.errors import RuntimeStateError, TinyshardError, message
from tinyshard.runtime.controller.back_pressure import BackPressure
from tinyshard.runtime.controller.calls import Calls
from tinyshard.runtime.controller.cancellation import Interrupts
from tinyshard.runtime.controller.connection import Request
from tinyshard.runtime.controller.delivery import Deliveries, Delivery
from tinyshard.runtime.controller.latch import Latch
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.controller.printed import Printed
from tinyshard.runtime.controller.refs import Buffers
from tinyshard.runtime.controller.remote_errors import unusable
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.shm.completion import Completions, Seen
from tinyshard.runtime.shm.log import CallLog

# with so many calls out, it is looked how far the devices are
RUNS_BETWEEN_LOOKS = 64
# to wake a device costs the controller more than a call, and on a busy core the device takes that from it at once. So
# of a burst of calls the first wakes the devices, and then the I/O thread, or a call, after so long; and who waits
RING_EVERY_S = 1e-3
# what the I/O thread does by itself: Ctrl-C must not strike there, or it concerns no device
_FOR_RECEIVER = ("cancel", "look")


class Dispatcher:
    """Hands out messages in one order for all devices. What several threads touch is guarded by `lock`.

    Args:
        buffers: tells which values nobody holds any more.
        completions: how far devices that share memory with this process are.
        log: by which they get their messages.
        lend: called with a block of shared memory and a device, before that is told of the block.

    Attributes:
        calls: the links to the devices, what was handed out, and the lock that guards it.
        started: opens when all workers have been started, or none will be.
        ended: opens when the I/O thread has ended.
        broken: why nothing can be called any more.
        closing: the pool is being shut down.
        printed: what the workers have printed.
        receiving: the I/O thread.
        interrupts: what Ctrl-C leaves out.
        back_pressure: holds back threads that call faster than devices compute.
        ring_by_s: until then the I/O thread is to wake devices that sleep.
        woken: becomes readable when the I/O thread is to look at the queue.
    """

    def __init__(
        self,
        buffers: Buffers,
        completions: Completions | None = None,
        log: CallLog | None = None,
        lend: Callable[[Any, int], object] = lambda block, device: None,
    ) -> None:
        self.calls = Calls()
        self.links = self.calls.links
        self.started = Latch()
        self.ended = Latch()
        self.broken: TinyshardError | None = None
        self.closing = False
        self.printed = Printed()
        self.receiving: threading.Thread | None = None
        self.interrupts = Interrupts(self.calls)
        self._completions = completions
        self._numbers = itertools.count(1)
        self._posted: collections.deque[tuple[Any, ...]] = collections.deque()  # without a number yet
        self._queue: collections.deque[tuple[Any, ...]] = collections.deque()
        self._deliveries = Deliveries(self.calls, buffers, log, lend)
        self._delivery: Delivery | None = None
        self._has_log = log is not None
        self._rung_s = float("-inf")
        self.ring_by_s = float("inf")
        self._buffers = buffers
        self.back_pressure = BackPressure(self.calls, self._queue, self.look_at_progress, self.wake)
        with held_off():
            self.woken, self._wakes = socket.socketpair()
            abandon_in_child(self)
        self.woken.setblocking(False)
        self._wakes.setblocking(False)

    # ---- from any thread --------------------------------------------------------------------------------------

    def post(self, kind: str, nbytes: int, *item: Any) -> None:
        """Give a message its number and its place in the queue, and hand out what is queued.

        Args:
            kind: "put" (run, value, blocks, each with its place in shared memory or None), "run" (run, program, inputs,
                outputs), "forget" (program), "cancel" (the interrupted line), "look", or a question (request, what,
                and a tensor into which the devices write with its block, or None).
            nbytes: size of the tensors in it.
        """
        self._posted.append((kind, nbytes, *item))  # one step, in C
        self.advance()

    def advance(self) -> None:
        """Hand out what is queued, as far as that can be done now."""
        # a finalizer or a signal's handler may run in the middle of this thread's own call, which the others wait for:
        # what it posts is handed out after that
        if self.calls.is_mine or not (self._posted or self._queue):
            return
        with self.calls.lock:
            is_whole = self.hand_out_all()
            is_due = self._deliveries.has_unrung and self._ring_or_leave_it()
        if (is_due or not is_whole) and self.started.is_open:
            self.wake()

    def _ring_or_leave_it(self) -> bool:
        """Wake the devices that sleep, if they have nothing else to do or were last woken long ago.

        Returns:
            Whether the I/O thread is to be woken, for it is to wake them.
        """
        now_s = time.monotonic()
        if len(self.calls.unsettled) < 2 or now_s - self._rung_s > RING_EVERY_S:
            self.ring()
        elif self.ring_by_s == float("inf"):
            self.ring_by_s = now_s + RING_EVERY_S
            return True
        return False

    def ring(self) -> None:
        """Wake the devices that have been given something and may sleep. To do it again changes nothing."""
        if self._deliveries.has_unrung:
            with self.calls.lock:
                self._deliveries.ring()
                self.ring_by_s, self._rung_s = float("inf"), time.monotonic()

    def wake(self) -> None:
        """Let the I/O thread look at once whether there is something to do."""
        with contextlib.suppress(OSError):  # a full pipe wakes just as well; a closed one has nobody to wake
            self._wakes.send(b"x")

    def check_can_wait(self) -> None:
        """Raise RuntimeStateError if a wait here would keep the very thread that it waits for."""
        if self.calls.is_mine or threading.current_thread() is self.receiving:
            raise RuntimeStateError(
                message(
                    "a finalizer or a signal's handler cannot wait for a value here",
                    got="it interrupted a call of tinyshard's that the devices wait for",
                    rule="it may call operations; their values come when the interrupted call is over",
                    try_="read the value outside of __del__ and of signal handlers",
                )
            )

    def check_open(self) -> None:
        """Raise if the pool is closed or broken: RuntimeStateError, or DeviceLostError if a device did not start."""
        if self.closing:  # first: after ts.init(), what broke the old pool is nobody's business any more
            raise RuntimeStateError(
                message(
                    "the pool that held this value has been shut down",
                    rule="values live in the workers and end with them",
                    try_="ts.init() starts a fresh pool; make the arrays again there",
                )
            )
        if self.broken is not None:
            raise type(self.broken)(str(self.broken))

    def take_printed(self) -> list[tuple[int, str]]:
        """The lines that workers have printed since the last time, each with its device, in device order."""
        with self.calls.lock:
            return self.printed.take()

    def calls_ahead(self) -> list[Run]:
        """The calls that were handed out and are not known to be over, the oldest first."""
        return list(self.calls.unsettled)  # one step, in C

    def close(self) -> None:
        """End the thread and the workers. An interrupt only ends the waiting for it."""
        self.closing = True
        self.wake()
        self.ended.wait()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: let go of what the two share."""
        self.broken = unusable("this process was forked from the one that the pool belongs to")
        self.woken.close()
        self._wakes.close()

    # ---- how far the devices are ------------------------------------------------------------------------------

    def is_all_received(self, seen: Seen) -> bool:
        """Whether all that devices have sent up to what was `seen`, and all that they have printed, has come."""
        with self.calls.lock:
            return self.calls.has_all_failures(seen) and self.printed.is_all_read()

    def look_at_progress(self) -> None:
        """Note how far the devices are, where shared memory shows it."""
        if self._completions is not None and self.started.is_open:
            self.calls.note_progress(self._completions.read())

    # ---- with the lock: handing out ---------------------------------------------------------------------------

    def hand_out_all(self, *, is_receiver: bool = False) -> bool:
        """Number what was posted and hand out what is queued; False if some of it is for the I/O thread, or for later.

        Args:
            is_receiver: this is the I/O thread.
        """
        self._number()
        if not self.started.is_open or self.closing or self.broken:
            return False
        if len(self.calls.unsettled) >= RUNS_BETWEEN_LOOKS and self._queue:
            self.look_at_progress()
        while self._queue:
            if not self._hand_out(is_receiver=is_receiver):
                return False
            self._number()
        return self._deliveries.announce()

    def _number(self) -> None:
        """Each step may be repeated."""
        while self._posted:
            item = self._posted[0]
            numbered = item[2] if len(item) > 2 else None
            if isinstance(numbered, Run | Request) and not numbered.number:
                numbered.number = next(self._numbers)
            if not (self._queue and self._queue[-1] is item):
                self._queue.append(item)
            self._posted.popleft()

    def _hand_out(self, *, is_receiver: bool) -> bool:
        """Hand out the first item; False if that is for the I/O thread, or for later."""
        item = self._queue[0]
        if self._delivery is None:
            if not is_receiver and (not self._has_log or item[0] in _FOR_RECEIVER):
                return False
            if item[0] in _FOR_RECEIVER:
                self._do(*item)
                self._queue.popleft()
                return True
            delivery = self._deliveries.prepare(item, self._is_last, is_receiver=is_receiver)
            if delivery is None:
                return False
            self._delivery = delivery
        delivery = self._delivery
        self._deliveries.send(delivery, is_receiver=is_receiver)
        if self._queue and self._queue[0] is delivery.item:
            self._queue.popleft()
        self._delivery = None
        return True

    def _is_last(self) -> bool:
        return len(self._queue) == 1 and not self._posted

    def _do(self, kind: str, _: int, *facts: Any) -> None:
        if kind == "cancel":
            self.interrupts.add(self.calls.newest, facts[0])  # what is handed out from here on is not concerned
        else:
            for link in self.links:
                if not link.lost:
                    link.look(time.monotonic())

    # ---- the I/O thread ---------------------------------------------------------------------------------------

    def drop(self, device: int) -> None:
        """A device is gone: what is still to be said to it never will be. With the lock."""
        self._deliveries.drop(device)

    def tell_of_released(self) -> None:
        """Tell the devices of values that nobody holds any more, when no call has done so. With the lock."""
        if not self._queue and not self._posted and self._buffers.released():
            self._queue.append(("free", 0))

    def end(self) -> None:
        """Nothing goes out any more: wake all who wait."""
        with self.calls.lock:
            self._delivery = None
            self.calls.unsettled.clear()
        self.woken.close()
        self._wakes.close()
        self.started.open()
        self.ended.open()  # who posts from here on sees it; who posted before is found below
        for link in self.links:
            link.fail_asked()
        for queue in (self._queue, self._posted):
            while queue:
                for part in queue.popleft():
                    if isinstance(part, Request):
                        part.over.open()
        self.back_pressure.end()
