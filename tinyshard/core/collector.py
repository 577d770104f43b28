"""Python's garbage collector while much is imported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Let it wait: an import makes hardly any garbage, and to look for it again and again takes a fifth of its time.

    What was made meanwhile counts as old afterwards, so that the next look is not at all of it either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what somebody has frozen is to stay so
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()
