"""The trace that is in progress in this thread, if one is.

with recording(recorder):
    is_tracing()              True
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _ThisThread(threading.local):
    """What is in progress in this thread.

    Attributes:
        recorder: the trace; None outside of one. Each op on Arrays reads it.
        task: what this thread was made for, where it is that of a trace or of a plan; see `core/trace_thread.py`.
    """

    recorder: Any = None
    task: Any = None


this_thread = _ThisThread()


def current_recorder() -> Any:
    """The trace of this thread; None outside of one."""
    return this_thread.recorder


@contextlib.contextmanager
def recording(recorder: Any) -> Iterator[None]:
    """In this block this thread traces."""
    before, this_thread.recorder = this_thread.recorder, recorder
    try:
        yield
    finally:
        this_thread.recorder = before


def is_tracing() -> bool:
    """Whether a function is being traced now."""
    return this_thread.recorder is not None


def keep(thing: Any) -> None:
    """During a trace: let an object that an op's number stands for live as long as what is traced."""
    recorder = current_recorder()
    assert recorder is not None
    recorder.kept.append(thing)
