"""What a learner's function does while a judge runs it: where it waits, and which names it uses."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any
from unittest import mock

from tinyshard.runtime import lifecycle

__all__ = ["names_in", "watched_waits"]


@contextmanager
def watched_waits(on_wait: Callable[[Any], None]) -> Iterator[None]:
    """Inside, `on_wait(buffer)` is called whenever this process waits for an Array's values, or fetches them.

    Args:
        on_wait: gets the buffer whose values were waited for; the same object for each wait for one Array.
    """
    runtime = lifecycle.current()
    depth = 0

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(buffer: Any, *args: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return method(buffer, *args)
            finally:
                depth -= 1
                if depth == 0:  # fetching waits too: that is one wait
                    on_wait(buffer)

        return call

    with (
        mock.patch.object(runtime, "wait", noting(runtime.wait)),
        mock.patch.object(runtime, "fetch", noting(runtime.fetch)),
    ):
        yield


def names_in(function: Any) -> set[str]:
    """The names of globals, attributes and methods that a function's own code uses; none for what is no function.

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
