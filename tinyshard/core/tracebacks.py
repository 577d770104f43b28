"""Tracebacks: an uncaught error shows the user's own lines, without the frames of tinyshard, its course and torch.

Only the printed traceback is short, by `sys.excepthook` or by IPython's shell: the error itself keeps every frame, for
debuggers, pytest and `traceback.print_exc()`. An error without frames of tinyshard is shown unchanged.

    cell, line 2                    shown
      Array.__torch_function__      hidden: tinyshard, torch, and functions of the standard library that these two call
        f, line 7                   shown: the user's function, called by `jit`
          torch.where               hidden
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from tinyshard.core import config
from tinyshard.core.users_code import COURSE, PACKAGE, TORCH, ipython_shell

_PATHS = sysconfig.get_paths()
_INSTALLED = (_PATHS["purelib"], _PATHS["platlib"])
_PYTHONS = (_PATHS["stdlib"], "<frozen ", "<string>", "<eval_with_key>")  # the last two: code that is generated
_HINT = 'Frames of tinyshard and torch are hidden: ts.config.update("tracebacks", "full") shows them.'
_is_hint_shown = False


def install() -> None:
    """Shorten the printed tracebacks of uncaught errors, in this process and in its IPython shell."""
    show, show_of_thread, shell = sys.excepthook, threading.excepthook, ipython_shell()

    def show_short(kind: Any, error: BaseException, trace: TracebackType | None) -> None:
        with shortened(error):
            show(kind, error, error.__traceback__)

    def show_short_of_thread(args: Any) -> None:
        with shortened(args.exc_value):
            trace = getattr(args.exc_value, "__traceback__", None)
            show_of_thread(threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread)))

    sys.excepthook, threading.excepthook = show_short, show_short_of_thread
    if shell is not None:
        lines_of = shell.InteractiveTB.structured_traceback

        def short_lines_of(kind: Any, error: Any, trace: Any = None, *args: Any, **options: Any) -> Any:
            with shortened(error):
                return lines_of(kind, error, getattr(error, "__traceback__", trace), *args, **options)

        shell.InteractiveTB.structured_traceback = short_lines_of


@contextlib.contextmanager
def shortened(error: BaseException | None) -> Iterator[None]:
    """A block in which an error and those before it have short tracebacks; afterwards their full ones are restored.

    The first error that is shown without some of its frames ends with a line that says how to show them.

    Args:
        error: the error to be shown.
    """
    global _is_hint_shown
    chain = list(_chain(error))
    is_full = config.read("tracebacks") == "full" or not any(_passes_tinyshard(e) for e in chain)
    if error is None or is_full or _short(error.__traceback__) is None:  # without a line of the user: an inner error
        yield
        return
    saved = [(e, e.__traceback__, e.__cause__, e.__context__, e.__suppress_context__) for e in chain]
    notes = getattr(error, "__notes__", None)
    shown = [error, *(e for after, e in itertools.pairwise(chain) if not _is_replaced(e, by=after))]
    try:
        for one, before in zip(shown, [*shown[1:], None], strict=True):
            if before is not _before(one):
                one.__cause__, one.__context__ = (before, None) if one.__cause__ else (None, before)
                one.__suppress_context__ = one.__cause__ is not None
            one.__traceback__ = _short(one.__traceback__)
        if not _is_hint_shown:
            _is_hint_shown = True
            error.__notes__ = [*(notes or ()), _HINT]
        yield
    finally:
        for one, trace, cause, context, is_suppressed in saved:
            one.__traceback__, one.__cause__, one.__context__ = trace, cause, context
            one.__suppress_context__ = is_suppressed
        if notes is not None:
            error.__notes__ = notes
        elif hasattr(error, "__notes__"):
            del error.__notes__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the one that it was raised from or while handling, and so on."""
    seen: set[int] = set()
    one = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = _before(one)


def _before(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_replaced(error: BaseException, by: BaseException) -> bool:
    """Whether an error was raised and caught inside, and tinyshard raised another one in its place."""
    inside, theirs = [is_hidden for _, is_hidden in _frames(error.__traceback__)], list(_frames(by.__traceback__))
    return bool(inside and theirs) and inside[0] and inside[-1] and _is_tinyshards(theirs[-1][0])


def _short(trace: TracebackType | None) -> TracebackType | None:
    """The traceback of the shown frames; None if there are none."""
    own = [one for one, is_hidden in _frames(trace) if not is_hidden]
    short = None
    for one in reversed(own):
        short = TracebackType(short, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return short


def _frames(trace: TracebackType | None) -> Iterator[tuple[TracebackType, bool]]:
    """Each frame of a traceback, outermost first, and whether it is hidden."""
    is_hidden = False
    while trace is not None:
        is_hidden = trace.tb_frame.f_code.co_filename.startswith((PACKAGE, COURSE, TORCH)) or (
            is_hidden and _is_pythons(trace.tb_frame)
        )
        yield trace, is_hidden
        trace = trace.tb_next


def _is_pythons(frame: FrameType) -> bool:
    """Whether a frame is of Python's standard library, or of generated code."""
    file = frame.f_code.co_filename
    is_main = frame.f_globals.get("__name__") == "__main__"  # a program of `python -c` is in "<string>", too
    return file.startswith(_PYTHONS) and not file.startswith(_INSTALLED) and not is_main


def _passes_tinyshard(error: BaseException) -> bool:
    return any(_is_tinyshards(one) for one, _ in _frames(error.__traceback__))


def _is_tinyshards(one: TracebackType) -> bool:
    return one.tb_frame.f_code.co_filename.startswith((PACKAGE, COURSE))
