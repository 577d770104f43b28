"""Spans: the controller's activities while a trace of `ts.profiler` is on.

    @spanned("plan", lambda graph, *_: ...)      a function whose calls are recorded while a log is open
    open_log(log)                                start recording; None stops it

A span is recorded when it ends, so an inner one comes before the one around it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

# a trace keeps this many spans of the controller
MOST_SPANS = 1 << 17

P = ParamSpec("P")
T = TypeVar("T")


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
