"""What went wrong on a device, as text that travels; and the one error that the cell sees for all devices."""

from __future__ import annotations

import errno
import linecache
import os
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tinyshard.errors import CancelledError, DeviceLostError, RemoteError, message
from tinyshard.program import Meta

# with it a device ends that has no memory for its part of an exchange which others wait in
NO_MEMORY = errno.ENOMEM
_MAX_FRAMES = 4
_OWN_LOOP = ("loop.py", "local.py", "executor.py")
_RUNTIME = str(Path(__file__).resolve().parents[1]) + os.sep
_FOLDERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a device tells of an op that raised, or what is told of a device that is gone.

    Attributes:
        device: who failed; failures that are equal but for this are said once.
        call: the op and what it was given: "aten.gather.default(f32[2, 4], 1, i64[2, 4])".
        error: "RuntimeError: index 9 is out of bounds".
        frames: the device's own frames beneath the runtime's loop, outermost first.
        lost: how the device's process ended; empty if it lives.
        interrupt: the line at which the call was cancelled; empty if it was not.
    """

    device: int = field(compare=False)
    call: str
    error: str
    frames: str
    lost: str = ""
    interrupt: str = ""


def failure_of(device: int, call: str, error: BaseException) -> Failure:
    """The failure of a step.

    Args:
        device: where.
        call: the step with its operands, as `ReadyStep.describe` gives it.
        error: what it raised.
    """
    stack = [f for f in traceback.extract_tb(error.__traceback__) if not _is_loop(f.filename)]
    frames = "\n".join(_frame_line(f) for f in stack[-_MAX_FRAMES:])
    return Failure(device, call, f"{type(error).__name__}: {error}".strip(), frames)


def _is_loop(file: str) -> bool:
    return file.startswith(_RUNTIME) and os.path.basename(file) in _OWN_LOOP


def _frame_line(frame: traceback.FrameSummary) -> str:
    folder = next((f for f in _FOLDERS if frame.filename.startswith(f)), "")
    text = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename[len(folder) :]}:{frame.lineno} in {frame.name}: {text}"


def short(value: Any) -> str:
    """A value as an error shows it: tensors by dtype and shape, the rest as Python writes it.

    Example:
        >>> short([torch.zeros(2, 3), 1])
        '[f32[2, 3], 1]'
    """
    if isinstance(value, torch.Tensor):
        return str(Meta(tuple(value.shape), value.dtype))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(short, value))}]"
    return repr(value)


def ending(status: int | None) -> str:
    """How a process ended, from its wait status; None if nobody could tell."""
    if status is None:
        return "it ended together with the helper process that started it"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"killed by signal {number} ({signal.Signals(number).name})"
    code = os.WEXITSTATUS(status)
    if code == NO_MEMORY:
        return f"it had no memory for its part of an exchange, and ended with exit code {code}"
    return f"its process ended with exit code {code}"


def gone(device: int, lost: str) -> Failure:
    """The failure of every call that a device had not finished when it went."""
    return Failure(device, "", "", "", lost)


def interrupted(device: int, by: str) -> Failure:
    """The failure of every call that was queued when an interrupt came.

    Args:
        device: which has not started it.
        by: the interrupted line.
    """
    return Failure(device, "", "", "", interrupt=by)


def remote_error(failures: Mapping[int, tuple[Failure, object]], platform: str) -> RemoteError:
    """One error for all devices that failed; equal ones are said once.

    Args:
        failures: by device that is concerned: what failed, and the line that dispatched it.
        platform: "cpu".

    Returns:
        DeviceLostError if one of the devices is gone, CancelledError if all were cancelled, else RemoteError.
    """
    for failure, _ in failures.values():
        if failure.lost:
            return lost_error(failure.device, failure.lost, platform)
    failures = {d: told for d, told in failures.items() if not told[0].interrupt} or failures
    failure, where = next(iter(failures.values()))
    if failure.interrupt:
        return CancelledError(
            message(
                f"the value was not computed: cancelled by the interrupt at {failure.interrupt}",
                got=f"what was dispatched by {where}",
                rule="an interrupt cancels what is queued and not finished; arrays finished before stay valid",
                try_="compute it again",
            )
        )
    groups: dict[tuple[Failure, object], set[int]] = {}
    for told in failures.values():
        groups.setdefault(told, set()).add(told[0].device)
    parts = []
    for (failure, where), ids in groups.items():
        lines = (failure.call + "\n" + failure.frames).strip().replace("\n", "\n    ")
        op = failure.call.partition("(")[0]
        names = f"{platform.upper()} {','.join(map(str, sorted(ids)))}"
        error = failure.error.replace("\n", "\n  ")
        parts.append(f"{op} failed on {names}\n  {error}\n  dispatched by {where}\n  on the device:\n    {lines}")
    return RemoteError("\n".join(parts))


def lost_error(device: int, lost: str, platform: str) -> DeviceLostError:
    """The error for a device whose process is gone."""
    advice = ""
    if "SIGKILL" in lost:
        advice = "; the system kills so when memory runs out: ts.live_arrays() lists what is alive"
    elif "no memory" in lost:
        advice = "; ts.live_arrays() lists what is alive"
    return DeviceLostError(
        message(
            f"{platform.upper()} {device} is gone: {lost}",
            rule="values that lived on it, and all that waits for it, are lost; other devices keep their own",
            try_="ts.init() starts a fresh pool" + advice,
        )
    )
