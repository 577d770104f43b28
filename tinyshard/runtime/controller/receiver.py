"""The I/O thread: it starts the workers, receives their messages, and sends items that a posting thread could not."""

from __future__ import annotations

import contextlib
import select
import selectors
import threading
import time
import traceback
from typing import Any

from tinyshard.core.errors import TinyshardError
from tinyshard.runtime.controller.connection import Link, Stream
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.remote_errors import lost_error, unusable
from tinyshard.runtime.controller.watchdog import look_again
from tinyshard.runtime.failure import Failure
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.launch.local import Starter
from tinyshard.runtime.shm.allocator import Arena

# after this idle time it returns memory that is kept for reuse
REST_AFTER_S = 10.0
# how often it polls for released values, whose finalizers do not wake it: until then, and from then on
TIDY_EVERY_S = 0.25
TIDY_AT_REST_EVERY_S = 2.0
# how often it retries items that could not be sent
RETRY_EVERY_S = 1e-3


class Receiver:
    """The I/O thread and its event loop; `arena` is the memory shared with the workers, if there is one."""

    def __init__(self, dispatcher: Dispatcher, starter: Starter, platform: str, arena: Arena | None) -> None:
        self._dispatcher = dispatcher
        self._calls = dispatcher.calls
        self._links = dispatcher.links
        self._starter = starter
        self._platform = platform
        self._arena = arena
        self._busy_s = time.monotonic()
        self._ended: list[Link] = []  # their sockets have ended; the workers are still to be reaped
        with held_off():
            self._selector = selectors.DefaultSelector()
            abandon_in_child(self)
        dispatcher.receiving = threading.Thread(target=self._serve, name="tinyshard I/O", daemon=True)
        try:
            dispatcher.receiving.start()
        except BaseException:  # the system has no more threads, or Ctrl-C
            if dispatcher.receiving.ident is None:
                dispatcher.receiving = None
                self._selector.close()
            raise

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close the selector."""
        self._selector.close()

    # ---- the event loop ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        dispatcher = self._dispatcher
        try:
            self._start_workers()
            dispatcher.started.open()
            while not dispatcher.closing:
                self._turn()
        except TinyshardError as error:
            dispatcher.broken = error
        except BaseException:  # waiting threads raise it
            text = traceback.format_exc().strip()
            dispatcher.broken = unusable(got="the I/O thread failed\n" + text)
        finally:
            self._end()

    def _start_workers(self) -> None:
        dispatcher = self._dispatcher
        self._selector.register(dispatcher.woken, selectors.EVENT_READ, None)
        for link in self._starter.links():
            if link is not None:
                self._links.append(link)
                for source in (link.channel.sock, link.control.sock, link.output):
                    self._selector.register(source, selectors.EVENT_READ, link)
                self._calls.incoming.register(link.channel.sock, select.POLLIN)
                self._calls.incoming.register(link.output, select.POLLIN)
            if dispatcher.closing:
                return

    def _turn(self) -> None:
        """Send queued items, write to sockets, then block until a message is received, and handle it."""
        dispatcher = self._dispatcher
        with self._calls.lock:
            is_all_sent = dispatcher.send_queued(is_receiver=True)
            dispatcher.ring(is_urgent=False)
            if dispatcher.wants_look:
                dispatcher.wants_look = False
                for link in self._links:
                    link.look(time.monotonic())
            dispatcher.interrupts.check_time()
            for link in self._links:
                for stream in (link.channel, link.control):
                    if stream.is_open and (stream.unwritten or stream.is_watched):
                        stream.write()
                        self._watch(stream, link)
        is_watched = not is_all_sent or dispatcher.is_ring_deferred or dispatcher.interrupts.now is not None
        pause_s = TIDY_AT_REST_EVERY_S if time.monotonic() - self._busy_s > REST_AFTER_S else TIDY_EVERY_S
        events = self._selector.select(RETRY_EVERY_S if is_watched else pause_s)
        if events or is_watched:
            self._busy_s = time.monotonic()
        else:
            self._tidy()
        with self._calls.lock:
            dispatcher.send_queued(is_receiver=True)
            dispatcher.ring(is_urgent=False)
            for key, mask in events:
                self._take_in(key, mask)
        while self._ended:
            self._lose(self._ended.pop(0))

    def _lose(self, link: Link) -> None:
        """Reap a worker that has ended, fail its calls, wake the threads that wait for it, and notify other devices."""
        dispatcher = self._dispatcher
        lost = self._starter.end(link)  # without the lock: over a network it takes up to seconds
        with self._calls.lock:
            dispatcher.send_queued(is_receiver=True)  # its messages are noted before its loss
            self._end_stream(link.channel)
            self._end_stream(link.control)
            dispatcher.look_at_progress()  # all its failures are received: its finished calls count
            self._take_lines(link)
            link.lost = lost
            self._calls.has_lost = True
            dispatcher.drop(link.device)
            for run in self._calls.unsettled:
                if run.number > link.done and link.device in run.devices:
                    run.failures.setdefault(link.device, (Failure(link.device, lost=lost), run.where))
            self._calls.settle()
            link.fail_asked()
            for other in self._links:
                other.send_control("lost", link.device, lost)
            dispatcher.interrupts.note_frozen(link.device, link.done)
        if not link.is_up:
            raise lost_error(link.device, lost, self._platform)  # the other workers cannot connect without it

    def _tidy(self) -> None:
        """Free released values after a moment without messages; return memory after a longer pause."""
        self._dispatcher.look_at_progress()
        with self._calls.lock:
            self._dispatcher.free_released()
        if time.monotonic() - self._busy_s > REST_AFTER_S and self._arena is not None:
            self._arena.trim()

    def _end(self) -> None:
        """Kill all workers, close everything, and wake all waiting threads."""
        dispatcher = self._dispatcher
        with self._calls.lock:  # a thread that is sending finishes first; a later one sees it
            dispatcher.closing = dispatcher.closing or not dispatcher.broken
            for link in self._links:
                self._take_lines(link)
        try:
            for link in self._links:
                self._starter.end(link)
                link.close()
            self._starter.close()
            self._selector.close()
            if self._arena is not None:
                self._arena.leave()
        finally:
            dispatcher.end()

    # ---- with the lock held: writing --------------------------------------------------------------------------

    def _watch(self, stream: Stream, link: Link) -> None:
        """Poll the socket for writability as long as there are bytes to write."""
        if stream.is_watched != bool(stream.unwritten):
            stream.is_watched = bool(stream.unwritten)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.unwritten else 0)
            self._selector.modify(stream.sock, events, link)

    # ---- with the lock held: receiving ------------------------------------------------------------------------

    def _take_in(self, key: selectors.SelectorKey, mask: int) -> None:
        link = key.data
        if link is None:
            with contextlib.suppress(BlockingIOError):
                self._dispatcher.woken.recv(4096)
        elif key.fd == link.output:
            self._take_lines(link)
        elif mask & selectors.EVENT_READ:
            self._read(link, link.control if key.fileobj is link.control.sock else link.channel)

    def _read(self, link: Link, stream: Stream) -> None:
        messages = stream.reader.read() if stream.is_open else []
        if messages is None:
            self._end_stream(stream)
            if (stream is link.channel or link.broken) and link not in self._ended and not link.lost:
                self._ended.append(link)
        elif messages and stream is link.channel:
            self._take_lines(link)  # lines that a worker printed before its answer are printed before it here
        for head, payload in messages or ():
            self._take(link, head, payload)

    def _end_stream(self, stream: Stream) -> None:
        if stream.is_open:
            self._unwatch(stream.sock)
            stream.is_open = False

    def _unwatch(self, source: Any) -> None:
        """Stop polling a socket or pipe. Idempotent."""
        for polls in (self._selector, self._calls.incoming):
            with contextlib.suppress(KeyError):
                polls.unregister(source)

    def _take(self, link: Link, head: tuple[Any, ...], payload: bytearray | None) -> None:
        if head[0] == "ready":
            link.is_up = True
        elif head[0] == "failed":
            _, number, failure = head
            # a settled call has no run here: then the answer to a fetch carries the failure
            run = next((run for run in self._calls.unsettled if run.number == number), None)
            if run is not None:
                run.failures.setdefault(link.device, (failure, run.where))
        elif head[0] == "reply":
            _, number, done, answer = head
            link.done = max(link.done, done)
            self._calls.settle()
            request = link.asked.pop(number, None)
            if request is not None:
                request.answers[link.device] = (answer, payload)
                request.waiting.discard(link.device)
                if not request.waiting:
                    request.over.open()
        elif head[0] == "effect":
            self._dispatcher.sent.append((link.device, *head[1:]))
        elif head[0] == "frozen":
            self._dispatcher.interrupts.note_frozen(link.device, *head[1:])
        elif head[0] == "seen" and link.sight is not None:
            link.sight = look_again(link.sight, time.monotonic(), *head[1:])

    def _take_lines(self, link: Link) -> None:
        lines, is_over = link.read_lines()
        self._dispatcher.printed += [(link.device, line) for line in lines]
        if is_over:
            self._unwatch(link.output)
