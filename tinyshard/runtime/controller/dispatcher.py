"""The dispatcher: one queue of all messages to devices, sent in one order by the threads that post.

A thread posts an item, then sends the queued items, holding one lock, in the order of their numbers. An item that
cannot be sent at once (the workers are still starting, the log is full, it needs a socket) stays in the queue for the
I/O thread (`receiver`).

A KeyboardInterrupt may interrupt the main thread between any two steps. So a message is first prepared, which no device
sees, then kept as the current `Delivery`; every step after that is idempotent, and the next thread that dispatches
repeats them all.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import threading
import time
from typing import Any

from tinyshard.core.errors import TinyshardError
from tinyshard.runtime.controller.cancellation import Interrupts
from tinyshard.runtime.controller.connection import Calls
from tinyshard.runtime.controller.delivery import Deliveries, Delivery
from tinyshard.runtime.controller.items import Call, Cancel, Free, Item, Latch, Put, Request, in_place_of
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.controller.refs import Buffers
from tinyshard.runtime.controller.remote_errors import unusable
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.completion import Completions
from tinyshard.runtime.shm.log import CallLog

# with this many unfinished calls the dispatcher checks the devices' progress
RUNS_BETWEEN_LOOKS = 64
# waking a device costs the controller more than a call; in a burst it is done for the first and then so often
RING_EVERY_S = 4e-3
# for each device: unfinished calls, and bytes on their way to it
MAX_RUNS_AHEAD = 1024
MAX_NBYTES_AHEAD = 128 << 20


class Dispatcher:
    """Sends messages to all devices in one order. `calls.lock` guards the state that several threads use.

    Attributes:
        completions: the calls that the devices have finished, if they share memory with this process.
        calls: the links to the devices, the calls that were sent, and the lock that guards both.
        started: opens when all workers have been started, or none will be.
        ended: opens when the I/O thread sends and receives no more.
        broken: the error for which the pool does not accept calls any more.
        closing: the pool is being shut down.
        sent: the blocks that devices have sent for effects: (device, call, number of the site, values).
        printed: the lines that workers have printed, each with its device.
        receiving: the I/O thread.
        interrupts: cancellation by Ctrl-C.
        wants_look: it must ask the devices for their progress.
        is_ring_deferred: it must wake sleeping devices soon.
        woken: becomes readable when the I/O thread must look at the queue.
    """

    def __init__(self, buffers: Buffers, arena: Arena | None) -> None:
        self.calls = Calls()
        self.links = self.calls.links
        self.started = Latch()
        self.ended = Latch()
        self.broken: TinyshardError | None = None
        self.closing = False
        self.sent: collections.deque[tuple[int, int, int, Any]] = collections.deque()
        self.printed: list[tuple[int, str]] = []
        self.receiving: threading.Thread | None = None
        self.interrupts = Interrupts(self.calls)
        self.completions = None if arena is None else Completions(arena.control)
        self._numbers = itertools.count(1)
        self._posted: collections.deque[Item] = collections.deque()  # not numbered yet
        self._queue: collections.deque[Item] = collections.deque()
        self._log = None if arena is None else CallLog(arena.control)
        self._deliveries = Deliveries(self.calls, buffers, self._log, arena)
        self._delivery: Delivery | None = None
        self._rung_s = float("-inf")
        self.wants_look = False
        self.is_ring_deferred = False
        with held_off():
            self.woken, self._wakes = socket.socketpair()
            abandon_in_child(self)
        self.woken.setblocking(False)
        self._wakes.setblocking(False)

    # ---- from any thread --------------------------------------------------------------------------------------

    def post(self, item: Item) -> None:
        """Append an item to the queue, and send the queued items."""
        self._posted.append(item)  # atomic
        self.advance()

    def advance(self) -> None:
        """Send the queued items, as far as they can be sent now."""
        # a finalizer or a signal handler that interrupted this thread's own dispatch, which sends the posted item
        if not (self._posted or self._queue) or self.calls.is_mine:
            return
        with self.calls.lock:
            was_deferred = self.is_ring_deferred
            is_all_sent = self.send_queued()
            self.ring(is_urgent=False)
            is_left = not is_all_sent or (self.is_ring_deferred and not was_deferred)
        if is_left and self.started.is_open:
            self.wake()

    def ring(self, *, is_urgent: bool = True) -> None:
        """Wake the devices that have new messages and may be asleep. Idempotent.

        Args:
            is_urgent: now. Otherwise, if they have calls and were last woken a moment ago, the I/O thread does it soon.
        """
        if self._log is None or not (self._log.has_unrung or self.is_ring_deferred):
            return
        with self.calls.lock:  # another thread may defer a wakeup meanwhile
            now_s = time.monotonic()
            if is_urgent or len(self.calls.unsettled) < 2 or now_s - self._rung_s > RING_EVERY_S:
                self._log.ring()
                self._rung_s, self.is_ring_deferred = now_s, False
            else:
                self.is_ring_deferred = True

    def ask_for_look(self) -> None:
        """Let the I/O thread ask the devices for their progress, whatever is queued before."""
        self.wants_look = True
        self.wake()

    def wake(self) -> None:
        """Wake the I/O thread."""
        with contextlib.suppress(OSError):  # a full pipe wakes it as well; a closed one means that it has ended
            self._wakes.send(b"x")

    def check_open(self) -> None:
        """Raise if the pool is closed or broken: RuntimeStateError, or DeviceLostError if a device did not start."""
        if self.closing:  # first: after ts.init() it does not matter what broke the old pool
            raise unusable("the pool that held this value has been shut down")
        if self.broken is not None:
            raise type(self.broken)(str(self.broken))

    def close(self) -> None:
        """End the I/O thread and the workers, and block until they have ended. Ctrl-C ends only the wait.

        It does not block within a dispatch that a signal's handler or a finalizer interrupts: the I/O thread waits for
        the end of that.
        """
        self.closing = True
        self.wake()
        if not self.is_waited_for:
            self.ended.wait()

    @property
    def is_waited_for(self) -> bool:
        """Whether the I/O thread waits for the calling thread, or is it: then this thread must not wait for it."""
        return self.calls.is_mine or threading.current_thread() is self.receiving

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close the shared descriptors."""
        self.broken = unusable(got="this process was forked from the one that the pool belongs to")
        self.woken.close()
        self._wakes.close()

    # ---- the devices' progress --------------------------------------------------------------------------------

    @property
    def has_many_calls(self) -> bool:
        """Whether the number of unfinished calls is so large that one device may have too many."""
        return len(self._queue) + len(self.calls.unsettled) > MAX_RUNS_AHEAD

    def too_much_before(self, devices: set[int]) -> list[Run]:
        """The unfinished calls of these devices, oldest first, if a new one must wait for some of them; else none."""
        queued = [item.run for item in list(self._queue) if isinstance(item, Put | Call)]
        runs = [*list(self.calls.unsettled), *queued]  # read last: a call sent meanwhile counts twice, not zero times
        if not self.has_many_calls and sum(run.nbytes for run in runs) <= MAX_NBYTES_AHEAD:
            return []
        late = {link.device: link.done for link in self.links if link.device in devices and not link.lost}
        runs = [run for run in runs if any(run.number > late.get(d, run.number) for d in run.devices)]
        is_much = len(runs) > MAX_RUNS_AHEAD or sum(run.nbytes for run in runs) > MAX_NBYTES_AHEAD
        return runs if is_much else []

    def look_at_progress(self) -> None:
        """Read the finished calls of the devices from shared memory, if they share it."""
        if self.completions is not None and self.started.is_open:
            self.calls.record_progress(self.completions.read())

    # ---- with the lock held: sending --------------------------------------------------------------------------

    def send_queued(self, *, is_receiver: bool = False) -> bool:
        """Number and send the queued items; False if some are left for the I/O thread, or for later.

        Args:
            is_receiver: the calling thread is the I/O thread.
        """
        self._number()
        if not self.started.is_open or self.closing or self.broken:
            return False
        if len(self.calls.unsettled) >= RUNS_BETWEEN_LOOKS and self._queue:
            self.look_at_progress()
        while self._queue:
            if not self._send_first(is_receiver=is_receiver):
                return False
            self._number()
        return self._log is None or self._log.announce()

    def _number(self) -> None:
        """Number the posted items and append them to the queue. Idempotent at every step."""
        while self._posted:
            item = self._posted[0]
            numbered = item.run if isinstance(item, Put | Call) else item
            if isinstance(numbered, Run | Request) and not numbered.number:
                numbered.number = next(self._numbers)
            if not (self._queue and self._queue[-1] is item):
                self._queue.append(item)
            self._posted.popleft()

    def _send_first(self, *, is_receiver: bool) -> bool:
        """Send the first item; False if it is left for the I/O thread, or for later."""
        item = self._queue[0]
        if self._delivery is None:
            if not is_receiver and (self._log is None or isinstance(item, Cancel)):
                return False
            if isinstance(item, Cancel):
                self.interrupts.add(item.by)  # later calls are not cancelled
                self._queue.popleft()
                return True
            try:
                delivery = self._deliveries.prepare(item, self._later, is_receiver=is_receiver)
            except Exception as error:  # no memory for a message, or an object that cannot be pickled
                self._queue[0] = in_place_of(item, error)
                return True
            if delivery is None:
                return False
            self._delivery = delivery
        delivery = self._delivery
        self._deliveries.send(delivery)
        if self._queue and self._queue[0] is delivery.item:
            self._queue.popleft()
        self._delivery = None
        return True

    def _later(self) -> list[Item]:
        return [*itertools.islice(self._queue, 1, None), *list(self._posted)]

    # ---- the I/O thread ---------------------------------------------------------------------------------------

    def drop(self, device: int) -> None:
        """Drop the unsent messages of a lost device. Called with the lock held."""
        self.links[device].channel.unwritten.clear()
        if self._log is not None:
            self._log.drop(device)

    def free_released(self) -> None:
        """Queue a message that frees released values, if no queued call will. Called with the lock held."""
        if not self._queue and not self._posted and self._deliveries.has_released:
            self._queue.append(Free())

    def end(self) -> None:
        """At shutdown: wake all threads that wait."""
        with self.calls.lock:
            self._delivery = None
            self.calls.unsettled.clear()
        self.woken.close()
        self._wakes.close()
        self.started.open()
        self.ended.open()
        for link in self.links:
            link.fail_asked()
        with self.calls.lock:  # a thread that posts may be numbering; one that posts later sees that the pool is closed
            for queue in (self._queue, self._posted):
                while queue:
                    item = queue.popleft()
                    if isinstance(item, Request):
                        item.over.open()
        if self.completions is not None:
            self.completions.close()
