"""Devices that share memory, each in a thread of the test's own process."""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tinyshard.runtime.collectives.shm import SharedMemoryCommunicator
from tinyshard.runtime.shm import segment
from tinyshard.runtime.shm.allocator import Arena


def communicators_of(count: int) -> list[SharedMemoryCommunicator]:
    """The ends of `count` devices."""
    fd = segment.create(count)
    made = [SharedMemoryCommunicator(Arena(fd, count, member)) for member in range(count)]
    os.close(fd)
    return made


def of_each(devices: Iterable[int], call: Callable[[int], Any]) -> dict[int, Any]:
    """What each of these devices returns or raises, when all call at the same time; none may wait for ever."""
    ended = {}

    def run(device: int) -> None:
        try:
            ended[device] = call(device)
        except Exception as error:  # it is what a test may ask about
            ended[device] = error

    threads = [threading.Thread(target=run, args=(device,), daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads), "one of them waits for another for ever"
    return ended
