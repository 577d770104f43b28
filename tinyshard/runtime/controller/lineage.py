"""Lineage: the call that made a value, and the devices, calls and errors that the value depends on.

A call of a program is a Run, which refers to the runs that made its inputs. A value depends on the devices that hold
it, and on other devices only through programs that communicate. An error of a run is an error of all values computed
from it, and of no others. Finished runs drop their parents.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.types import ShapedType
from tinyshard.core.users_line import Where
from tinyshard.runtime.failure import Failure


@dataclass(eq=False, slots=True)
class Run:
    """One call of a program.

    Attributes:
        number: its place in the order of all calls; 0 until the dispatcher gives it one.
        devices: the devices that run it.
        communicates: whether these devices exchange data in it.
        where: the line that dispatched it.
        parents: the runs that made its inputs and are not settled, or have failed.
        checks: later runs without results that check this one's results (such as linalg's error checks).
        failures: by device.
        settled: all devices have finished it, and `failures` is complete, errors of its ancestors included.
        computes: it runs a program; False for values that are only sent, which no interrupt cancels.
        nbytes: size of the values that are sent.
    """

    number: int
    devices: tuple[int, ...]
    communicates: bool
    where: Where
    parents: tuple[Run, ...] = ()
    checks: list[Run] = field(default_factory=list)
    failures: dict[int, tuple[Failure, Where]] = field(default_factory=dict)
    settled: bool = False
    computes: bool = True
    nbytes: int = 0


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Buffer:
    """The controller's handle of a value: it has the same number on every device that holds a block of it.

    Attributes:
        number: the value's number.
        run: the call that makes it.
        runtime: the runtime that holds it.
        block: shape and dtype of each device's block; None where they are known only after the run.
    """

    number: int
    run: Run
    runtime: Any
    block: ShapedType | None = None

    @property
    def is_deleted(self) -> bool:
        """Whether it was donated or deleted."""
        return isinstance(self.runtime, Deleted)

    def delete(self) -> None:
        """Make every later use raise; the devices keep their blocks."""
        self.runtime = Deleted(self.block)


class Deleted:
    """The runtime of a value that was donated or deleted: to look up any of its methods raises RuntimeStateError."""

    def __init__(self, block: ShapedType | None) -> None:
        self._block = block

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeStateError(
            "Array has been deleted",
            got=f"an Array with blocks of {self._block} that was donated to a call, or deleted by x.delete()",
            rule="its memory is used again, also where the call failed or was interrupted",
            try_="the result of the call in its place; or no donation of what is needed again",
        )


@dataclass(slots=True)
class Ancestry:
    """The dependencies of a value.

    Attributes:
        needs: by device that it depends on, the last call that the device must have finished.
        failures: by device, the errors of the earliest run that failed among those that it depends on.
    """

    needs: dict[int, int]
    failures: dict[int, tuple[Failure, Where]]


def ancestry(run: Run, wanted: Iterable[int]) -> Ancestry:
    """Walk from a run, newest first, to all runs that the blocks on the `wanted` devices depend on."""
    needs = dict.fromkeys(wanted, 0)
    if not run.parents and not run.checks and tuple(needs) == run.devices:  # most values need no walk
        return Ancestry(dict.fromkeys(needs, run.number), dict(run.failures))
    heap = [(-run.number, id(run), run)]
    seen = {run}
    failures: dict[int, tuple[Failure, Where]] = {}
    while heap:
        current = heapq.heappop(heap)[-1]
        later = [check for check in list(current.checks) if check not in seen]  # another thread may change it
        for other in later or current.parents:
            if other not in seen:
                seen.add(other)
                heapq.heappush(heap, (-other.number, id(other), other))
        if later:  # a check is newer than the run it checks, and may add devices
            heapq.heappush(heap, (-current.number, id(current), current))
            continue
        if current.communicates and not needs.keys().isdisjoint(current.devices):
            for device in current.devices:
                needs.setdefault(device, 0)
        for device in current.devices:
            if device in needs:
                needs[device] = max(needs[device], current.number)
        failures = {d: f for d, f in current.failures.items() if d in needs} or failures
    return Ancestry(needs, failures)


def settle(run: Run) -> None:
    """Mark a run as finished: it inherits the failures of its parents, which settle first, and drops them."""
    for parent in run.parents:
        for device, failure in parent.failures.items():
            if device in run.devices:
                run.failures.setdefault(device, failure)
    if run.communicates and run.failures:
        first = next(iter(run.failures.values()))
        for device in run.devices:
            run.failures.setdefault(device, first)
    run.parents = ()
    run.settled = True


def add_check(run: Run, check: Run) -> None:
    """Note that a later run checks this one's results. Finished checks without an error are dropped."""
    for old in list(run.checks):
        if old.settled and not old.failures:
            with contextlib.suppress(ValueError):  # another thread has removed it
                run.checks.remove(old)
    run.checks.append(check)


def input_runs(inputs: Sequence[Buffer]) -> tuple[Run, ...]:
    """The distinct runs that made or check these values and may still fail or have failed."""
    runs: dict[Run, None] = {}
    for buffer in inputs:
        for run in (buffer.run, *buffer.run.checks):
            if not run.settled or run.failures:
                runs[run] = None
    return tuple(runs)
