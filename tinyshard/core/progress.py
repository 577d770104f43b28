"""Progress: in a notebook, a first call or a wait that takes over two seconds shows one line until it ends.

    with doing("tracing step"):     around a task that may be slow, never on the path of a cached call
        while it_goes_on:
            still_doing()           from time to time, in the main thread: no other thread draws

`show` is the front end: it gets the line, or None at the end. By default it uses tqdm, in a notebook that can
prompt for input; scripts, nbval and nbconvert show nothing.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tinyshard.core.users_code import can_ask

_AFTER_S = 2.0
_EVERY_S = 0.5


@dataclass(slots=True)
class _Task:
    what: str
    since_s: float
    next_s: float  # when it will be shown
    is_shown: bool = False


_task: _Task | None = None


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Describe the main thread's task in this block; a nested block is part of the outer one, and shows nothing.

    Args:
        what: "tracing step".
    """
    global _task
    if _task is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    now_s = time.monotonic()
    task = _task = _Task(what, now_s, now_s + _AFTER_S)
    try:
        yield
    finally:
        _task = None
        if task.is_shown:
            show(None)


def still_doing() -> None:
    """Report that it continues; shows the line if it is time."""
    task = _task
    if task is None or (now_s := time.monotonic()) < task.next_s:
        return
    if threading.current_thread() is threading.main_thread():
        task.next_s = now_s + _EVERY_S
        task.is_shown = True
        show(f"{task.what}: {now_s - task.since_s:.0f} s")


def _show_in_notebook(line: str | None) -> None:
    """Draw a line below the cell, or remove it."""
    if not can_ask():
        return
    with contextlib.suppress(Exception):  # without tqdm there is no line; an error of the line must not end the task
        if line is not None:
            _bar().set_description_str(line)
        elif _bar.cache_info().currsize:
            _bar().close()
            _bar.cache_clear()


@functools.cache
def _bar() -> Any:
    from tqdm.auto import tqdm

    class Line(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that draws

    Line.set_lock(threading.RLock())  # tqdm's own is one between processes
    return Line(bar_format="{desc}", leave=False)


show = _show_in_notebook
