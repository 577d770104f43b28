"""What threads hand to the dispatcher: the items of its queue, and the latch that a thread waits for.

threading's Condition and Event acquire a lock in Python code: a KeyboardInterrupt there leaves it acquired for ever.
A `with` on a plain lock is safe: it is acquired and released in C. So the wait for a latch may be interrupted anywhere.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from tinyshard.core.program import Program
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.failure import failure_of
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
        return self.is_open or (self._lock.acquire(timeout=timeout_s) and self._pass())

    def _pass(self) -> bool:
        self._lock.release()
        return True


@dataclass(eq=False, slots=True)
class Item:
    """An item of the queue."""

    def fail(self, error: Exception) -> None:
        """Note that it could not be sent. What is released is freed by a later item."""


@dataclass(eq=False, slots=True)
class Put(Item):
    """Give devices their blocks of a new value.

    Attributes:
        run: stands for it among the calls.
        value: the value's number.
        blocks: by device, the block, and its place in shared memory or None.
    """

    run: Run
    value: int
    blocks: dict[int, tuple[torch.Tensor, Block | None]]

    def fail(self, error: Exception) -> None:
        """As `Item.fail`: whoever needs the value raises."""
        _fail(self.run, "device_put", error)


@dataclass(eq=False, slots=True)
class Call(Item):
    """Run a program; `inputs` and `outputs` are numbers of values."""

    run: Run
    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def fail(self, error: Exception) -> None:
        """As `Item.fail`: whoever needs a result raises."""
        _fail(self.run, f"a call of {len(self.program.steps)} steps", error)


@dataclass(eq=False, slots=True)
class Free(Item):
    """Free what is released: each item does, and this does nothing else."""


@dataclass(eq=False, slots=True)
class Cancel(Item):
    """Cancel the calls before it, for an interrupt at line `by`.

    The I/O thread alone sends it, on the control lines: Ctrl-C must not strike there.
    """

    by: str


@dataclass(eq=False, slots=True)
class Request(Item):
    """A request to some devices, and their answers so far.

    Attributes:
        waiting: the devices that have not answered.
        kind, what: the message.
        lent: a tensor into which the devices write, and its block.
        number: its place in the order of all calls; 0 until the dispatcher gives it one.
        answers: by device, its answer and the tensor's bytes that came with it.
        over: opens when all have answered, or one of them is lost, or it could not be sent.
        error: why it could not be sent.
    """

    waiting: set[int]
    kind: str
    what: Any = None
    lent: tuple[torch.Tensor, Block] | None = None
    number: int = 0
    answers: dict[int, tuple[Any, bytearray | None]] = field(default_factory=dict)
    over: Latch = field(default_factory=Latch)
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """As `Item.fail`: whoever waits for the answers raises."""
        self.error = error
        self.over.open()


def _fail(run: Run, call: str, error: Exception) -> None:
    """Note that a call could not be sent to its devices."""
    for device in run.devices:
        run.failures[device] = (failure_of(device, call, error), run.where)
    settle(run)
