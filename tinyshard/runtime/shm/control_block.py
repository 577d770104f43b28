"""The first part of the shared memory, of fixed layout: each device's progress, and the small messages of exchanges."""

from __future__ import annotations

import mmap

import numpy as np

from tinyshard.runtime.shm import monitor, system
from tinyshard.runtime.shm.monitor import Monitor
from tinyshard.runtime.shm.waking import HAS_FUTEX, FutexWaking, Waking

# operands up to this size are sent in slots of this part, larger ones in blocks of the arena: for these a second
# barrier takes less time than copies, and a sum that one device computes for all. Unused slots have no pages
EAGER_NBYTES = 1 << 19
# slots are smaller where all of them would be more than this
ALL_EAGER_NBYTES, LEAST_EAGER_NBYTES = 1 << 25, 1 << 15
# in slots and blocks, operands, parts of large ones and lists start at multiples of it, so that vector instructions
# compute the same
ALIGNED_NBYTES = 256
# of each device; an exchange's number determines its slot
EAGER_SLOTS = 4
# the log of calls
LOG_NBYTES = 8 << 20

# a device's progress with its calls; `shm.waking` says how a process reads what another one has written
CALLS = np.dtype(
    [
        ("announced", np.int64),  # the end of the log that was announced to it
        ("taken", np.int64),  # up to where it has read the log; both in bytes since the log began
        ("finished", np.int64),  # the number of the last call that it has finished
        ("awaited", np.int64),  # the last call for whose end the controller has slept
        ("padding", np.int64, 4),  # a cache line for each device
    ]
)
# a device's entry for exchanges, guarded by their monitor; `shm.barrier` explains the first three
EXCHANGE = np.dtype(
    [
        ("arrived", np.int64),
        ("released", np.int64),
        ("left", np.int64),
        ("awaits_left", np.int64),  # 1 while it waits until other devices have left an exchange
        # where its operand is, or that it has none or no room for it; and a block: owner, slot, offset
        ("message", np.int64, 4),
    ]
)


def aligned(nbytes: int) -> int:
    """A size rounded up, so that what comes next is aligned.

    Example:
        >>> aligned(1), aligned(256), aligned(257)
        (256, 256, 512)
    """
    return -(-nbytes // ALIGNED_NBYTES) * ALIGNED_NBYTES


def eager_nbytes(count: int) -> int:
    """The size of a slot where there are `count` devices."""
    share = ALL_EAGER_NBYTES // (count * EAGER_SLOTS * 2) // ALIGNED_NBYTES * ALIGNED_NBYTES
    return min(EAGER_NBYTES, max(LEAST_EAGER_NBYTES, share))


def layout(count: int) -> np.dtype[np.void]:
    """All of it for `count` devices and a controller: each entry begins a cache line.

    A device has EAGER_SLOTS slots for small collectives, each with room for its operand and for the result.
    """
    return np.dtype(
        [
            ("waking", np.int32, (16,)),  # a word alone in its cache line
            ("exchange_monitor", np.uint8, (monitor.NBYTES,)),
            ("call_monitors", np.uint8, (count, monitor.NBYTES)),
            ("holders_monitors", np.uint8, (count + 1, monitor.NBYTES)),
            ("calls", CALLS, (count,)),
            ("eager", np.uint8, (count, EAGER_SLOTS, 2, eager_nbytes(count))),
            ("log", np.uint8, (LOG_NBYTES,)),
            ("exchanges", EXCHANGE, (count,)),
        ]
    )


def nbytes(count: int) -> int:
    """Its size: whole pages."""
    return -(-layout(count).itemsize // system.PAGE_NBYTES) * system.PAGE_NBYTES


def initialise(memory: mmap.mmap, count: int) -> None:
    """Make the monitors in fresh memory; to be done once, before any process uses it."""
    rows = np.frombuffer(memory, layout(count), 1)[0]
    for row in (rows["exchange_monitor"], *rows["call_monitors"], *rows["holders_monitors"]):
        Monitor(row, is_new=True)


class ControlBlock:
    """Arrays over it.

    Args:
        memory: `nbytes(count)` of it.
        count: number of devices.

    Attributes:
        exchanges: EXCHANGE, by device.
        exchange_monitor: guards them.
        holders_monitors: by member, that of the table of the holders of its blocks.
        eager_offset: where the bytes of small operands start.
        eager_nbytes: the size of a slot for them.
        calls: CALLS, by device.
        log: uint8[LOG_NBYTES], the records' bytes, a ring.
    """

    def __init__(self, memory: np.ndarray, count: int) -> None:
        whole = layout(count)
        self._rows = memory[: whole.itemsize].view(whole)[0]
        self.exchanges, self.calls, self.log = self._rows["exchanges"], self._rows["calls"], self._rows["log"]
        self.eager_offset: int = whole.fields["eager"][1]  # type: ignore[index]
        self.eager_nbytes = eager_nbytes(count)
        self.exchange_monitor = Monitor(self._rows["exchange_monitor"])
        self.holders_monitors = [Monitor(row) for row in self._rows["holders_monitors"]]
        self._waking: dict[int, Waking] = {}

    def waking(self, own: int) -> Waking:
        """A device's end of the waking, or with -1 the controller's. There is one for each process."""
        if own not in self._waking:
            kind = FutexWaking if HAS_FUTEX else Waking
            monitors = [Monitor(row) for row in self._rows["call_monitors"]]
            self._waking[own] = kind(self._rows["waking"][:1], monitors, own)
        return self._waking[own]
