"""The first part of the shared memory, of known layout: who has come how far, and the small messages of exchanges."""

from __future__ import annotations

import mmap

import numpy as np

from tinyshard.runtime.shm import monitor
from tinyshard.runtime.shm.monitor import Monitor

# operands up to this size travel in slots of this part, larger ones in blocks of the arena
EAGER_NBYTES = 1 << 15
# of each device; an exchange uses the one that its number names
EAGER_SLOTS = 4
STREAM_NBYTES = 1 << 18
_LINE_NBYTES = 64

# what a device says in exchanges, guarded by their monitor; `shm.barrier` tells what the first three mean
EXCHANGE = np.dtype(
    [
        ("arrived", np.int64),
        ("released", np.int64),
        ("left", np.int64),
        ("maker", np.int64),  # the device that came last to the exchange that this one passed last
        # where its operand lies, or that it has none or no room for it; and a block: owner, slot, offset
        ("message", np.int64, 4),
    ]
)


def nbytes(count: int) -> int:
    """How large it is for `count` devices and a controller: whole pages."""
    return ControlBlock(np.empty(0, np.uint8), count).nbytes


def initialise(memory: mmap.mmap, count: int) -> None:
    """Make the monitors in fresh memory; to be done once, before any process uses it."""
    control = ControlBlock(np.frombuffer(memory, np.uint8), count)
    Monitor(control._exchange_monitor, count + 1, is_new=True)


class ControlBlock:
    """Arrays over it.

    Args:
        memory: `nbytes(count)` of it.
        count: number of devices.

    Attributes:
        exchanges: EXCHANGE, by device.
        eager_offset: where the bytes of small operands start: for each device EAGER_SLOTS slots, each with a place of
            EAGER_NBYTES for the operand and one for the result.
        adopted: how often a member has begun, or ended, to hold a block that another member held: odd in between.
        finished: the number of the last call that a device has finished.
        when: at what time it did, in nanoseconds of the system's monotonic clock.
        needed: by device, the call for which the controller sleeps; then, if it does, 1, else 0.
        last: whichever device finishes the last of these calls changes it (`progress`).
        told: how many failures a device has told the controller of.
        bell: how often the controller has told devices that it has written to them; and when, in nanoseconds.
        unseen: 1 if it has published a call (`Streams.publish`) since it last saw here that what it waited for is over
            (`progress.Overview`). It only says for how long it is worth yielding.
        crowded: until when nobody is to let others run, and for how long that was said, as anyone writes it
            (`tinyshard.runtime.yielding`).
        asleep: by device, whether it sleeps until the bell rings, or is about to.
        streams: by device, the bytes that the controller writes to it, in a ring (`tinyshard.runtime.stream`).
        written, taken: how many bytes of them the controller has written, and the device has taken.
        wants_room: how often the controller has found a ring full.
        nbytes: of all of it, whole pages.
    """

    def __init__(self, memory: np.ndarray, count: int) -> None:
        members = count + 1
        self._memory = memory
        self._at = 0
        self._exchange_monitor = self._take(np.uint8, monitor.nbytes(members))
        self.exchanges = self._take(EXCHANGE, count)
        lines = self._take(np.int64, members, _LINE_NBYTES // 8)
        self.finished, self.told, self.taken, self.when = (lines[:, column] for column in range(4))
        self.adopted = self._take(np.int64, members, _LINE_NBYTES // 8)[:, 0]
        self.eager_offset = self._at
        self._take(np.uint8, count, EAGER_SLOTS, 2, EAGER_NBYTES)
        self.bell = self._take(np.int64, _LINE_NBYTES // 8)
        self.unseen = self.bell[2:]
        self.last = self._take(np.int64, _LINE_NBYTES // 8)
        self.crowded = self._take(np.int64, _LINE_NBYTES // 8)
        self.needed, self.asleep = self._take(np.int64, members), self._take(np.int64, members)
        self.written, self.wants_room = self._take(np.int64, members), self._take(np.int64, members)
        self.streams = self._take(np.uint8, count, STREAM_NBYTES)
        self.nbytes = -(-self._at // 4096) * 4096
        self._count = count

    def exchange_monitor(self) -> Monitor:
        """What guards `exchanges`: a condition for each device, and one for who waits until others have left."""
        return Monitor(self._exchange_monitor, self._count + 1)

    def _take(self, dtype: object, *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
        start = self._at
        self._at = -(-(start + size) // _LINE_NBYTES) * _LINE_NBYTES
        if not self._memory.size:  # asked for the size alone
            return np.empty(shape, dtype)  # type: ignore[call-overload]
        taken: np.ndarray = self._memory[start : start + size].view(dtype).reshape(shape)  # type: ignore[call-overload]
        return taken
