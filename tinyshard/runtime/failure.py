"""A failure on a device, as text that can be sent; and how a device ends that cannot go on."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tinyshard.core.types import ShapedType

# exit code of a device that has no memory for its part of a collective
NO_MEMORY = errno.ENOMEM
# exit code of a device whose GPU cannot compute any more, as after an index out of range
GPU_FAILED = errno.EIO
# what the name of a program's generated code begins with, in place of a file
CODE_FILE = "<device code of program"
_LIBC = ctypes.CDLL(None)
_MAX_FRAMES = 4
_OWN_LOOP = (
    "loop.py", "steps.py", "one_by_one.py", "recording.py", "local.py", "lockstep.py", "executor.py", "values.py",
)  # fmt: skip
_RUNTIME = str(Path(__file__).resolve().parent) + os.sep
_FOLDERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
)
_SIGNS = ("MemoryError", "can't allocate memory", "not enough memory", "CUDA out of memory")


@dataclass(frozen=True, slots=True)
class Failure:
    """An op that raised on a device, a device that is lost, or a call that was cancelled.

    Attributes:
        device: the device's id; failures that differ only in it are merged.
        call: the op and its arguments: "aten.gather.default(f32[2, 4], 1, i64[2, 4])".
        error: "RuntimeError: index 9 is out of bounds".
        frames: the device's frames inside the runtime's loop, outermost first.
        lost: how the device's process ended, for the calls that it had not finished; empty if it is alive.
        interrupt: the line at which the call was cancelled; empty if it was not.
        line: the user's line that called the op; None where that is the line that dispatched the call.
    """

    device: int = field(compare=False)
    call: str = ""
    error: str = ""
    frames: str = ""
    lost: str = ""
    interrupt: str = ""
    line: Any = None


def failure_of(device: int, call: str, error: BaseException, line: Any = None) -> Failure:
    """The failure of a step that raised `error`; `call` is from `ReadyStep.describe`, `line` from the step."""
    stack = [f for f in traceback.extract_tb(error.__traceback__) if not _is_loop(f.filename)]
    frames = "\n".join(_frame_line(f) for f in stack[-_MAX_FRAMES:])
    return Failure(device, call, f"{type(error).__name__}: {error}".strip(), frames, line=line)


def _is_loop(file: str) -> bool:
    return file.startswith(CODE_FILE) or (file.startswith(_RUNTIME) and os.path.basename(file) in _OWN_LOOP)


def _frame_line(frame: traceback.FrameSummary) -> str:
    folder = next((f for f in _FOLDERS if frame.filename.startswith(f)), "")
    return f"{frame.filename[len(folder) :]}:{frame.lineno} in {frame.name}: {frame.line or ''}"


def short(value: Any) -> str:
    """A value as errors print it: tensors by dtype and shape, the rest by `repr`.

    Example:
        >>> short([torch.zeros(2, 3), 1])
        '[f32[2, 3], 1]'
    """
    if isinstance(value, torch.Tensor):
        return str(ShapedType(tuple(value.shape), value.dtype))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(short, value))}]"
    return repr(value)


def is_out_of_memory(failure: Failure) -> bool:
    """Whether an op failed because memory ran out."""
    return any(sign in failure.error for sign in _SIGNS)


def mebibytes(nbytes: int) -> str:
    """A size as text.

    Example:
        >>> mebibytes(1 << 22), mebibytes(1000)
        ('4.0 MiB', '1,000 bytes')
    """
    return f"{nbytes / (1 << 20):,.1f} MiB" if nbytes >= 1 << 17 else f"{nbytes:,} bytes"


def leave(code: int) -> None:
    """End this process, which cannot take part in a collective: its end wakes the devices that wait in it."""
    flush()
    os._exit(code)


def flush() -> None:
    """Flush the output of Python and C code, so that the controller gets it before the answer."""
    sys.stdout.flush()
    _LIBC.fflush(None)
