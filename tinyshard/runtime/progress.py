"""How far the devices are, read from the memory that they share with the controller: nobody asks, nobody answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from tinyshard.runtime.board import Board

# then it is worth a message: the devices compute for longer than one takes
YIELDS = 60


class Progress:
    """A device's own two numbers.

    Args:
        board: the shared memory's first part.
        device: whose they are.
    """

    def __init__(self, board: Board, device: int) -> None:
        self._finished = board.finished.data
        self._told = board.told.data
        self._device = device

    def finish(self, number: int) -> None:
        """Note that a call is over."""
        self._finished[self._device] = number

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
        self.told = board.told.data

    def wait_a_moment(self, needs: Mapping[int, int], is_over: Callable[[], bool]) -> list[int] | None:
        """Wait until each device has finished the call that is needed of it, if that is soon.

        Args:
            needs: by device, the number of a call.
            is_over: whether nothing that devices have said is still on its way: failures, and what they print.

        Returns:
            By device, the last call that it has finished and of which `is_over` holds; None if it takes longer.
        """
        finished = self._finished
        yields = YIELDS
        for device, number in needs.items():
            while finished[device] < number:
                if not yields:
                    return None
                yields -= 1
                _let_others_run()
        seen = finished[: self._count].tolist()  # before the look at what is on its way: that of later calls may be
        while not is_over():
            if not yields:
                return None
            yields -= 1
            _let_others_run()
        return seen


def _let_others_run() -> None:
    time.sleep(0)  # other threads of this process: sched_yield alone keeps the interpreter's lock
    os.sched_yield()
