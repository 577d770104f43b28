"""Waiting for devices: asking them, looking in shared memory, and noticing that none of them gets on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tinyshard.runtime.controller.connection import Link, Request
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.latch import Latch
from tinyshard.runtime.controller.lineage import Ancestry, Buffer, Run, ancestry, users_line
from tinyshard.runtime.controller.remote_errors import lost_error
from tinyshard.runtime.controller.watchdog import Patience, check_progress
from tinyshard.runtime.shm import allocator
from tinyshard.runtime.shm.completion import Completions

# a thread that waits longer than this looks whether the devices get on
LOOK_EVERY_S = 0.5
# shared memory shows at once what is over; how long to sleep for that, and how long to look for answers in between
GLANCE_FOR_S = 0.05
BETWEEN_GLANCES_S = 0.005


class Waiting:
    """How a thread of the controller waits. Ctrl-C ends each wait, and cancels what is queued.

    Args:
        dispatcher: by which devices are asked.
        completions: what they show in shared memory, if they share it with this process.
        platform: what they are called: "cpu".
    """

    def __init__(self, dispatcher: Dispatcher, completions: Completions | None, platform: str) -> None:
        self._dispatcher = dispatcher
        self._completions = completions
        self._platform = platform

    def open_dispatcher(self) -> Dispatcher:
        """The dispatcher, once the workers are started. Raises if the pool is closed or broken."""
        dispatcher = self._dispatcher
        dispatcher.check_open()
        if not dispatcher.started.is_open:
            dispatcher.started.wait()
            dispatcher.check_open()
        return dispatcher

    def links(self, device_ids: Iterable[int]) -> list[Link]:
        """The links to these devices."""
        return [self._dispatcher.links[d] for d in device_ids]

    def ancestry(self, buffer: Buffer, device_ids: Iterable[int]) -> Ancestry:
        """What the blocks of a value on these devices depend on."""
        with self.open_dispatcher().calls.lock:
            return ancestry(buffer.run, device_ids)

    def late(self, known: Ancestry) -> set[int]:
        """The devices that have not yet told that they have finished what matters."""
        return {d for d, number in known.needs.items() if self._dispatcher.links[d].done < number}

    def sees_finished(self, known: Ancestry) -> bool:
        """Whether shared memory soon shows that all is over that matters: nobody needs to be asked then."""
        try:
            return self.glances(known, GLANCE_FOR_S)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def glances(self, known: Ancestry, within_s: float) -> bool:
        """Whether shared memory shows within this time that all that matters is over."""
        completions, dispatcher = self._completions, self._dispatcher
        if completions is None:
            return False
        dispatcher.ring()
        seen = completions.wait(known.needs, dispatcher.is_all_received, within_s)
        if seen is None:
            return False
        dispatcher.calls.note_progress(seen)
        self.print_output()
        return True

    def cancel(self) -> None:
        """Cancel all calls that are not finished, for an interrupt at this line of the user's."""
        self._dispatcher.post("cancel", 0, str(users_line()))

    def ask(
        self,
        kind: str,
        device_ids: Iterable[int],
        what: Any = None,
        lent: tuple[torch.Tensor, allocator.Block] | None = None,
    ) -> Request:
        """Ask devices something.

        Args:
            lent: a tensor into which they write, and its block.
        """
        self._dispatcher.check_can_wait()
        request = Request(set(device_ids))
        self._dispatcher.post(kind, 0, request, what, lent)
        return request

    def wait(self, requests: Sequence[Request], timeout_s: float = -1, seen: Callable[[], bool] | None = None) -> bool:
        """Until all have answered; False if that takes longer. Raises DeviceLostError as soon as one of them cannot.

        Args:
            seen: looks for a moment whether what is waited for is over without an answer.
        """
        patience = Patience()
        try:
            for request in requests:
                if self._dispatcher.ended.is_open or not self._watch(
                    request.over, request.waiting, patience, timeout_s, seen
                ):
                    self._dispatcher.check_open()
                    return False
                if seen is not None and not request.over.is_open:
                    return True
                if request.waiting:
                    break  # one of them is lost: the others may wait for it, and need not be waited for
        finally:
            self.print_output()
        self._dispatcher.check_open()
        waiting = {d for r in requests for d in r.waiting}
        if waiting:  # one of them is lost
            for link in sorted(self._dispatcher.links, key=lambda link: link.device not in waiting):
                if link.lost:
                    raise lost_error(link.device, link.lost, self._platform)
        return True

    def hold_back(self, run: Run) -> None:
        """Wait while too much is before one of the devices of a call."""
        patience = Patience()
        self._dispatcher.back_pressure.hold_back(run.devices, lambda latch: self._watch(latch, run.devices, patience))

    def _watch(
        self,
        latch: Latch,
        devices: Iterable[int],
        patience: Patience,
        timeout_s: float = -1,
        seen: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait for a latch that these devices open, or for what `seen` says; False if that takes longer.

        Raises:
            CollectiveTimeoutError: none of the devices that this depends on gets on.
        """
        try:
            self._dispatcher.ring()
            if timeout_s >= 0:
                return latch.wait(timeout_s)
            while not latch.wait(LOOK_EVERY_S if seen is None else BETWEEN_GLANCES_S):
                if seen is not None and seen():
                    return True
                now_s = time.monotonic()
                if seen is not None and now_s - patience.looked_s < LOOK_EVERY_S:
                    continue
                patience.look(now_s)
                self._dispatcher.post("look", 0)
                if self._dispatcher.started.is_open:
                    links, calls = self._dispatcher.links, self._dispatcher.calls_ahead()
                    check_progress(links, calls, list(devices), patience.since_s, self._platform)
        except KeyboardInterrupt:
            self.cancel()
            raise
        return True

    def print_output(self) -> None:
        """Print what workers wrote, here in the thread that asks, so that it lands in the asking cell."""
        for device, line in self._dispatcher.take_printed():
            print(f"[{self._platform.upper()} {device}] {line}", file=sys.stderr)
