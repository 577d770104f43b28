"""What may interrupt a trace, or the planning of an op, and use Arrays itself: finalizers and signal handlers.

with undisturbed():    the collector waits, so that no finalizer of its runs; a signal handler runs as in `apart`;
                       what it raises, as Ctrl-C's does, is raised in the user's own lines, or where `raise_waiting`
                       is called, or at the end
with apart():          outside of the trace, of torch's modes, and of the levels of torch.func
with default_keys():   outside of an op, for torch's dispatcher
"""

from __future__ import annotations

import contextlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import overrides
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.core import collector
from tinyshard.core.current_trace import this_thread
from tinyshard.core.users_code import LIBRARIES, PACKAGE, TORCH

# Within an op on Arrays torch's dispatcher passes over keys: it would take an Array for a plain tensor, and kernels
# that call other ops (`linalg.pinv`) would go wrong
_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()

_SIGNALS: list[int] = sorted(signal.valid_signals())
_waiting: BaseException | None = None  # what a signal handler has raised in the main thread, and is to be raised later


def default_keys() -> Any:
    """A block in which torch's dispatcher looks as it does outside of any op."""
    return torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """In this block an op of a finalizer, or of a signal handler, is not taken for one of the block's own.

    A handler still runs at once: it may raise an error, as for a limit of time, which is raised where Ctrl-C's is.
    """
    with _handlers_apart(), collector.paused(), _keys_kept():
        yield


@contextlib.contextmanager
def _keys_kept() -> Iterator[None]:
    """A block after which torch's dispatcher is as it was before, after an error too.

    A frame of torch's may hold a guard of the dispatcher, and an error that came through it the frame: when the error
    is dropped, the guard would put the dispatcher into the state in which the guard was made. So it ends here.
    """
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        try:
            yield
        except BaseException as error:
            cause: BaseException | None = error
            seen: set[int] = set()  # `raise e from e` makes a circle
            while cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                for frame, _ in traceback.walk_tb(cause.__traceback__):
                    if frame.f_code.co_filename.startswith(TORCH):
                        with contextlib.suppress(RuntimeError):  # it still runs
                            frame.clear()
                cause = cause.__cause__ or cause.__context__
            raise


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """In this block ops on tensors run as if nothing were traced or transformed around it."""
    recorder, this_thread.recorder = this_thread.recorder, None
    modes: list[Any] = []
    try:
        while overrides._len_torch_function_stack():
            modes.append(overrides._pop_mode())  # type: ignore[no-untyped-call]
        with (
            torch._C._EnableTorchFunction(),
            _disable_current_modes(),
            temporarily_clear_interpreter_stack(),
            default_keys(),
        ):
            yield
    finally:
        while modes:
            overrides._push_mode(modes.pop())  # type: ignore[no-untyped-call]
        this_thread.recorder = recorder


class _HandlerApart:
    """A signal handler that runs apart from what it interrupts; what it raises may wait.

    Torch is not made for an error between any two of its steps: one that is raised while a mode begins or ends leaves
    it on, and every later tensor is one of the trace's. So an error that comes there, or in a library that torch calls,
    waits. Ctrl-C while one waits does not.
    """

    def __init__(self, handler: Callable[[int, Any], Any], *, has_grad: bool) -> None:
        self.handler = handler
        self.may_wait = True
        self._has_grad = has_grad

    def __call__(self, number: int, frame: Any) -> None:
        global _waiting
        earlier, _waiting = _waiting, None  # it is not to be raised in a trace that the handler makes
        try:
            with apart(), torch.set_grad_enabled(self._has_grad):
                self.handler(number, frame)
        except BaseException as error:
            is_again = earlier is not None and isinstance(error, KeyboardInterrupt)
            if not self.may_wait or is_again or _is_the_users(frame):
                if isinstance(earlier, KeyboardInterrupt):  # an `except` for this error would lose it
                    raise earlier from error
                raise
            traceback.clear_frames(error.__traceback__)  # the handler's frame refers to the interrupted one
            _waiting = error
        if isinstance(earlier, KeyboardInterrupt) or _waiting is None:
            _waiting = earlier


def _is_the_users(frame: Any) -> bool:
    """Whether this line is the user's, or a library's that the user's line calls."""
    while frame is not None:
        file = frame.f_code.co_filename
        # what torch makes while it traces is in "<string>"; so is a program given by `python -c`
        is_made = file == "<string>" and frame.f_globals.get("__name__") != "__main__"
        if is_made or file.startswith((PACKAGE, TORCH, "<eval_with_key>")):
            return False
        if not file.startswith(LIBRARIES):
            return True
        frame = frame.f_back
    return False


def raise_waiting() -> None:
    """Raise what a signal handler, as Ctrl-C's, has raised before in this block that is undisturbed."""
    global _waiting
    if _waiting is not None and threading.current_thread() is threading.main_thread():
        error, _waiting = _waiting, None
        raise error


@contextlib.contextmanager
def _handlers_apart() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python runs handlers in the main one alone
        yield
        return
    replaced: dict[int, _HandlerApart] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _HandlerApart):
                replaced[number] = _HandlerApart(handler, has_grad=torch.is_grad_enabled())
                signal.signal(number, replaced[number])
        yield
    finally:
        is_outermost = bool(replaced)
        try:
            _put_back(replaced)
        finally:
            if is_outermost:
                raise_waiting()


def _put_back(replaced: dict[int, _HandlerApart]) -> None:
    try:
        while replaced:
            number, ours = next(iter(replaced.items()))
            ours.may_wait = False  # the block may have kept it, to install it later
            before = ours.handler
            if signal.getsignal(number) is ours:  # else the block has installed another one, which stays
                signal.signal(number, before)
            del replaced[number]
    finally:
        if replaced:  # one that is back has raised an error
            _put_back(replaced)
