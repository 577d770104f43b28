"""What a learner's function does while a judge runs it: where it waits, by which clock, and which names it uses."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, SimpleNamespace
from typing import Any
from unittest import mock

from tinyshard.runtime import lifecycle

__all__ = ["clock_of", "names_in", "watched_fetches", "watched_looks", "watched_waits"]

WAITS = ("wait", "fetch", "gather")  # methods of a runtime
CLOCKS = ("perf_counter", "time", "monotonic")
# replaced for the whole process as well; other threads of the kernel wait by `monotonic`
HARMLESS = ("perf_counter", "perf_counter_ns", "time", "time_ns")


@contextmanager
def watched_waits(on_wait: Callable[[Any], None]) -> Iterator[None]:
    """Inside, `on_wait(buffer)` is called whenever this process waits for an Array's values, or fetches them.

    Args:
        on_wait: gets the buffer whose values were waited for; the same object for each wait for one Array.
    """
    with _watched(WAITS, lambda buffers: _each(on_wait, buffers)):
        yield


@contextmanager
def watched_looks(on_look: Callable[[list[Any]], None]) -> Iterator[None]:
    """Inside, `on_look(buffers)` is called once for all that this process waits for, or fetches, at the same time."""
    with _watched(WAITS, on_look):
        yield


@contextmanager
def watched_fetches(on_fetch: Callable[[Any], None]) -> Iterator[None]:
    """Inside, `on_fetch(buffer)` is called whenever this process fetches an Array's values."""
    with _watched(("fetch", "gather"), lambda buffers: _each(on_fetch, buffers)):
        yield


def _each(report: Callable[[Any], None], buffers: list[Any]) -> None:
    for buffer in buffers:
        report(buffer)


@contextmanager
def _watched(names: tuple[str, ...], on_call: Callable[[list[Any]], None]) -> Iterator[None]:
    """Inside, `on_call(buffers)` follows each call of these methods of the runtime, with the buffers that it is for.

    One that another of them calls is a part of that.
    """
    runtime = lifecycle.current()
    depth = 0

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *args: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return method(what, *args)
            finally:
                depth -= 1
                if depth == 0:
                    on_call([wanted.buffer for wanted in what] if isinstance(what, list) else [what])

        return call

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(runtime, name, noting(getattr(runtime, name))))
        yield


@contextmanager
def clock_of(function: Any, now_s: Callable[[], float]) -> Iterator[None]:
    """Inside, the clocks of `time` that the function knows by names of its cell show `now_s()`.

    Args:
        function: it may use the module under another name, or a clock by its own name, as after
            `from time import perf_counter`. After an `import time` within it, `monotonic` shows the real time.
        now_s: the time in seconds.
    """
    shown: dict[str, Callable[[], float]] = dict.fromkeys(CLOCKS, now_s)
    shown |= {f"{name}_ns": lambda: round(now_s() * 1e9) for name in CLOCKS}
    stands_for: dict[int, object] = {id(getattr(time, name)): shows for name, shows in shown.items()}
    stands_for[id(time)] = SimpleNamespace(**{**vars(time), **shown})
    names: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {}) if callable(function) else {}
    real = {name: value for name, value in names.items() if id(value) in stands_for}
    with ExitStack() as stack:
        for name in HARMLESS:
            stack.enter_context(mock.patch.object(time, name, shown[name]))
        stack.callback(names.update, real)
        names.update({name: stands_for[id(value)] for name, value in real.items()})
        yield


def names_in(function: Any) -> set[str]:
    """The names of globals, attributes and methods that a function's own code uses; empty if it is not a function.

    Example:
        >>> sorted(names_in(lambda x: x.sum().item()))
        ['item', 'sum']
    """
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return set(_names(code)) if isinstance(code, CodeType) else set()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
