"""A call that the thread which is about to wait for it hands out itself, so that no other thread has to wake for it.

KeyboardInterrupt may strike that thread between any two steps. So what is to be done is written down first, each step
may be done again, and whoever takes the dispatcher's `carrying` next does what is left.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyshard.runtime import wire
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.controller.refs import Watch
from tinyshard.runtime.shm.control_block import EAGER_NBYTES
from tinyshard.runtime.stream import Streams


@dataclass(slots=True)
class Publication:
    """One call on its way.

    Attributes:
        item: of the queue; it stays there until all else is done.
        run: the call.
        message: what they are to read.
        counts: by device of the pool, how many bytes will have been written to it.
        released: what nobody holds any more, which the message tells them.
    """

    item: tuple[Any, ...]
    run: Run
    message: memoryview
    counts: array[int]
    released: Sequence[Watch]


def plan(
    item: tuple[Any, ...], links: Sequence[Link], known: set[int], released: Sequence[Watch], streams: Streams
) -> Publication | None:
    """What there is to do for an item of the queue while no device is lost; None if it is not that simple.

    Args:
        item: of the queue.
        links: to all devices.
        known: the devices that have the program.
        released: what nobody holds any more and this call is to tell of, the oldest first.
        streams: the rings to all devices.
    """
    _, _, run, program, inputs, outputs = item
    devices = run.devices
    if not known.issuperset(devices):
        return None
    for device in devices:
        if links[device].nbytes:
            return None
    free: list[int] = []
    late: list[int] = []
    has_time = program.largest_nbytes <= EAGER_NBYTES  # it needs no memory that others leave
    for watch in released:
        if watch.devices != devices:  # other devices are to be told of it
            return None
        is_small = has_time and watch.block is not None and watch.block.nbytes <= EAGER_NBYTES
        (late if is_small else free).append(watch.number)
    message = wire.frame_of_call(run.number, program.number, inputs, outputs, free, late)
    counts = streams.counts_after(devices, len(message))
    return None if counts is None else Publication(item, run, message, counts, released)
