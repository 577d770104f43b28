"""A line of the user's program: the one that calls, or the one that an error was raised in."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType

from tinyshard.core.named_scopes import SCOPE
from tinyshard.core.trace_thread import BODY, waiting_frame
from tinyshard.core.users_code import LIBRARIES, PACKAGE, TORCH, ipython_shell

_NOT_THE_USERS = (PACKAGE, TORCH)


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's program.

    Attributes:
        file: its name.
        line: its number; 0 if the line is not known.
        scope: the names of the blocks that it is in, by `ts.named_scope`; "" for none.
    """

    file: str
    line: int
    scope: str = ""

    def __str__(self) -> str:
        shell = ipython_shell()
        name = shell.compile.format_code_name(self.file) if shell is not None else None
        place = f"{name[1]}, line {self.line}" if name else f"{self.file}:{self.line}" if self.line else self.file
        place += f" in {self.scope}" if self.scope else ""
        text = linecache.getline(self.file, self.line).strip()
        return f"{place}: {text}" if text else place


def users_line() -> Where:
    """The innermost line outside of tinyshard and torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        name = frame.f_code.co_filename
        # code that torch generates while it traces is in "<string>"; so is a program of `python -c`
        if not name.startswith(_NOT_THE_USERS) and (
            name != "<string>" or frame.f_globals.get("__name__") == "__main__"
        ):
            break
        frame = frame.f_back if frame.f_code is not BODY else waiting_frame()
    assert frame is not None
    return Where(frame.f_code.co_filename, frame.f_lineno, SCOPE.get())


def users_line_of(error: BaseException) -> Where | None:
    """The innermost line of the user's code in an error's traceback; None if there is none."""
    passed = [(Where(frame.f_code.co_filename, line), frame) for frame, line in walk_tb(error.__traceback__)]
    own = [p for p in passed if not p[0].file.startswith((PACKAGE, *LIBRARIES)) and _is_source(*p)]
    return own[-1][0] if own else None


def _is_source(where: Where, frame: FrameType) -> bool:
    """Whether this line is in source code that exists here.

    Compiled libraries name files relative to the folder of their build: zmq/backend/cython/_zmq.py. Generated code,
    such as the methods of dataclasses, is in "<string>"; so is a program of `python -c`.
    """
    if where.file == "<string>":
        return frame.f_globals.get("__name__") == "__main__"
    return os.path.isabs(where.file) or where.file.startswith("<") or os.path.exists(where.file)
