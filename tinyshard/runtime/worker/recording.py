"""The records of a device while a trace is on: each step of its programs, with its start and its end.

    recording.begin(call)                                a call starts
    recording.note(program, step, exchange, start_ns)    a step ends, which `one_by_one` has run: no program's function
                                                         is called while a trace is on

A record is a row of six ints in a bounded buffer:

    call, program, step, exchange, start, end
      step: position in the program; CALL for the call as a whole
      exchange: its number in the call; NO_EXCHANGE for a step without other devices
      start, end: by the monotonic clock, which the processes of one host share, in ns

A wait for other devices has no record: it lasts until the last device of an exchange has started it, which
follows from the records of all devices (`tinyshard.profiler`).
"""

from __future__ import annotations

import time
from array import array

import torch

FIELDS = 6
CALL = NO_EXCHANGE = -1
# of one device, 6 MB: then the older half is dropped
MOST_RECORDS = 1 << 17


class Recording:
    """The records of one device.

    Args:
        place: its GPU, which is synchronized at the end of each step; None for the CPU.
    """

    def __init__(self, place: torch.device | None = None) -> None:
        self._place = place
        self._dropped = 0
        self._rows = array("q")
        self._call = 0

    def taken(self) -> tuple[bytes, int]:
        """All records, and the number of dropped ones."""
        return self._rows.tobytes(), self._dropped

    def begin(self, number: int) -> None:
        """Start a call: the following steps belong to it."""
        self._call = number

    def note(self, program: int, step: int, exchange: int, start_ns: int) -> None:
        """Record a step of the present call, which ends now."""
        if self._place is not None:
            torch.cuda.synchronize(self._place)
        self._rows.extend((self._call, program, step, exchange, start_ns, time.monotonic_ns()))
        if len(self._rows) > MOST_RECORDS * FIELDS:
            half = MOST_RECORDS // 2
            del self._rows[: half * FIELDS]
            self._dropped += half
