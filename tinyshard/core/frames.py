"""The frames of this thread, from a caller outwards: which functions call."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from types import FrameType


def frames() -> Iterator[FrameType]:
    """The frames outside of the calling function, the innermost first."""
    return _from(sys._getframe(1).f_back)


def _from(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def module_of(frame: FrameType) -> str:
    """The name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__"))


def is_called_from(places: Collection[tuple[str, str]]) -> bool:
    """Whether one of these functions calls, directly or indirectly.

    Args:
        places: the module, or its package, and the function's name; "" for any function.
    """
    return any(
        name in ("", frame.f_code.co_name) and (module == package or module.startswith(package + "."))
        for frame in frames()
        for module in [module_of(frame)]
        for package, name in places
    )
