"""The values that a device keeps, by number. In place of a value that could not be computed it keeps the Failure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from tinyshard.core.types import ShapedType
from tinyshard.runtime import wire
from tinyshard.runtime.failure import failure_of, short
from tinyshard.runtime.shm.allocator import Arena, Block
from tinyshard.runtime.worker.memory import Memory


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
        nbytes = math.prod(shape) * dtype.itemsize
        if self._memory is not None:
            self._memory.check(nbytes)
        if block is None and payload is None and nbytes:  # the reader had no memory for it
            raise MemoryError(f"no room for {nbytes} bytes")
        self.keep(number, wire.tensor_of(payload, shape, dtype).to(self._place) if tensor is None else tensor)

    def fetch(self, number: int, wanted: Any) -> tuple[Any, memoryview | None]:
        """The answer to the controller, and a tensor's bytes; none if they are copied into a block that it has lent."""
        tensor = self.by_number.get(number)
        answer: Any = meta_of(tensor) or tensor  # a Failure, or None, if there is no tensor
        payload = None
        try:
            if isinstance(tensor, torch.Tensor):
                if wanted is None:
                    payload = wire.tensor_bytes(tensor.cpu())
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
