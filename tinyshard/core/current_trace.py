"""The trace in progress in this thread, if there is one.

with recording(recorder):
    is_tracing()              True
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _ThisThread(threading.local):
    """The trace or plan in progress in this thread.

    Attributes:
        recorder: the trace; None outside of one. Each op on Arrays reads it.
        task: the trace or plan that this thread was started for; see `core/trace_thread.py`.
    """

    recorder: Any = None
    task: Any = None


this_thread = _ThisThread()


def current_recorder() -> Any:
    """The trace of this thread; None outside of one."""
    return this_thread.recorder


@contextlib.contextmanager
def recording(recorder: Any) -> Iterator[None]:
    """A block in which this thread traces."""
    before, this_thread.recorder = this_thread.recorder, recorder
    try:
        yield
    finally:
        this_thread.recorder = before


def is_tracing() -> bool:
    """Whether a function is being traced now."""
    return this_thread.recorder is not None


def keep(thing: Any) -> None:
    """During a trace: keep alive an object that an op refers to by number, as long as the traced graph."""
    recorder = current_recorder()
    assert recorder is not None
    recorder.kept.append(thing)
