"""The memory of one device, counted while it runs, with a limit.

A storage counts once for all its values, from the first value to the last:

    memory.check(nbytes)    before values are made: raises MemoryError if they do not fit
    memory.hold(values)     they are in a slot of a program, or kept for an Array
    memory.let_go(values)   they are removed from it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tinyshard.runtime.failure import mebibytes


class Memory:
    """The memory of one device.

    Args:
        limit_nbytes: the largest number of bytes that it may hold.

    Attributes:
        in_use_nbytes: held now.
        peak_nbytes: the largest number of bytes held at a time.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.in_use_nbytes = 0
        self.peak_nbytes = 0
        self._storages: dict[int, list[int]] = {}  # its address -> the number of its values, its bytes

    def check(self, nbytes: int = 0) -> None:
        """Raise MemoryError if this many more bytes would be over the limit."""
        if self.in_use_nbytes + nbytes > self.limit_nbytes:
            raise MemoryError(
                f"{mebibytes(nbytes)} asked where {mebibytes(self.in_use_nbytes)} are held; "
                f"the limit of a device is {mebibytes(self.limit_nbytes)} (memory_per_device)"
            )

    def hold(self, values: Iterable[Any]) -> None:
        """Count the storages of these values; a value that is not a tensor does not count."""
        for x in values:
            if not isinstance(x, torch.Tensor):
                continue
            storage = x.untyped_storage()
            counted = self._storages.get(storage.data_ptr())
            if counted is not None:
                counted[0] += 1
            # the local runtime makes one storage for the results of all devices: each has its part
            elif nbytes := min(storage.nbytes(), x.nbytes):
                self._storages[storage.data_ptr()] = [1, nbytes]
                self.in_use_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.in_use_nbytes)

    def let_go(self, values: Iterable[Any]) -> None:
        """Undo `hold`; call it once for each value."""
        for x in values:
            if not isinstance(x, torch.Tensor):
                continue
            start = x.untyped_storage().data_ptr()
            counted = self._storages.get(start)
            if counted is not None:
                counted[0] -= 1
                if not counted[0]:
                    del self._storages[start]
                    self.in_use_nbytes -= counted[1]

    def stats(self) -> dict[str, int]:
        """The result of `Device.memory_stats`."""
        return {
            "bytes_in_use": self.in_use_nbytes,
            "peak_bytes_in_use": self.peak_nbytes,
            "bytes_limit": self.limit_nbytes,
        }
