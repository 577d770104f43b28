"""Which call made a value, and what became of it.

A call of a program is a Run. It knows the runs that made its inputs, so when someone asks for a value, it is known
whose answers matter: a device matters to another only through a program that communicates. An error of a run is an
error of everything computed from it, and of nothing else. Runs that are over and known to be good forget their parents.
"""

from __future__ import annotations

import heapq
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch

from tinyshard.core.types import Meta
from tinyshard.runtime.failure import Failure

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "purelib", "platlib"))
_NOT_THE_USERS = (_PACKAGE, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's program; line 0 is no line in particular."""

    file: str
    line: int

    def __str__(self) -> str:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        name = shell.compile.format_code_name(self.file) if shell is not None else None
        place = f"{name[1]}, line {self.line}" if name else f"{self.file}:{self.line}" if self.line else self.file
        text = linecache.getline(self.file, self.line).strip()
        return f"{place}: {text}" if text else place


def users_line() -> Where:
    """The innermost line that belongs neither to tinyshard nor to torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        name = frame.f_code.co_filename
        # what torch makes while it traces is in "<string>"; so is a program given by `python -c`
        if not name.startswith(_NOT_THE_USERS) and (
            name != "<string>" or frame.f_globals.get("__name__") == "__main__"
        ):
            break
        frame = frame.f_back
    assert frame is not None
    return Where(frame.f_code.co_filename, frame.f_lineno)


def users_line_of(error: BaseException) -> Where | None:
    """The innermost line of the user's own that an error passed, if it passed any."""
    passed = [(Where(frame.f_code.co_filename, line), frame) for frame, line in walk_tb(error.__traceback__)]
    own = [told for told in passed if not told[0].file.startswith((_PACKAGE, *_LIBRARIES)) and _is_written(*told)]
    return own[-1][0] if own else None


def _is_written(where: Where, frame: FrameType) -> bool:
    """Whether somebody wrote this line where it says that it stands.

    Compiled libraries name their files from folders in which they were built: zmq/backend/cython/_zmq.py. What modules
    make while they run, such as the methods of dataclasses, is in "<string>"; so is a program given by `python -c`.
    """
    if where.file == "<string>":
        return frame.f_globals.get("__name__") == "__main__"
    return os.path.isabs(where.file) or where.file.startswith("<") or os.path.exists(where.file)


@dataclass(eq=False, slots=True)
class Run:
    """One call of a program.

    Attributes:
        number: its place in the order of all calls; 0 until the dispatcher gives it one.
        devices: those that took part.
        communicates: whether data crossed between them.
        where: the line that dispatched it.
        parents: the runs that made its inputs, as far as they are not settled.
        checks: later runs without results that judge this one's results (as linalg's error checks).
        failures: by device.
        settled: it is over everywhere, and `failures` is complete, errors of its ancestors included.
        computes: a program runs; False for values that are only sent, which no interrupt cancels.
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


class Buffer:
    """The controller's handle on a value: the same number on every device that holds a block of it.

    Attributes:
        number: the value's.
        run: the call that makes it.
        runtime: where it lives.
        block: shape and dtype of each device's block; None where only running tells.
    """

    __slots__ = ("__weakref__", "block", "number", "run", "runtime")

    def __init__(self, number: int, run: Run, runtime: Any, block: Meta | None = None) -> None:
        self.number = number
        self.block = block
        self.run = run
        self.runtime = runtime


@dataclass(slots=True)
class Ancestry:
    """What a value depends on.

    Attributes:
        needs: by device whose answer matters: the last call that it must have finished.
        failures: errors among the runs that matter, by device, of the earliest failing run.
    """

    needs: dict[int, int]
    failures: dict[int, tuple[Failure, Where]]


def ancestry(run: Run, wanted: Iterable[int]) -> Ancestry:
    """Walk from a run, newest first, to all that the blocks on the `wanted` devices depend on."""
    needs = dict.fromkeys(wanted, 0)
    if not run.parents and not run.checks and tuple(needs) == run.devices:  # as most are: there is no way to walk
        return Ancestry(dict.fromkeys(needs, run.number), dict(run.failures))
    heap = [(-run.number, id(run), run)]
    seen = {run}
    failures: dict[int, tuple[Failure, Where]] = {}
    while heap:
        at = heapq.heappop(heap)[-1]
        later = [check for check in at.checks if check not in seen]
        for other in later or at.parents:
            if other not in seen:
                seen.add(other)
                heapq.heappush(heap, (-other.number, id(other), other))
        if later:  # a check is newer than what it judges, and may draw in more devices
            heapq.heappush(heap, (-at.number, id(at), at))
            continue
        if at.communicates and not needs.keys().isdisjoint(at.devices):
            for device in at.devices:
                needs.setdefault(device, 0)
        for device in at.devices:
            if device in needs:
                needs[device] = max(needs[device], at.number)
        failures = {d: f for d, f in at.failures.items() if d in needs} or failures
    return Ancestry(needs, failures)


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


def input_runs(inputs: Sequence[Buffer]) -> tuple[Run, ...]:
    """The distinct runs that made these values and may still fail or have failed."""
    runs: dict[Run, None] = {}
    for buffer in inputs:
        for run in (buffer.run, *buffer.run.checks):
            if not run.settled or run.failures:
                runs[run] = None
    return tuple(runs)
