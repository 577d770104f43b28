"""How far the devices are, read from the memory that they share with the controller: nobody asks, nobody answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from tinyshard.runtime.board import Board
from tinyshard.runtime.futex import Futex, fence, timespec

# first yield, for what is short is over soon; then sleep
YIELD_FOR_S = 1e-4


class Progress:
    """A device's own two numbers.

    Args:
        board: the shared memory's first part.
        device: whose they are.
    """

    def __init__(self, board: Board, device: int) -> None:
        self._finished = board.finished.data
        self._told = board.told.data
        self._awaited = board.awaited.data
        self._own = Futex(board.finished[device:].ctypes.data)
        self._device = device

    def finish(self, number: int) -> None:
        """Note that a call is over."""
        self._finished[self._device] = number
        fence()
        if self._awaited[-1] == self._device + 1:
            self._own.wake()

    def tell(self) -> None:
        """Note that the controller was sent one more failure; before the call that failed is noted as over."""
        self._told[self._device] += 1


class Overview:
    """The controller's view of all devices.

    Args:
        board: the shared memory's first part.
    """

    def __init__(self, board: Board) -> None:
        self._finished = board.finished.data
        self._count = len(board.finished) - 1
        self._awaited = board.awaited.data
        self._of = [Futex(board.finished[device:].ctypes.data) for device in range(self._count)]
        self._waiting = threading.Lock()
        self.told = board.told.data

    def wait_a_moment(self, needs: Mapping[int, int], is_over: Callable[[], bool], within_s: float) -> list[int] | None:
        """Wait until each device has finished the call that is needed of it, if that is soon.

        Args:
            needs: by device, the number of a call.
            is_over: whether nothing that devices have said is still on its way: failures, and what they print.
            within_s: for how long to sleep for a device.

        Returns:
            By device, the last call that it has finished and of which `is_over` holds; None if it takes longer.
        """
        if self._waiting.acquire(blocking=False):
            try:
                end_s = time.perf_counter() + YIELD_FOR_S
                for device, number in needs.items():
                    while self._finished[device] < number and time.perf_counter() < end_s:
                        _let_others_run()
                    if not self._has_slept_for(device, number, within_s):
                        return None
            finally:
                self._waiting.release()
        elif any(self._finished[device] < number for device, number in needs.items()):
            return None  # there is one place to say for whom the controller sleeps, and another thread has it
        seen = self._finished[: self._count].tolist()  # before the look at what is said: later calls say more
        end_s = time.perf_counter() + YIELD_FOR_S
        while not is_over():
            if time.perf_counter() > end_s:
                return None
            _let_others_run()
        return seen

    def _has_slept_for(self, device: int, number: int, within_s: float) -> bool:
        """Whether the device has finished a call after this thread has slept, if it must, for it."""
        end_s, timeout = 0.0, None
        while (seen := self._finished[device]) < number:
            if not end_s:
                end_s, timeout = time.perf_counter() + within_s, timespec(within_s)
            elif time.perf_counter() > end_s:
                return False
            self._awaited[-1] = device + 1
            try:
                fence()
                self._of[device].sleep(seen, timeout)
            finally:
                self._awaited[-1] = 0
        return True


def _let_others_run() -> None:
    time.sleep(0)  # other threads of this process: sched_yield alone keeps the interpreter's lock
    os.sched_yield()
