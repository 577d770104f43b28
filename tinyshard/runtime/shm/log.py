"""The log of calls: the controller appends a record once, and every device that it concerns takes it out in order.

A record's bytes stand in one ring for all devices. Each device has a list of where the records for it stand, and reads
no others. The controller writes the bytes and the list, then raises the device's count under the device's monitor; so
an interrupt before that leaves nothing, and after it everything.

A device that is stopped keeps its records, and the log's space from the oldest of them on: after `LOG_NBYTES` of other
devices' records, some 30,000 calls, the log is full until it goes on or dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import gt

from tinyshard.runtime.shm.control_block import ENTRIES, LOG_NBYTES, ControlBlock

# a longer record would let too little of the log for the others: it goes by the socket
LARGEST_RECORD_NBYTES = LOG_NBYTES // 8
# how long the controller waits for a device's mutex: a device that has it does a few statements, or is stopped
_ACQUIRES_WITHIN_S = 1e-3
# for so long a device looks for the next call before it sleeps: a look takes the core from the controller, which has
# none of its own
_LOOK_S = 2e-4


@dataclass(frozen=True, slots=True)
class Placement:
    """Where records are to stand. To write them again changes nothing.

    Attributes:
        records: where each begins, in bytes since the log began, and its bytes.
        entries: device, place in its list, and index into `records`.
        counts: by device, how many records it has then.
        end: where the next record may begin.
    """

    records: Sequence[tuple[int, bytes]]
    entries: Sequence[tuple[int, int, int]]
    counts: Sequence[int]
    end: int


class CallLog:
    """The controller's end. One thread at a time may use it.

    Args:
        control: the shared memory's first part.
    """

    def __init__(self, control: ControlBlock) -> None:
        count = len(control.calls)
        self._monitors = [control.call_monitor(device) for device in range(count)]
        self._announced, self._taken = control.calls["announced"].data, control.calls["taken"].data
        self._begins = [control.entries[device]["begin"].data for device in range(count)]
        self._sizes = [control.entries[device]["nbytes"].data for device in range(count)]
        self._ring = control.log.data
        self._end = 0
        self._counts = [0] * count
        self._told = [0] * count  # which of these counts each device has been told
        self._seen = [0] * count  # how many records each device had taken, when that was last looked at
        self._most = [ENTRIES] * count  # so many its list has room for
        self._free_upto = LOG_NBYTES

    def place(self, records: Sequence[tuple[Sequence[int], bytes]]) -> Placement | None:
        """Where records would stand; None if there is no room for all of them now.

        Args:
            records: devices that are to have it, and its bytes.
        """
        at, counts = self._end, self._counts.copy()
        placed: list[tuple[int, bytes]] = []
        entries = []
        for devices, record in records:
            if at % LOG_NBYTES + len(record) > LOG_NBYTES:  # in one piece
                at += LOG_NBYTES - at % LOG_NBYTES
            for device in devices:
                entries.append((device, counts[device] % ENTRIES, len(placed)))
                counts[device] += 1
            placed.append((at, record))
            at += -(-len(record) // 8) * 8
        if at > self._free_upto or any(map(gt, counts, self._most)):
            self._look_again()
            if at > self._free_upto or any(map(gt, counts, self._most)):
                return None
        return Placement(placed, entries, counts, at)

    def _look_again(self) -> None:
        """See how many records the devices have taken, and so how far the log is free."""
        oldest = self._end
        for device, monitor in enumerate(self._monitors):
            try:
                if monitor.acquire(_ACQUIRES_WITHIN_S):
                    self._seen[device] = max(self._seen[device], self._taken[device])
            finally:
                monitor.release()
            seen = self._seen[device]
            self._most[device] = seen + ENTRIES
            if seen < self._counts[device]:
                oldest = min(oldest, self._begins[device][seen % ENTRIES])
        self._free_upto = oldest + LOG_NBYTES

    def publish(self, placement: Placement) -> bool:
        """Write records and let the devices see them; False if one of them cannot be told now (`announce`)."""
        for begin, record in placement.records:
            at = begin % LOG_NBYTES
            self._ring[at : at + len(record)] = record
        for device, place, index in placement.entries:
            begin, record = placement.records[index]
            self._begins[device][place], self._sizes[device][place] = begin, len(record)
        self._counts, self._end = placement.counts, placement.end  # type: ignore[assignment]
        return self.announce()

    def announce(self) -> bool:
        """Tell devices of their records; False if one is stopped with its mutex in hand, and is to be told later."""
        is_whole = True
        if self._told == self._counts:
            return True
        for device, monitor in enumerate(self._monitors):
            count = self._counts[device]
            if self._told[device] == count:
                continue
            try:
                if not monitor.acquire(_ACQUIRES_WITHIN_S):
                    is_whole = False
                    continue
                self._announced[device] = count
            finally:
                monitor.release()
            monitor.notify_all()
            self._told[device] = count
        return is_whole

    def drop(self, device: int) -> None:
        """A device is gone: its records keep no room any more."""
        self._seen[device] = self._told[device] = self._counts[device]


class LogReader:
    """A device's end.

    Args:
        control: the shared memory's first part.
        device: its id.
    """

    def __init__(self, control: ControlBlock, device: int) -> None:
        self._monitor = control.call_monitor(device)
        self._announced = control.calls["announced"].data
        self._all_taken = control.calls["taken"].data
        self._begins = control.entries[device]["begin"].data
        self._sizes = control.entries[device]["nbytes"].data
        self._ring = control.log.data
        self._device = device
        self._taken = 0

    def take(self) -> bytes:
        """Wait for the next record, and take it out."""
        record: bytes = self._monitor.wait_until(self._is_there, look_s=_LOOK_S, then=self._take)
        return record

    def _is_there(self) -> bool:
        return self._announced[self._device] > self._taken

    def _take(self) -> bytes:
        place = self._taken % ENTRIES
        at = self._begins[place] % LOG_NBYTES
        record = self._ring[at : at + self._sizes[place]].tobytes()
        self._taken += 1
        self._all_taken[self._device] = self._taken
        return record
