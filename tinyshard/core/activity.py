"""What the controller does now: a line below a notebook's cell if it takes long, a span while a profile is taken.

    with doing("tracing step"):                  around a task that may be slow, never on the path of a cached call
        while it_goes_on:
            still_doing()                        from time to time, in the main thread: no other thread draws

    @spanned("plan", lambda graph, *_: ...)      a function whose calls are recorded while a log is open
    open_log(log)                                start recording; None stops it

The line comes after two seconds, and goes away at the end. `show` is the front end: it gets the line, or None at the
end. By default it uses tqdm, in a notebook that can prompt for input; scripts, nbval and nbconvert show nothing. A span
is recorded when it ends, so an inner one comes before the one around it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from tinyshard.core.users_code import can_ask

_AFTER_S = 2.0
_EVERY_S = 0.5
# a trace keeps this many spans of the controller
MOST_SPANS = 1 << 17

P = ParamSpec("P")
T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class Span:
    """One activity of the controller.

    Attributes:
        kind: "trace", "plan", "dispatch", "put" or "wait".
        name: of the function or other object; "" if it does not have one.
        start_ns, end_ns: by the monotonic clock.
        where: the user's line.
        call: for a dispatch the call and its program, after the trace the call's number; else None.
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    where: Any
    call: Any = None


@dataclass(eq=False)
class Log:
    """The spans of one trace.

    Attributes:
        where: returns the user's present line.
        spans: in the order in which they ended.
        dropped: how many were dropped after `MOST_SPANS`.
    """

    where: Callable[[], Any]
    spans: list[Span] = field(default_factory=list)
    dropped: int = 0

    def note(self, kind: str, name: str, start_ns: int, call: Any = None) -> None:
        """Add a span that ends now."""
        if len(self.spans) >= MOST_SPANS:
            self.dropped += 1
        else:
            self.spans.append(Span(kind, name, start_ns, time.monotonic_ns(), self.where(), call))


_open: Log | None = None


def open_log(log: Log | None) -> None:
    """Start recording; None stops it."""
    global _open
    _open = log


def current_log() -> Log | None:
    """The present log of spans; None while no trace is on."""
    return _open


def spanned(kind: str, name: Callable[..., str] = lambda *_: "") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Record the calls of a function while a log is open.

    Args:
        kind: of the spans.
        name: computes a span's name from the function's positional arguments.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            log = _open
            if log is None:
                return function(*args, **kwargs)
            start_ns = time.monotonic_ns()
            try:
                return function(*args, **kwargs)
            finally:
                log.note(kind, name(*args), start_ns)

        return call

    return decorate
