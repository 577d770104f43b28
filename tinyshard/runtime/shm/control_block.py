"""The first part of the shared memory, of fixed layout: how far each device is, and the small messages of exchanges."""

from __future__ import annotations

import mmap

import numpy as np

from tinyshard.runtime.shm import monitor, system
from tinyshard.runtime.shm.monitor import Monitor

# operands up to this size travel in slots of this part, larger ones in blocks of the arena
EAGER_NBYTES = 1 << 15
# of each device; an exchange uses the one that its number names
EAGER_SLOTS = 4
# the log of calls
LOG_NBYTES = 8 << 20
_LINE_NBYTES = 64

# how far a device is with its calls, guarded by a monitor of its own
CALLS = np.dtype(
    [
        ("announced", np.int64),  # up to where the log was written, as far as it has been told
        ("taken", np.int64),  # up to where it has read the log; both in bytes since the log began
        ("finished", np.int64),  # the number of the last call that it has finished
        ("failed", np.int64),  # failures of which it has sent word to the controller
        ("awaited", np.int64),  # the call for whose end the controller sleeps, or 0
        ("padding", np.int64, 3),  # a cache line for each device
    ]
)
# what a device says in exchanges, guarded by their monitor; `shm.barrier` tells what the first three mean
EXCHANGE = np.dtype(
    [
        ("arrived", np.int64),
        ("released", np.int64),
        ("left", np.int64),
        ("maker", np.int64),  # the device that came last to the exchange that this one passed last
        ("awaits_left", np.int64),  # 1 while it waits until others have left an exchange
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
    Monitor(control._exchange_monitor, count, is_new=True)
    for device in range(count):
        Monitor(control._call_monitors[device], is_new=True)
    for member in range(count + 1):
        Monitor(control._holders_monitors[member], 0, is_new=True)


class ControlBlock:
    """Arrays over it.

    Args:
        memory: `nbytes(count)` of it.
        count: number of devices.

    Attributes:
        exchanges: EXCHANGE, by device.
        eager_offset: where the bytes of small operands start: for each device EAGER_SLOTS slots, each with a place of
            EAGER_NBYTES for the operand and one for the result.
        calls: CALLS, by device.
        log: uint8[LOG_NBYTES], the records' bytes, a ring.
        nbytes: of all of it, whole pages.
    """

    def __init__(self, memory: np.ndarray, count: int) -> None:
        members = count + 1
        self._memory = memory
        self._at = 0
        self._exchange_monitor = self._take(np.uint8, monitor.nbytes(count))
        self._call_monitors = self._take(np.uint8, count, monitor.nbytes(1))
        self._holders_monitors = self._take(np.uint8, members, monitor.nbytes(0))
        self.exchanges = self._take(EXCHANGE, count)
        self.calls = self._take(CALLS, count)
        self.eager_offset = self._at
        self._take(np.uint8, count, EAGER_SLOTS, 2, EAGER_NBYTES)
        self.log = self._take(np.uint8, LOG_NBYTES)
        self.nbytes = -(-self._at // system.PAGE_NBYTES) * system.PAGE_NBYTES
        self._count = count

    def call_monitor(self, device: int) -> Monitor:
        """What guards the device's row of `calls`. It waits on the condition for the next record."""
        return Monitor(self._call_monitors[device])

    def holders_monitor(self, member: int) -> Monitor:
        """What guards the table of the holders of the member's blocks."""
        return Monitor(self._holders_monitors[member], 0)

    def exchange_monitor(self) -> Monitor:
        """What guards `exchanges`, with a condition for each device."""
        return Monitor(self._exchange_monitor, self._count)

    def _take(self, dtype: object, *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
        start = self._at
        self._at = -(-(start + size) // _LINE_NBYTES) * _LINE_NBYTES
        if not self._memory.size:  # asked for the size alone
            return np.empty(shape, dtype)  # type: ignore[call-overload]
        taken: np.ndarray = self._memory[start : start + size].view(dtype).reshape(shape)  # type: ignore[call-overload]
        return taken
