"""The trace that is in progress in this thread, if one is.

with recording(recorder):     traces take turns: torch's tracer is one for the process
    is_tracing()              True
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

tracing_lock = threading.RLock()  # torch's tracer is one for the process


class _ThisThread(threading.local):
    """What is in progress in this thread.

    Attributes:
        recorder: the trace; None outside of one. Each op on Arrays reads it.
    """

    recorder: Any = None


this_thread = _ThisThread()


def current_recorder() -> Any:
    """The trace of this thread; None outside of one."""
    return this_thread.recorder


@contextlib.contextmanager
def recording(recorder: Any) -> Iterator[None]:
    """In this block this thread traces, alone in the process."""
    with tracing_lock:
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
