"""The log of calls: the controller appends each record once, and every device reads its records in order.

The records are in one ring of bytes. Each begins with its size and a bit for each device that it is for; other devices
skip it. The controller writes a record after the last one and then announces to each of its devices the offset up to
which the log is written. An interrupt before that has no effect; one between two devices leaves the rest of them in
`_untold`, for the next `announce`. Waking sleeping devices takes much longer, and is a separate step (`ring`).

A stopped device keeps the space from its oldest record on: after `LOG_NBYTES` of other devices' records
the log is full until the device continues or dies.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tinyshard.runtime.shm.control_block import LOG_NBYTES, ControlBlock

# a longer record would leave too little of the log for other records: it is sent by the socket
LARGEST_RECORD_NBYTES = LOG_NBYTES // 8
# size of a record, or that the rest of the ring is empty. The bits of the devices follow, and the record
_SIZE = struct.Struct("<Q")
_NO_MORE = (1 << 64) - 1


@dataclass(slots=True)
class Placement:
    """The position of records in the ring. Writing them again is idempotent.

    Attributes:
        pieces: the start of each piece of bytes in the ring, and the piece.
        devices: the devices that these records are for.
        end: where the next record begins, in bytes since the log began.
    """

    pieces: Sequence[tuple[int, bytes]]
    devices: set[int]
    end: int


class CallLog:
    """The controller's end. One thread at a time may use it."""

    def __init__(self, control: ControlBlock) -> None:
        count = len(control.calls)
        self._waking = control.waking(-1)
        self._announced, self._taken = control.calls["announced"].data, control.calls["taken"].data
        self._ring = control.log.data
        self._bits_nbytes = _bits_nbytes(count)
        self._end = 0
        self._free_upto = LOG_NBYTES
        self._there = set(range(count))
        self._untold: set[int] = set()  # devices with records that have not been announced to them
        self._unrung: set[int] = set()  # devices that got an announcement and may sleep

    def place(self, records: Sequence[tuple[Sequence[int], bytes]]) -> Placement | None:
        """The position of records, each with its devices; None if there is not room for all now."""
        end = self._end
        pieces: list[tuple[int, bytes]] = []
        for devices, record in records:
            whole = _SIZE.pack(len(record)) + _bits(tuple(devices), self._bits_nbytes) + record
            position = end % LOG_NBYTES
            if position + len(whole) > LOG_NBYTES:  # a record must be contiguous
                pieces.append((position, _SIZE.pack(_NO_MORE)))
                end += LOG_NBYTES - position
                position = 0
            pieces.append((position, whole))
            end += _padded(len(whole))
        if end > self._free_upto and not self._frees_upto(end):
            return None
        return Placement(pieces, set().union(*[devices for devices, _ in records]), end)

    def _frees_upto(self, end: int) -> bool:
        """Check how far the devices have read; whether the log may be written up to `end`."""
        # a device without new records has not read on
        self._untold |= {device for device in self._there if self._announced[device] < self._end}
        self.announce()
        self.ring()
        taken = self._waking.read(self._taken)
        kept = self._free_upto - LOG_NBYTES  # by a device that does not say how far it has read
        oldest = min((taken[device] if taken[device] >= 0 else kept for device in self._there), default=self._end)
        self._free_upto = oldest + LOG_NBYTES
        return end <= self._free_upto

    def publish(self, placement: Placement) -> bool:
        """Write records and announce them to their devices; False as `announce`."""
        ring = self._ring
        for position, piece in placement.pieces:
            ring[position : position + len(piece)] = piece
        self._untold |= placement.devices & self._there
        self._end = placement.end
        return self.announce()

    def announce(self) -> bool:
        """Announce the records to their devices; False if one is stopped while it holds its mutex: call it again.

        A device that is awake reads them at once; one that sleeps after `ring`, or a tenth of a second.
        """
        if not self._untold:
            return True
        told = self._waking.write(self._announced, self._untold, self._end)
        self._unrung.update(told)
        self._untold.difference_update(told)
        return not self._untold

    @property
    def has_unrung(self) -> bool:
        """Whether a device that got an announcement may sleep."""
        return bool(self._unrung)

    def ring(self) -> None:
        """Wake the devices that got an announcement since the last call."""
        self._unrung.difference_update(self._waking.wake(tuple(self._unrung)))

    def drop(self, device: int) -> None:
        """Note that a device is gone: its records do not take space any more."""
        for devices in (self._there, self._untold, self._unrung):
            devices.discard(device)


class LogReader:
    """A device's end."""

    def __init__(self, control: ControlBlock, device: int) -> None:
        self._waking = control.waking(device)
        self._announced, self._all_taken = control.calls["announced"].data, control.calls["taken"].data
        self._ring = control.log.data
        self._device = device
        self._bits_nbytes = _bits_nbytes(len(control.calls))
        self._byte, self._bit = device // 8, 1 << device % 8
        self._at = 0
        self._end_s = 0.0

    def take(self, within_s: float) -> list[bytes]:
        """Wait until there are records, for `within_s` at most, and take those that are for this device.

        Returns:
            The records: none after the time limit, or if the new ones are for other devices.
        """
        if self._announced[self._device] <= self._at:
            self._end_s = time.monotonic() + within_s
            self._waking.wait(self._is_there)
        ring, taken = self._ring, []
        position, end = self._at, self._waking.read_own(self._announced)
        while position < end:
            start = position % LOG_NBYTES
            (nbytes,) = _SIZE.unpack_from(ring, start)
            if nbytes == _NO_MORE:
                position += LOG_NBYTES - start
                continue
            bits = start + _SIZE.size
            record = bits + self._bits_nbytes
            if ring[bits + self._byte] & self._bit:
                taken.append(ring[record : record + nbytes].tobytes())
            position += _padded(record + nbytes - start)
        if position > self._at:
            self._at = position
            self._waking.write_own(self._all_taken, position)
        return taken

    def _is_there(self) -> bool:
        return self._announced[self._device] > self._at or time.monotonic() > self._end_s


def _padded(nbytes: int) -> int:
    """The next multiple of the size of `_SIZE`: so there is always room for one of those at the end of the ring."""
    return -(-nbytes // _SIZE.size) * _SIZE.size


def _bits_nbytes(count: int) -> int:
    return -(-count // 8)


@functools.lru_cache(maxsize=256)
def _bits(devices: tuple[int, ...], nbytes: int) -> bytes:
    """A bit for each of these devices, device 0's the lowest of the first byte."""
    return sum(1 << device for device in set(devices)).to_bytes(nbytes, "little")
