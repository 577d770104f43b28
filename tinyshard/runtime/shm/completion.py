"""The devices' progress with their calls: each notes its finished calls, and wakes the sleeping controller.

The doorbell is a pipe: any thread may stop waiting for it at any time. A device writes the number of its finished call,
and then reads whether the controller waits for that; the controller writes that it waits, and then reads the finished
calls. Between the two, each passes a fence, so that one of them sees what the other has written.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import ge

from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.shm.monitor import give_core_away

# the controller shares its core with devices: its checks take turns with those for which it waits
_LOOK_S = 5e-5
# how long a device's message may take to the thread that receives it
_RECEIVED_WITHIN_S = 1e-4
# longer than a thread sleeps that no signal's handler interrupts
_CLOSES_AFTER_S = 0.5


class Completion:
    """A device's end; `bell` is the descriptor of the pipe that wakes the controller."""

    def __init__(self, control: ControlBlock, device: int, bell: int) -> None:
        self._waking = control.waking(device)
        self._finished, self._awaited = control.calls["finished"].data, control.calls["awaited"].data
        self._device = device
        self._bell = bell

    def finish(self, number: int) -> None:
        """Note that a call is over."""
        before = self._finished[self._device]
        self._waking.write_own(self._finished, number)
        if before < self._awaited[self._device] <= number:
            with contextlib.suppress(OSError):  # a full pipe wakes the controller too; a closed one has no reader
                os.write(self._bell, b"x")


class Completions:
    """The controller's end.

    Attributes:
        bell: descriptor of the pipe by which the devices wake this process.
    """

    def __init__(self, control: ControlBlock) -> None:
        self._waking = control.waking(-1)
        self._finished, self._awaited = control.calls["finished"].data, control.calls["awaited"].data
        self._waiting = threading.Lock()
        with held_off():
            self._rings, self.bell = os.pipe()
            abandon_in_child(self)
        self._poll = select.poll()  # which takes any descriptor, unlike `select`
        self._poll.register(self._rings, select.POLLIN)
        os.set_blocking(self._rings, False)
        os.set_blocking(self.bell, False)

    def wait(self, needs: Mapping[int, int], record: Callable[[Sequence[int]], bool], within_s: float) -> bool:
        """Wait until each device has finished the call that is needed of it.

        Args:
            needs: by device, the number of a call.
            record: records the result of `read`; returns whether all messages of the devices have been received.
            within_s: how long to sleep.

        Returns:
            False if it takes longer, if messages that were sent before are late, or if another thread waits.
        """
        have = partial(_have, self._finished, needs)
        is_over = have() or self._waking.look_until(have, _LOOK_S) or self._sleep(needs, within_s)
        if not is_over:
            return False
        finished = self.read()  # messages that a device sent before it finished a call may not have arrived
        end_s = time.monotonic() + _RECEIVED_WITHIN_S
        while not record(finished):
            if time.monotonic() > end_s:
                return False
            give_core_away()  # also releases the interpreter's lock for the thread that receives
        return _have(finished, needs)

    def read(self) -> list[int]:
        """By device, the last call that it has finished; -1 for one that is stopped while it holds its mutex."""
        return self._waking.read(self._finished)

    def close(self) -> None:
        """Close the pipe, once no thread sleeps on it, or only one that the caller has interrupted."""
        has_lock = self._waiting.acquire(timeout=_CLOSES_AFTER_S)
        self.abandon()
        if has_lock:
            self._waiting.release()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: close the pipe here."""
        ends, self._rings, self.bell = (self._rings, self.bell), -1, -1  # first, as `forks.Shared` says
        for end in ends:
            if end >= 0:
                os.close(end)

    def _sleep(self, needs: Mapping[int, int], within_s: float) -> bool:
        """Sleep until a check shows that all calls are finished; False if that takes longer."""
        if self._waiting.locked():  # one thread at a time reads the bell
            return False
        end_s = time.monotonic() + within_s
        with self._waiting:
            for device in reversed(needs):  # the last one was notified last
                while self._finished[device] < needs[device]:
                    left_s = end_s - time.monotonic()
                    if left_s <= 0 or self._rings < 0:
                        return False
                    self._awaited[device] = needs[device]
                    if not self._waking.fence(device):
                        return False
                    if self._finished[device] < needs[device]:
                        self._poll.poll(left_s * 1000)
                        with contextlib.suppress(OSError):  # there is nothing to read, or it was closed
                            os.read(self._rings, 4096)
        return True


def _have(finished: Sequence[int] | memoryview, needs: Mapping[int, int]) -> bool:
    """Whether each device has finished the call that is needed of it."""
    return all(map(ge, map(finished.__getitem__, needs), needs.values()))
