"""How a thread of the controller waits for devices: requests, shared memory, and the watchdog."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tinyshard.core import activity
from tinyshard.core.activity import spanned
from tinyshard.core.effects import Effects, Site
from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.trace_thread import raise_interruption
from tinyshard.core.types import tensor_of
from tinyshard.core.users_line import users_line
from tinyshard.runtime.controller.connection import FORGET_S
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.items import Cancel, Request
from tinyshard.runtime.controller.lineage import Ancestry, Buffer, Run, ancestry
from tinyshard.runtime.controller.remote_errors import lost_error
from tinyshard.runtime.controller.watchdog import check_progress
from tinyshard.runtime.shm import allocator

# how often a waiting thread checks whether the devices make progress
LOOK_EVERY_S = 0.5
# how long it sleeps before it checks whether a device is lost; and, if another thread sleeps for both, how long then
GLANCE_FOR_S = 0.05
BETWEEN_GLANCES_S = 0.005


class Waiting:
    """The waits of the controller's threads. `why_silent` returns why a device does not answer."""

    def __init__(self, dispatcher: Dispatcher, platform: str, why_silent: Callable[[int], str]) -> None:
        self._dispatcher = dispatcher
        self._platform = platform
        self._why_silent = why_silent

    def open_dispatcher(self) -> Dispatcher:
        """The dispatcher, once the workers are started. Raises if the pool is closed or broken."""
        dispatcher = self._dispatcher
        dispatcher.check_open()
        if not dispatcher.started.is_open:
            self.check_can_wait()
            self._block(lambda within_s: None if dispatcher.started.wait(within_s) else (), what="starting the devices")
            dispatcher.check_open()
        return dispatcher

    def ancestry(self, buffer: Buffer, device_ids: Iterable[int]) -> Ancestry:
        """The dependencies of a value's blocks on these devices."""
        with self.open_dispatcher().calls.lock:
            return ancestry(buffer.run, device_ids)

    def late(self, needs: Mapping[int, int]) -> set[int]:
        """The devices that are not known to have finished the call that is needed of them."""
        return {d for d, number in needs.items() if self._dispatcher.links[d].done < number}

    @spanned("wait")
    def until_finished(
        self, needs: Mapping[int, int], timeout_s: float = -1, meanwhile: Callable[[], None] = lambda: None
    ) -> bool:
        """Block until each device has finished the call that is needed of it, or one is lost that had not.

        False after `timeout_s`; meanwhile, call `meanwhile` again and again.
        """
        completions, calls, links = self._dispatcher.completions, self._dispatcher.calls, self._dispatcher.links
        if completions is None:
            late = self.late(needs)
            return not late or self.wait([self.ask("sync", late)], timeout_s)

        def missing(within_s: float) -> Iterable[int] | None:
            if completions.wait(needs, calls.record_progress, within_s):
                return None
            if timeout_s < 0:
                time.sleep(BETWEEN_GLANCES_S)  # `wait` returns at once if another thread sleeps in it
            late = self.late(needs)
            return None if any(links[d].lost for d in late) else late

        return self._block(missing, timeout_s, meanwhile)

    def perform_effects(self, run: Run, sites: tuple[Site, ...]) -> None:
        """Block until a call is finished, and perform its program's effects meanwhile."""
        effects = Effects(sites, run.devices)
        sent = self._dispatcher.sent

        def perform(*, is_over: bool = False) -> None:
            for _ in range(len(sent)):
                device, call, site, values = item = sent.popleft()
                if call == run.number:
                    effects.take(device, site, [tensor_of(bytearray(x), *meta) for *meta, x in values])
                elif call > run.number:  # another thread's
                    sent.append(item)
            effects.perform(is_over=is_over)

        self.open_dispatcher()
        self.until_finished(dict.fromkeys(run.devices, run.number), meanwhile=perform)
        perform(is_over=True)

    def cancel(self) -> None:
        """Cancel all unfinished calls, for an interrupt at the current line of the user's code."""
        self._dispatcher.post(Cancel(str(users_line())))

    def check_can_wait(self) -> None:
        """Raise RuntimeStateError if the calling thread would wait for itself."""
        if self._dispatcher.is_waited_for:
            raise RuntimeStateError(
                "a finalizer or a signal's handler cannot wait for a value here",
                got="it interrupted a call of tinyshard's that the devices wait for",
                rule="it may call operations; their values come when the interrupted call is over",
                try_="read the value outside of __del__ and of signal handlers",
            )

    def ask(
        self,
        kind: str,
        device_ids: Iterable[int],
        what: Any = None,
        lent: tuple[torch.Tensor, allocator.Block] | None = None,
    ) -> Request:
        """Send a request to devices; `lent` is a tensor into which they write, and its block."""
        self.check_can_wait()
        request = Request(set(device_ids), kind, what, lent)
        self._dispatcher.post(request)
        return request

    @spanned("wait")
    def wait(self, requests: Sequence[Request], timeout_s: float = -1) -> bool:
        """Block until all requests are answered; False after `timeout_s`. Raises DeviceLostError if one cannot be."""

        def missing(within_s: float) -> Iterable[int] | None:
            for request in requests:
                if not request.over.wait(within_s):
                    return request.waiting
                if request.waiting:
                    break  # a device is lost: other devices may wait for it for ever
            return None

        self._dispatcher.check_open()  # if it ends from now on, it opens these requests
        is_in_time = self._block(missing, timeout_s)
        for request in requests:
            if request.error is not None:
                raise request.error
        self._dispatcher.check_open()
        waiting = {d for r in requests for d in list(r.waiting)}
        if waiting and is_in_time:
            for link in sorted(self._dispatcher.links, key=lambda link: link.device not in waiting):
                if link.lost:
                    raise lost_error(link.device, link.lost, self._platform)
        return is_in_time

    def throttle(self, run: Run) -> None:
        """Block while one of the devices of a call has too many earlier calls: until half of them are finished."""
        devices = set(run.devices)
        # a finalizer or signal handler does not wait: the call that it interrupted must finish first
        while not self._dispatcher.is_waited_for and (before := self._dispatcher.too_much_before(devices)):
            self.open_dispatcher()
            middle = before[len(before) // 2]
            self.until_finished(dict.fromkeys(devices.intersection(middle.devices), middle.number))

    def _block(
        self,
        missing: Callable[[float], Iterable[int] | None],
        timeout_s: float = -1,
        meanwhile: Callable[[], None] = lambda: None,
        what: str = "waiting for the devices",
    ) -> bool:
        """Block until a wait is over; False after `timeout_s`. Ctrl-C ends it; one without a limit cancels the calls.

        Args:
            missing: blocks for a number of seconds at most; returns the devices whose answer is missing, or None if
                the wait is over.
            meanwhile: called again and again.
            what: a notebook's text for a long wait.

        Raises:
            RuntimeStateError: the pool is closed or broken.
            CollectiveTimeoutError: none of the devices that the wait depends on makes progress.
        """
        dispatcher = self._dispatcher
        try:
            dispatcher.ring()
            devices = missing(GLANCE_FOR_S if timeout_s < 0 else timeout_s)
            if devices is None or timeout_s >= 0:
                return devices is None
            since_s, looked_s = 0.0, float("-inf")  # since when this wait checks without a pause; when it last did
            with activity.doing(what):
                while devices is not None:
                    dispatcher.check_open()
                    activity.still_doing()
                    raise_interruption()
                    now_s = time.monotonic()
                    if now_s - looked_s >= LOOK_EVERY_S:
                        since_s = now_s if now_s - looked_s > FORGET_S else since_s
                        looked_s = now_s
                        self._check(devices, since_s)
                    meanwhile()
                    dispatcher.ring()
                    devices = missing(GLANCE_FOR_S)
            return True
        except KeyboardInterrupt:
            if timeout_s < 0:
                self.cancel()
            raise
        finally:
            self.print_output()

    def _check(self, devices: Iterable[int], since_s: float) -> None:
        """Ask the devices for their progress, and check what they have answered so far."""
        dispatcher = self._dispatcher
        dispatcher.ask_for_look()
        if dispatcher.started.is_open:
            calls = list(dispatcher.calls.unsettled)
            check_progress(dispatcher.links, calls, list(devices), since_s, self._platform, self._why_silent)

    def print_output(self) -> None:
        """Print the workers' output in the calling thread, so that it appears in its cell."""
        if not self._dispatcher.printed:
            return
        lines: list[tuple[int, str]] = []
        try:
            with self._dispatcher.calls.lock:
                lines, self._dispatcher.printed = sorted(self._dispatcher.printed, key=lambda line: line[0]), []
            while lines:
                device, line = lines[0]
                print(f"[{self._platform.upper()} {device}] {line}", file=sys.stderr)
                del lines[0]
        except KeyboardInterrupt:
            with self._dispatcher.calls.lock:
                self._dispatcher.printed[:0] = lines
            raise
