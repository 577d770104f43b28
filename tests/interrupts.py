"""Ctrl-C, or another signal, at a line of one's choice."""

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# Python looks for signals after calls: not at "try", nor where "with" is left, whose line counts once more; and what
# releases a monitor in `finally` is one call in C
_NOT_STRUCK = ("with ", "try:", "monitor.release()")


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def strike_at(
    line: int,
    act: Callable[[], Any],
    is_counted: Callable[[str], bool],
    handler: Callable[[], object] = interrupt,
) -> tuple[str, int] | None:
    """Call `act`, and `handler` as it comes to such a line, the first being 1.

    Args:
        is_counted: whether the lines of a file count, by its name.
        handler: what a signal's handler does.

    Returns:
        The file and the line where it struck; None if `act` was over before.
    """
    lines = 0
    struck = None

    def strike(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines, struck
        file = frame.f_code.co_filename
        if not is_counted(file):
            return None
        if event == "line" and not linecache.getline(file, frame.f_lineno).strip().startswith(_NOT_STRUCK):
            lines += 1
            if lines == line:
                struck = file, frame.f_lineno
                sys.settrace(None)
                handler()
                return None
        return strike

    sys.settrace(strike)
    try:
        act()
    except KeyboardInterrupt:
        return struck
    finally:
        sys.settrace(None)
    return struck
