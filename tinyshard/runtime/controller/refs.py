"""Objects that devices keep while the controller uses them: values, until their last Buffer is collected; programs.

A finalizer may run anywhere, with any lock held, so it must neither lock nor send; and a Ctrl-C during a finalizer
written in Python is lost. Here the finalizer is one call in C: the weak reference appends itself to a deque.
"""

from __future__ import annotations

import collections
import gc
import itertools
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.core.program import Program
from tinyshard.core.types import ShapedType
from tinyshard.runtime.controller.lineage import Buffer, Run
from tinyshard.runtime.failure import mebibytes

_MOST_SHOWN = 5


class Watch(weakref.ref[Any]):
    """A weak reference to a Buffer or a Program, with the data to free it on the devices.

    Attributes:
        number: its number.
        devices: the devices that have it; none until `Watched.watch` sets them.
    """

    number = 0
    devices: tuple[int, ...] = ()


class Watched:
    """Objects that devices have, and the released ones among them, which the devices have not freed yet."""

    def __init__(self) -> None:
        self._held: dict[int, Watch] = {}
        self._released: collections.deque[Any] = collections.deque()

    def watch(self, x: Buffer | Program, number: int, devices: tuple[int, ...]) -> None:
        """Note that devices have an object."""
        watch = self._held.get(number)
        if watch is None:
            watch = Watch(x, self._released.append)
            watch.number, watch.devices = number, devices
            self._held[number] = watch
        elif watch.devices != devices:
            watch.devices = tuple(dict.fromkeys((*watch.devices, *devices)))

    @property
    def has_released(self) -> bool:
        """Whether something was released and not yet dropped."""
        return bool(self._released)

    def devices_of(self, number: int) -> tuple[int, ...]:
        """The devices that have the object of this number."""
        watch = self._held.get(number)
        return () if watch is None else watch.devices

    def released(self) -> list[Watch]:
        """The released objects that are not dropped yet, the oldest first."""
        return list(self._released)  # atomic

    def drop(self, watches: Iterable[Watch]) -> None:
        """Forget the first results of `released`. Idempotent; one thread at a time may call it."""
        for watch in watches:
            if self._released and self._released[0] is watch:
                self._held.pop(watch.number, None)
                self._released.popleft()


class Buffers(Watched):
    """The values of one runtime."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def make(self, run: Run, runtime: Any, block: ShapedType | None = None) -> Buffer:
        """A handle of a new value; the arguments are its attributes."""
        buffer = Buffer(next(self._numbers), run, runtime, block)
        self.watch(buffer, buffer.number, run.devices)
        return buffer

    def held_by(self, device: int) -> list[Buffer]:
        """The values in use, and not deleted, with a block on this device."""
        held = (watch() for watch in list(self._held.values()) if device in watch.devices)
        return [buffer for buffer in held if buffer is not None and not buffer.is_deleted]

    def release(self, number: int) -> None:
        """Make the devices free a value that still has a handle."""
        watch = self._held.get(number)
        if watch is not None:
            self._released.append(watch)


def by_devices(watches: Iterable[Watch]) -> dict[tuple[int, ...], list[int]]:
    """The numbers of values, by the devices that hold a block of them."""
    numbers: dict[tuple[int, ...], list[int]] = {}
    for watch in watches:
        numbers.setdefault(watch.devices, []).append(watch.number)
    return numbers


@dataclass(eq=False, frozen=True, slots=True)
class Wanted:
    """A value that a thread wants to read, of this shape and dtype.

    Attributes:
        places: by device, the slices of the whole that its block has; one device for each block.
    """

    buffer: Buffer
    places: Mapping[int, tuple[slice, ...]]
    shape: tuple[int, ...]
    dtype: torch.dtype


def put_together(blocks: Mapping[int, torch.Tensor], wanted: Wanted) -> torch.Tensor:
    """One tensor, assembled from its blocks."""
    if len(blocks) == 1:
        return next(iter(blocks.values())).reshape(wanted.shape)
    out = torch.empty(wanted.shape, dtype=wanted.dtype)
    for device, block in blocks.items():
        out[wanted.places[device]] = block
    return out


def block_nbytes(buffer: Buffer) -> int:
    """Size of one device's block; 0 if it is known only after the run."""
    return buffer.block.nbytes if buffer.block is not None else 0


def alive_text(buffers: Iterable[Buffer]) -> str:
    """The memory that the values of one device take, the largest first, each with the line that made it.

    Returns:
        "12.0 MiB in 3 values\n8.0 MiB f32[1024, 2048] made by In[2], line 3: y = x + 1 ..."
    """
    held = sorted(buffers, key=block_nbytes, reverse=True)
    lines = [f"{mebibytes(sum(map(block_nbytes, held)))} in {len(held)} values"]
    lines += [f"{mebibytes(block_nbytes(b))} {described(b)} made by {b.run.where}" for b in held[:_MOST_SHOWN]]
    if len(held) > _MOST_SHOWN:
        lines.append(f"and {len(held) - _MOST_SHOWN} more")
    return "\n".join(lines)


def described(buffer: Buffer) -> str:
    """A value as errors list it, by one of its Arrays: "f32[64, 4], a block of f32[512, 4] by P('x')"."""
    holders = (x for x in gc.get_referrers(buffer) if isinstance(x, dict) and "_layout" in x)
    arrays = (x for holder in holders for x in gc.get_referrers(holder) if getattr(x, "_buffer", None) is buffer)
    x: Any = next(arrays, None)
    part = "" if x is None else f", a block of {x._meta} by {' '.join(repr(x.sharding).split())}"
    return f"{buffer.block}{part}"
