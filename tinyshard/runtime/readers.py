"""Who still reads what this device gave in its last exchanges: only then is it written anew."""

from __future__ import annotations

from tinyshard.runtime.shm.control_block import NOTES
from tinyshard.runtime.signals import Signals

NOBODY: tuple[tuple[int, ...], list[int]] = ((), [])


class Readers:
    """The readers of this device's letters and notes, of which an exchange uses those that its number names.

    Args:
        read: int64, in shared memory: by device, the last exchange of which it has read them, as it says itself.
        signals: how one waits for others.

    Attributes:
        awaited: by note, who they are, and which of its exchanges each must have read. Where that is NOBODY, there is
            nothing to wait for.
    """

    def __init__(self, read: memoryview, signals: Signals) -> None:
        self._read = read
        self._signals = signals
        self.awaited: list[tuple[tuple[int, ...], list[int]]] = [NOBODY] * NOTES

    def wait(self, number: int) -> None:
        """Wait until nobody reads what this exchange is to write anew. Raises PeerLostError if a reader is gone."""
        read = self._read
        for other, theirs in zip(*self.awaited[number % NOTES], strict=True):
            if read[other] < theirs:
                self._signals.wait_until(read, [other], [theirs])

    def note(self, number: int, others: tuple[int, ...], numbers: list[int]) -> None:
        """Others, who have all come, may still read what this exchange has written.

        Args:
            number: of the exchange.
            others: ids.
            numbers: as which of its exchanges each of them counts it.
        """
        awaited = self.awaited
        for earlier, (whom, _) in enumerate(awaited):
            if whom == others:  # they have come since, so they have read it
                awaited[earlier] = NOBODY
        awaited[number % NOTES] = (others, numbers)
