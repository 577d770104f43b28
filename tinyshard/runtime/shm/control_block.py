"""The first part of the shared memory: who has come how far, what the devices are told, and their small messages."""

from __future__ import annotations

import numpy as np

LETTER_WORDS = 4
NOTES = 4
NOTE_NBYTES = 1 << 15
STREAM_NBYTES = 1 << 18
_LINE_NBYTES = 64


def nbytes(count: int) -> int:
    """How large it is for `count` devices and a controller: whole pages."""
    members = count + 1
    counters = 8 * members * _padded(members)
    each = 2 * _LINE_NBYTES + NOTES * (LETTER_WORDS * 8 + 2 * NOTE_NBYTES)
    told = (4 + 5 * _padded(members) // 8) * _LINE_NBYTES + count * STREAM_NBYTES
    return -(-(2 * counters + told + members * each) // 4096) * 4096


def _padded(members: int) -> int:
    """Counters in a row, so that a row has cache lines of its own."""
    return -(-members // 8) * 8


class Board:
    """Arrays over it. What has a row for each member is written by that member alone; what devices are told, by the
    controller.

    Args:
        memory: `nbytes(count)` of it.
        count: number of devices.

    Attributes:
        signals, gates: of `Signals`.
        read: the last exchange of which a device has read the letters or the notes, of operands and of results, as it
            counts them.
        made: the last exchange of which a device has noted the result, or made the part of its crew.
        claimed: of the last exchange with a crew, twice its number, and one more if the device found itself the last.
        adding: the exchange whose operands a device waits for to add them up (`adding`); 0 if it does not.
        pids: process ids.
        adopted: how often a member has begun, or ended, to hold a block that another member held: odd in between.
        finished: the number of the last call that a device has finished.
        when: at what time it did, in nanoseconds of the system's monotonic clock.
        needed: by device, the call for which the controller sleeps; then, if it does, on which core it fell asleep:
            that number and 2, or 1 if it is not known; else 0.
        last: whichever device finishes the last of these calls changes it, or that of its core (`progress`).
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
        letters: a few numbers to all readers of an exchange, NOTES of them for each member.
        note_offset, result_offset: where the bytes of small operands, and of their results, start: NOTES notes of
            NOTE_NBYTES for each member.
    """

    def __init__(self, memory: np.ndarray, count: int) -> None:
        members = count + 1
        self._memory = memory
        self._at = 0
        columns = _padded(members)
        self.signals = self._take(np.int64, members, columns, 2)
        self.gates = self._take(np.int64, columns)
        lines = self._take(np.int64, members, _LINE_NBYTES // 8)
        own = self._take(np.int64, members, _LINE_NBYTES // 8)
        self.finished, self.told, self.taken, self.read, self.made, self.when, self.claimed, self.adding = (
            lines[:, column] for column in range(8)
        )
        self.pids, self.adopted = own[:, 0], own[:, 1]
        self.letters = self._take(np.int64, members, NOTES, LETTER_WORDS)
        self._at = -(-self._at // _LINE_NBYTES) * _LINE_NBYTES
        self.note_offset = self._at
        self._take(np.uint8, members, NOTES, NOTE_NBYTES)
        self.result_offset = self._at
        self._take(np.uint8, members, NOTES, NOTE_NBYTES)
        self.bell = self._take(np.int64, _LINE_NBYTES // 8)
        self.unseen = self.bell[2:]
        self.last = self._take(np.int64, _LINE_NBYTES // 8)
        self.crowded = self._take(np.int64, _LINE_NBYTES // 8)
        self.needed = self._take(np.int64, columns)[:members]
        self.asleep = self._take(np.int64, columns)
        self.written, self.wants_room = self._take(np.int64, columns), self._take(np.int64, columns)
        self.streams = self._take(np.uint8, count, STREAM_NBYTES)

    def _take(self, dtype: type, *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        taken: np.ndarray = self._memory[self._at : self._at + size].view(dtype).reshape(shape)
        self._at += size
        return taken
