"""How far the devices are, read from the memory that they share with the controller: nobody asks, nobody answers.

A device writes the number of each call that it has finished. A controller that waits lets others run for a moment
(`yielding`). Then it writes down which call it needs of each device, and sleeps: whoever finds all of them finished is
the last, and wakes it.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import ge

from tinyshard.runtime.futex import Futex, fence, fenced, timespec
from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.yielding import CONTROLLER_YIELDS_FOR_NS, LATE_AFTER_NS, Yielding, let_others_run

# how long what a device has said may be on its way to the I/O thread
HEARD_WITHIN_S = 1e-4


class Progress:
    """A device's own two numbers.

    Args:
        control: the shared memory's first part.
        device: whose they are.
    """

    def __init__(self, control: ControlBlock, device: int) -> None:
        self._finished, self._when = control.finished.data, control.when.data
        self._told = control.told.data
        self._needed = control.needed.data
        self._last = control.last.data
        self._sleeper = Futex(control.last.ctypes.data)
        self._device = device

    def finish(self, number: int) -> None:
        """Note that a call is over."""
        if self._finished[self._device] == number:
            return
        self._when[self._device] = time.monotonic_ns()
        self._finished[self._device] = number
        with fenced:
            pass
        if not self._needed[-1]:
            return
        needed = self._needed.tolist()
        if all(map(ge, self._finished.tolist(), needed[:-1])):
            self._last[0] = number * len(needed) + self._device  # what nobody has written there before
            self._sleeper.wake()

    def tell(self) -> None:
        """Note that the controller was sent one more failure; before the call that failed is noted as over."""
        self._told[self._device] += 1


class Overview:
    """The controller's view of all devices.

    Args:
        control: the shared memory's first part.
    """

    def __init__(self, control: ControlBlock) -> None:
        self._finished, self._when = control.finished[:-1].data, control.when.data
        self._needed = control.needed.data
        self._last, self._unseen = control.last.data, control.unseen.data
        self._own = Futex(control.last.ctypes.data)
        self._waiting = threading.Lock()
        self._yielding = Yielding(control.crowded.data, CONTROLLER_YIELDS_FOR_NS)
        self._told = control.told[:-1].data

    def wait_a_moment(
        self, needs: Mapping[int, int], is_over: Callable[[list[int]], bool], within_s: float
    ) -> list[int] | None:
        """Wait until each device has finished the call that is needed of it, if that is soon.

        Args:
            needs: by device, the number of a call.
            is_over: given how many failures each device has told of: whether nothing that devices have said is still on
                its way, neither those nor what they print.
            within_s: for how long to sleep.

        Returns:
            By device, the last call that it has finished and of which `is_over` holds; None if it takes longer.
        """
        needed = [needs.get(device, 0) for device in range(len(self._finished))]
        comes_soon = partial(self._yielding.until, partial(self._have_finished, needed), partial(self._is_late, needed))
        if not self._have_finished(needed) and not comes_soon():
            # there is one place to say what the controller needs; another thread may have it
            if self._waiting.locked():
                return None
            with self._waiting:  # taken and given back in C, where no Ctrl-C strikes
                if not self._has_slept(needed, comes_soon, within_s):
                    return None
        self._unseen[0] = 0
        seen = self._finished.tolist()  # before the look at what is said: later calls say more
        end_s = time.perf_counter() + HEARD_WITHIN_S
        while not is_over(self._told.tolist()):
            if time.perf_counter() > end_s:
                return None
            let_others_run()
        return seen

    def _have_finished(self, needed: Sequence[int]) -> bool:
        """Whether each device has finished its call."""
        return all(map(ge, self._finished.tolist(), needed))

    def _is_late(self, needed: Sequence[int]) -> bool:
        """Whether the devices have all finished, and not just now."""
        if not self._have_finished(needed):
            return False
        return (
            time.monotonic_ns() - max(self._when[device] for device, number in enumerate(needed) if number)
            > LATE_AFTER_NS
        )

    def _has_slept(self, numbers: Sequence[int], comes_soon: Callable[[], bool], within_s: float) -> bool:
        """Whether the devices have all finished after this thread has slept, for the last of them or of its core."""
        end_s = time.perf_counter() + within_s
        needed = self._needed
        try:
            needed[:-1] = array("l", numbers)
            while True:
                needed[-1] = 1
                fence()
                seen = self._last[0]
                if self._have_finished(numbers):
                    return True
                left_s = end_s - time.perf_counter()
                if left_s <= 0:
                    return False
                self._own.sleep(seen, timespec(left_s))
                needed[-1] = 0
                if self._have_finished(numbers) or (time.perf_counter() < end_s and comes_soon()):
                    return True
        finally:
            needed[-1] = 0
