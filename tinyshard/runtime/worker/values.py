"""The values that a device keeps, by number, and its memory, counted while it runs, with a limit.

In place of a value that could not be computed it keeps the Failure. A storage counts once for all its values, from the
first value to the last:

    memory.check(nbytes)    before values are made: raises MemoryError if they do not fit
    memory.hold(values)     they are in a slot of a program, or kept for an Array
    memory.let_go(values)   they are removed from it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tinyshard.core.types import ShapedType, tensor_bytes, tensor_of
from tinyshard.runtime.failure import failure_of, mebibytes, short
from tinyshard.runtime.shm.allocator import Arena, Block


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
                f"{mebibytes(nbytes)} requested while {mebibytes(self.in_use_nbytes)} are held; "
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


class Values:
    """The values of one device.

    Args:
        device: its id.
        arena: the memory shared with the controller and the other devices, if there is one.
        place: the GPU on which values are kept; None for the CPU.
        memory: counts the device's memory; None without a limit.

    Attributes:
        by_number: the values.
    """

    def __init__(self, device: int, arena: Arena | None, place: torch.device | None, memory: Memory | None) -> None:
        self._device = device
        self._arena = arena
        self._place = place
        self._memory = memory
        self.by_number: dict[int, Any] = {}

    def keep(self, number: int, value: Any) -> None:
        """Keep a new value."""
        self.by_number[number] = value
        if self._memory is not None:
            self._memory.hold((value,))

    def free(self, numbers: Iterable[int]) -> None:
        """Free those of these values that are kept."""
        for number in numbers:
            value = self.by_number.pop(number, None)
            if self._memory is not None:
                self._memory.let_go((value,))

    def put(self, number: int, shape: tuple[int, ...], dtype: torch.dtype, block: Block | None, payload: Any) -> None:
        """Keep a tensor from the controller: of bytes that it has sent, or in a block that it has lent.

        Raises:
            MemoryError: there is no memory for it.
        """
        tensor = None
        if block is not None:
            assert self._arena is not None
            tensor = self._arena.hold(block, shape, dtype)
        nbytes = ShapedType(shape, dtype).nbytes
        if self._memory is not None:
            self._memory.check(nbytes)
        if block is None and payload is None and nbytes:  # the reader had no memory for it
            raise MemoryError(f"no room for {nbytes} bytes")
        self.keep(number, tensor_of(payload, shape, dtype).to(self._place) if tensor is None else tensor)

    def fetch(self, number: int, wanted: Any) -> tuple[Any, memoryview | None]:
        """The answer to the controller, and a tensor's bytes; none if they are copied into a block that it has lent."""
        tensor = self.by_number.get(number)
        answer: Any = meta_of(tensor) or tensor  # a Failure, or None, if there is no tensor
        payload = None
        try:
            if isinstance(tensor, torch.Tensor):
                if wanted is None:
                    payload = tensor_bytes(tensor.cpu())
                else:
                    assert self._arena is not None
                    block, shape, places = wanted
                    self._arena.view(block.offset, shape, tensor.dtype)[places[self._device]].copy_(tensor)
        except Exception as error:
            answer = failure_of(self._device, f"fetch({short(tensor)})", error)
        if wanted is not None and self._arena is not None:
            self._arena.release(wanted[0])
        return answer, payload


def meta_of(value: Any) -> ShapedType | None:
    """Shape and dtype of a value; None for a Failure, and for no value."""
    return ShapedType(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None
