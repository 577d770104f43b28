"""The first part of the shared memory: who has come how far, and small messages between devices."""

from __future__ import annotations

import numpy as np

LETTER_WORDS = 8
NOTES = 4
NOTE_NBYTES = 1 << 15
_LINE_NBYTES = 64


def nbytes(count: int) -> int:
    """How large it is for `count` devices and a controller: whole pages."""
    members = count + 1
    counters = 8 * members * _padded(members)
    each = 3 * _LINE_NBYTES + LETTER_WORDS * 8 + NOTES * NOTE_NBYTES
    numbers = 2 * members * members + _LINE_NBYTES
    return -(-(2 * counters + numbers + members * each) // 4096) * 4096


def _padded(members: int) -> int:
    """Counters in a row, so that a row has cache lines of its own."""
    return -(-members // 8) * 8


class Board:
    """Arrays over it. What has a row for each member is written by that member alone.

    Args:
        memory: `nbytes(count)` of it.
        count: number of devices.

    Attributes:
        ready, done: counters of `Signals`: I have put there what you are to read; I have read what you had put there.
        ready_sleeping, done_sleeping: who sleeps for whom.
        pids: process ids.
        finished: the number of the last call that a device has finished.
        awaited: in the controller's line: 1 + the device for whose `finished` it sleeps.
        told: how many failures a device has told the controller of.
        letters: a few numbers to all readers of an exchange.
        numbers: by writer, reader and parity of their signals: in which note the writer's operand is.
        note_offset: where the bytes of small operands start: NOTES notes of NOTE_NBYTES for each member.
    """

    def __init__(self, memory: np.ndarray, count: int) -> None:
        members = count + 1
        self._memory = memory
        self._at = 0
        columns = _padded(members)
        self.ready = self._take(np.int64, members, columns)[:, :members]
        self.done = self._take(np.int64, members, columns)[:, :members]
        lines = self._take(np.int64, members, _LINE_NBYTES // 8)
        sleeping = self._take(np.int64, members, _LINE_NBYTES // 8)
        self.ready_sleeping, self.done_sleeping = sleeping[:, 0], sleeping[:, 1]
        own = self._take(np.int64, members, _LINE_NBYTES // 8)
        self.finished, self.told = lines[:, 0], lines[:, 1]
        self.pids, self.awaited = own[:, 0], own[:, 1]
        self.letters = self._take(np.int64, members, LETTER_WORDS)
        self.numbers = self._take(np.uint8, members, members, 2)
        self._at = -(-self._at // _LINE_NBYTES) * _LINE_NBYTES
        self.note_offset = self._at
        self._take(np.uint8, members, NOTES, NOTE_NBYTES)

    def _take(self, dtype: type, *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        taken: np.ndarray = self._memory[self._at : self._at + size].view(dtype).reshape(shape)
        self._at += size
        return taken
