"""Which call made a value, and what became of it.

A call of a program is a Run. It knows the runs that made its inputs, so when someone asks for a value, it is known whose
answers matter: a device matters to another only through a program that communicates. An error of a run is an error of
everything computed from it, and of nothing else. Runs that are over and known to be good forget their parents.
"""

from __future__ import annotations

import heapq
import linecache
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from tinyshard.errors import RemoteError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        name = shell.compile.format_code_name(self.file) if shell is not None else None
        place = f"{name[1]}, line {self.line}" if name else f"{self.file}:{self.line}"
        text = linecache.getline(self.file, self.line).strip()
        return f"{place}: {text}" if text else place


def users_line() -> Where:
    """The innermost line that belongs neither to tinyshard nor to torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, _TORCH)):
            break
        frame = frame.f_back
    assert frame is not None
    return Where(frame.f_code.co_filename, frame.f_lineno)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a device tells of an op that raised."""

    op: str
    error: str
    frames: str


@dataclass(eq=False, slots=True)
class Run:
    """One call of a program.

    Attributes:
        number: its place in the order of all calls.
        devices: who took part.
        communicates: whether data crossed between them.
        where: the line that dispatched it.
        parents: the runs that made its inputs, as far as they are not settled.
        checks: later runs without results that judge this one's results (as linalg's error checks).
        failures: by device.
        settled: it is over everywhere, and `failures` is complete, errors of its ancestors included.
    """

    number: int
    devices: tuple[int, ...]
    communicates: bool
    where: Where
    parents: tuple[Run, ...] = ()
    checks: list[Run] = field(default_factory=list)
    failures: dict[int, tuple[Failure, Where]] = field(default_factory=dict)
    settled: bool = False


class Buffer:
    """The controller's handle on a value: the same number on every device that holds a block of it."""

    __slots__ = ("__weakref__", "_release", "number", "run", "runtime")

    def __init__(self, number: int, run: Run, runtime: Any, release: Any) -> None:
        self.number = number
        self.run = run
        self.runtime = runtime
        self._release = release

    def __del__(self) -> None:
        self._release(self.number)  # appends to a deque: a finalizer may strike anywhere and must not lock or send


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What a value depends on.

    Attributes:
        devices: whose answers matter.
        last: the highest run number that each of them must have passed.
        failures: errors among the runs that matter, by device, of the earliest failing run.
    """

    devices: frozenset[int]
    last: int
    failures: dict[int, tuple[Failure, Where]]


def ancestry(run: Run, wanted: Iterable[int]) -> Ancestry:
    """Walk from a run to all that the blocks on the `wanted` devices depend on."""
    devices = set(wanted)
    last = run.number
    heap = [(-run.number, run)]
    seen = {run.number}
    failures: dict[int, tuple[Failure, Where]] = {}
    while heap:
        _, at = heapq.heappop(heap)
        if at.communicates and devices.intersection(at.devices):
            devices.update(at.devices)
        matter = {d: f for d, f in at.failures.items() if d in devices}
        if matter:
            failures = matter
        for other in (*at.parents, *at.checks):
            if other.number not in seen:
                seen.add(other.number)
                last = max(last, other.number)
                heapq.heappush(heap, (-other.number, other))
    return Ancestry(frozenset(devices), last, failures)


def settle(run: Run) -> None:
    """The run is over on all its devices: fold in its parents' failures and forget them. Parents settle first."""
    for parent in run.parents:
        for device, failure in parent.failures.items():
            run.failures.setdefault(device, failure)
    if run.communicates and run.failures:
        first = next(iter(run.failures.values()))
        for device in run.devices:
            run.failures.setdefault(device, first)
    run.parents = ()
    run.settled = True


def remote_error(failures: dict[int, tuple[Failure, Where]], platform: str) -> RemoteError:
    """One error for all devices that failed; equal ones are said once."""
    groups: dict[tuple[Failure, Where], list[int]] = {}
    for device, failure in sorted(failures.items()):
        groups.setdefault(failure, []).append(device)
    parts = []
    for (failure, where), devices in groups.items():
        names = f"{platform.upper()} {','.join(map(str, devices))}"
        frames = failure.frames.replace("\n", "\n  ")
        parts.append(
            f"{failure.op} failed on {names}\n  {failure.error}\n  dispatched by {where}\n  on the device:\n  {frames}"
        )
    return RemoteError("\n".join(parts))


def input_runs(inputs: Sequence[Buffer]) -> tuple[Run, ...]:
    """The distinct runs that made these values and may still fail or have failed."""
    runs = (run for b in inputs for run in (b.run, *b.run.checks))
    return tuple({run.number: run for run in runs if not run.settled or run.failures}.values())
