"""Python's garbage collector while much is imported, and while a function is traced."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_pausing: set[object] = set()  # a block each, of any thread: a set, for which two threads need no lock
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Let it wait, until the last of the blocks of all threads that have it wait is left."""
    global _was_enabled
    block = object()
    try:
        _pausing.add(block)
        if gc.isenabled():
            _was_enabled = True
            gc.disable()
        yield
    finally:
        _pausing.discard(block)
        if _was_enabled and not _pausing:
            _was_enabled = False
            gc.enable()


@contextlib.contextmanager
def paused_for_imports() -> Iterator[None]:
    """Let it wait: an import makes hardly any garbage, and to look for it again and again takes a fifth of its time.

    What was made meanwhile counts as old afterwards, so that the next look is not at all of it either.
    """
    with paused():
        try:
            yield
        finally:
            if not gc.get_freeze_count():  # what somebody has frozen should stay so
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
