"""Pauses Python's garbage collector during large imports, and while a function is traced."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_pausing: set[object] = set()  # the open blocks of all threads: a set, for which two threads need no lock
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause it until the last of these blocks, of all threads, has ended."""
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
    """Pause it: an import makes hardly any garbage, and repeated collections take a fifth of its time.

    Objects made during the pause count as old afterwards, so the next collection does not visit all of them.
    """
    with paused():
        try:
            yield
        finally:
            if not gc.get_freeze_count():  # objects that the user has frozen should stay frozen
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
