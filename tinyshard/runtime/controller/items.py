"""The items of the dispatcher's queue, and the latch that a thread waits for.

threading's Condition and Event acquire a lock in Python code: a KeyboardInterrupt there leaves it acquired for ever.
A `with` on a plain lock is safe: it is acquired and released in C. So the wait for a latch may be interrupted anywhere.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tinyshard.core.program import Program
from tinyshard.core.types import ShapedType
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.failure import Failure
from tinyshard.runtime.shm.holders import Block


class Latch:
    """A one-shot event: closed until it is opened, then open for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Wake all waiting threads. One thread at a time may call it."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Block until it is open; False after `timeout_s`."""
        if timeout_s < 0:
            with self._lock:
                return True
        if not self.is_open and self._lock.acquire(timeout=timeout_s):
            self._lock.release()
        return self.is_open


@dataclass(eq=False, slots=True)
class Put:
    """Give devices the blocks of a new value; each block comes with its place in shared memory, or None."""

    run: Run
    value: int
    blocks: dict[int, tuple[torch.Tensor, Block | None]]


@dataclass(eq=False, slots=True)
class Call:
    """Run a program; `inputs` and `outputs` are numbers of values. It frees those `donated` at their last use."""

    run: Run
    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Unsent:
    """A value or a call that cannot be sent: its devices get the failure in place of the values of these numbers."""

    run: Run
    values: tuple[int, ...]
    failure: Failure


@dataclass(eq=False, slots=True)
class Free:
    """Free released values: each item does that, and this one does nothing else."""


@dataclass(eq=False, slots=True)
class Cancel:
    """Cancel the calls before it, for an interrupt at line `by`.

    Only the I/O thread sends it, on the control lines: Ctrl-C must not interrupt that.
    """

    by: str


@dataclass(eq=False, slots=True)
class Request:
    """A request to some devices, and their answers so far.

    Attributes:
        waiting: the devices that have not answered.
        kind, what: the message.
        lent: a tensor into which the devices write, and its block.
        number: its place in the order of all calls; 0 until the dispatcher gives it one.
        answers: by device, its answer and the tensor's bytes that came with it.
        over: opens when all have answered, or one of them is lost, or it cannot be sent.
        error: why it cannot be sent.
    """

    waiting: set[int]
    kind: str
    what: Any = None
    lent: tuple[torch.Tensor, Block] | None = None
    number: int = 0
    answers: dict[int, tuple[Any, bytearray | None]] = field(default_factory=dict)
    over: Latch = field(default_factory=Latch)
    error: Exception | None = None


Item = Put | Call | Unsent | Free | Cancel | Request  # of the queue


def in_place_of(item: Item, error: Exception) -> Item:
    """The replacement of an item whose message cannot be made, for want of memory or because it cannot be pickled.

    The devices get the failure in place of values; a request's wait raises the error. Raises it for any other item.
    """
    if isinstance(item, Request):
        item.error = error
        item.over.open()
        return Free()
    values: tuple[int, ...]
    if isinstance(item, Put):
        block = next(iter(item.blocks.values()))[0]
        call, values = f"placing {ShapedType(tuple(block.shape), block.dtype)}", (item.value,)
    elif isinstance(item, Call):
        call, values = f"sending a call of {len(item.program.steps)} steps", item.outputs
    else:
        raise error
    failure = Failure(item.run.devices[0], call, f"{type(error).__name__}: {error}", "")
    for device in item.run.devices:
        item.run.failures[device] = (replace(failure, device=device), item.run.where)
    return Unsent(item.run, values, failure)
