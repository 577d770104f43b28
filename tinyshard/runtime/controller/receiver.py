"""The I/O thread: it starts the workers, takes what they send, and sends what no other thread could send at once."""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from tinyshard.core.errors import TinyshardError
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.remote_errors import lost_error, unusable
from tinyshard.runtime.controller.watchdog import look_again
from tinyshard.runtime.failure import gone
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.launch.local import Starter

# after so long without anything to do what is kept for a next time is given back
REST_AFTER_S = 5.0
# until then it looks now and then for values that nobody holds any more: nothing wakes it for them
TIDY_EVERY_S = 0.25
# how often it tries again what could not go out
RETRY_EVERY_S = 1e-3


class Receiver:
    """One thread. It changes what the dispatcher's lock guards with that lock held.

    Args:
        dispatcher: whose queue it goes on with.
        starter: starts the workers, and ends them.
        platform: what they are called.
        rest: called when there has been nothing to do for a while.
    """

    def __init__(self, dispatcher: Dispatcher, starter: Starter, platform: str, rest: Callable[[], object]) -> None:
        self._dispatcher = dispatcher
        self._calls = dispatcher.calls
        self._links = dispatcher.links
        self._printed = dispatcher.printed
        self._starter = starter
        self._platform = platform
        self._rest = rest
        self._busy_s = time.monotonic()
        with held_off():
            self._selector = selectors.DefaultSelector()
            abandon_in_child(self)
        dispatcher.receiving = threading.Thread(target=self._serve, name="tinyshard I/O", daemon=True)
        dispatcher.receiving.start()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close what it sleeps on."""
        self._selector.close()

    # ---- its life ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        dispatcher = self._dispatcher
        try:
            self._start_workers()
            dispatcher.started.open()
            while not dispatcher.closing:
                self._turn()
        except TinyshardError as error:
            dispatcher.broken = error
        except BaseException:  # the threads that wait are to see it
            text = traceback.format_exc().strip()
            dispatcher.broken = unusable("the thread that talks to the workers failed\n" + text)
        finally:
            self._end()

    def _start_workers(self) -> None:
        dispatcher = self._dispatcher
        self._selector.register(dispatcher.woken, selectors.EVENT_READ, None)
        for link in self._starter.links(lambda: not dispatcher.closing):
            self._links.append(link)
            self._selector.register(link.sock, selectors.EVENT_READ, link)
            self._selector.register(link.control, selectors.EVENT_READ, link)
            self._selector.register(link.output, selectors.EVENT_READ, link)
            self._printed.watch(link)

    def _turn(self) -> None:
        """Hand out what is queued, write, then wait for news and take it in."""
        dispatcher = self._dispatcher
        with self._calls.lock:
            is_whole = dispatcher.hand_out_all(is_receiver=True)
            for link in self._links:
                if link.has_output:
                    link.write()
                    self._watch(link)
                if link.words or link.is_control_watched:
                    link.write_words()
                    self._watch_control(link)
        is_watched = dispatcher.back_pressure.release() or not is_whole or dispatcher.ring_by_s < float("inf")
        pause_s = None if time.monotonic() - self._busy_s > REST_AFTER_S else TIDY_EVERY_S
        events = self._selector.select(RETRY_EVERY_S if is_watched else pause_s)
        if events or is_watched:
            self._busy_s = time.monotonic()
        elif pause_s is not None:
            self._tidy()
        with self._calls.lock:
            dispatcher.hand_out_all(is_receiver=True)  # before a device is found to be lost, all that it has is known
            if not events or time.monotonic() >= dispatcher.ring_by_s:
                dispatcher.ring()
            for key, mask in events:
                self._take_in(key, mask)

    def _tidy(self) -> None:
        """Nothing has come for a moment."""
        self._dispatcher.look_at_progress()
        with self._calls.lock:
            self._dispatcher.tell_of_released()
        if time.monotonic() - self._busy_s > REST_AFTER_S:
            self._rest()

    def _end(self) -> None:
        """Kill all workers, close everything, and wake all who wait."""
        dispatcher = self._dispatcher
        with self._calls.lock:  # a thread that hands out sees it, or is done
            dispatcher.closing = dispatcher.closing or not dispatcher.broken
            for link in self._links:
                self._take_lines(link)
        for link in self._links:
            self._starter.end(link)
            link.close()
        self._selector.close()
        dispatcher.end()

    # ---- with the lock: what it writes -------------------------------------------------------------------

    def _watch(self, link: Link) -> None:
        if not link.lost and link.has_output != link.is_watched:
            link.is_watched = link.has_output
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.has_output else 0)
            self._selector.modify(link.sock, events, link)

    def _watch_control(self, link: Link) -> None:
        if link.control.fileno() >= 0 and bool(link.words) != link.is_control_watched:
            link.is_control_watched = bool(link.words)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.words else 0)
            self._selector.modify(link.control, events, link)

    # ---- with the lock: what comes ----------------------------------------------------------------------------

    def _take_in(self, key: selectors.SelectorKey, mask: int) -> None:
        link = key.data
        if link is None:
            with contextlib.suppress(BlockingIOError):
                self._dispatcher.woken.recv(4096)
        elif key.fd == link.output:
            self._take_lines(link)
        elif key.fileobj is link.control:
            self._take_control(link)
        elif mask & selectors.EVENT_READ and not link.lost:
            self._read(link)

    def _read(self, link: Link) -> None:
        messages = link.read()
        if messages is None:
            self._lose(link)
            return
        if messages:
            self._take_lines(link)  # what a worker printed before it answered is there before the answer
        for head, payload in messages:
            self._take(link, head, payload)

    def _take(self, link: Link, head: tuple[Any, ...], payload: bytearray | None) -> None:
        if head[0] == "ready":
            link.is_up = True
        elif head[0] == "failed":
            _, number, failure = head
            # a device that had done its part could not take the result: it tells whoever asks it for that
            run = next((run for run in self._calls.unsettled if run.number == number), None)
            if run is not None:
                run.failures.setdefault(link.device, (failure, run.where))
            link.failures += 1
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

    def _take_control(self, link: Link) -> None:
        """What has come on the control line."""
        if link.control.fileno() < 0:
            return
        messages = link.read_control()
        if messages is None:
            self._close_control(link)
        for head, _ in messages or ():
            if head[0] == "frozen":
                self._dispatcher.interrupts.note_frozen(link.device, head[1])
            elif head[0] == "seen" and link.sight is not None:
                link.sight = look_again(link.sight, time.monotonic(), *head[1:])

    def _close_control(self, link: Link) -> None:
        if link.control.fileno() >= 0:
            self._selector.unregister(link.control)
            link.control.close()

    def _take_lines(self, link: Link) -> None:
        self._printed.read(link, self._selector.unregister)

    def _lose(self, link: Link) -> None:
        """The worker is gone: say so to all who wait for it."""
        dispatcher = self._dispatcher
        self._selector.unregister(link.sock)
        self._close_control(link)
        self._take_lines(link)
        lost = link.lost = self._starter.end(link)
        self._calls.has_lost = True
        dispatcher.drop(link.device)
        for run in self._calls.unsettled:
            if run.number > link.done and link.device in run.devices:
                run.failures.setdefault(link.device, (gone(link.device, lost), run.where))
        self._calls.settle()
        link.fail_asked()
        for other in self._links:
            other.tell("lost", link.device, lost)
        self._dispatcher.interrupts.note_frozen(link.device, link.done)
        if not link.is_up:
            raise lost_error(link.device, lost, self._platform)  # the others wait for it: no device will start
