"""Traces and plans run in their own thread, while the user's thread waits for them.

torch's modes, the levels of torch.func and the keys of its dispatcher belong to a thread. Python runs signal handlers
in the main thread: an error of a handler, as Ctrl-C's, is raised there while torch is between two steps in the other
thread. It is raised again in the trace's thread where torch is consistent: in a line of the user, at the next op, or at
the end.

    user's thread    f(x)  ── waits, shows progress ── Ctrl-C ─────────────────── KeyboardInterrupt
    trace's thread          trace f: line 1, line 2 ......... line 2 is struck ──┘

A trace's changes to the whole process are in blocks, which the user's thread ends if it abandons the trace.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch

from tinyshard.core import activity
from tinyshard.core.thread_state import guards_ended, state_to_carry, this_thread
from tinyshard.core.users_code import is_users

P = ParamSpec("P")
T = TypeVar("T")
Block = Callable[[], contextlib.AbstractContextManager[Any]]

_LOOK_EVERY_S = 0.05  # for a signal that another thread has received, and for a line of the user to interrupt
_MISSING = object()
_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_turn = threading.Lock()


def in_trace_thread(*blocks: Block) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that traces or plans: it runs in its own thread; within another one, in that thread.

    The thread has the caller's context variables, torch's function modes (a default device is one), grad mode and
    autocast. Context variables that the function sets are set for the caller when it ends. An error keeps its
    traceback, with the frames of both threads.

    Ctrl-C ends the function at a line of the user, or at the next op. A second Ctrl-C, before the function has
    reacted to the first, abandons it: the caller continues, and the function ends at its next op in the background.

    Args:
        blocks: context managers of the function's changes to the process, each entered once per thread.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            task = this_thread.task
            if task is None:
                result: T = _Task(functools.partial(function, *args, **kwargs), blocks).outcome()
                return result
            task.enter(blocks)
            with guards_ended():
                return function(*args, **kwargs)

        return run

    return decorate


def raise_interruption() -> None:
    """In the thread of a trace: raise the error that a signal handler has raised in the waiting thread, if any."""
    task = this_thread.task
    if task is not None and task.interruption is not None:
        task.raise_interruption()


def waiting_frame() -> FrameType | None:
    """In the thread of a trace: the waiting frame."""
    task = this_thread.task
    return None if task is None else task.waiting


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """A block for one thread at a time: the process has one tracer of torch."""
    while not _turn.acquire(timeout=_LOOK_EVERY_S):
        if not this_thread.task.is_abandoned:
            raise_interruption()
    try:
        yield
    finally:
        _turn.release()


class _Task:
    """A function in its own thread.

    Attributes:
        waiting: the frame that waits for it.
        interruption: the error of a signal handler in the waiting thread, until it is raised in this one.
        is_abandoned: whether no thread waits any more. Then each op raises the interruption.
        is_transformed: whether torch.func transforms the waiting call.
    """

    def __init__(self, function: Callable[[], Any], blocks: Sequence[Block]) -> None:
        self.waiting: FrameType | None = sys._getframe(2)
        self.interruption: BaseException | None = None
        self.is_abandoned = False
        self.is_transformed = torch._C._functorch.maybe_current_level() is not None
        self._function = function
        self._first_blocks = blocks
        self._blocks = contextlib.ExitStack()
        self._entered: set[Block] = set()
        self._context = contextvars.copy_context()
        self._set_torch_state = state_to_carry()
        self._debugger = sys.gettrace()
        self._result: Any = None
        self._error: BaseException | None = None
        self._struck: tuple[BaseException, FrameType, int] | None = None  # the error raised in a line of the user
        self._guard = threading.RLock()  # reentrant: its thread may put a dropped interruption back at any line
        self._is_over = False
        self._begins, self._ends = threading.Lock(), threading.Lock()  # free when it may begin, and when it is over
        self._begins.acquire()
        self._ends.acquire()
        self._thread = threading.Thread(target=self.body, name="tinyshard trace", daemon=True)

    # ---- in the thread that waits -----------------------------------------------------------------------------

    def outcome(self) -> Any:
        """Run it; returns its result or raises its error."""
        _watch_what_python_drops()
        try:
            self._start()
            self._begins.release()
            while not self._is_over:
                try:
                    activity.still_doing()
                    self._strike()
                    self._ends.acquire(timeout=_LOOK_EVERY_S)  # not join: a handler's error ends that in Python 3.11
                except BaseException as error:  # of a signal handler
                    self._interrupt(error)
        finally:
            if not self._is_over:
                self._abandon()
        self._thread.join()
        for variable, value in self._context.items():
            if variable.get(_MISSING) is not value:
                variable.set(value)
        failure, self._error = self._error, None
        if self.interruption is not None:  # the function ended before it was raised
            failure, self.interruption = self.interruption, None
        elif self._struck is not None and type(failure) is type(self._struck[0]):  # the error of the handler itself
            failure = self._struck[0].with_traceback(failure.__traceback__)
        self.waiting = self._struck = None
        try:
            if failure is not None:
                raise failure
            return self._result
        finally:
            del failure  # its traceback refers to this frame

    def _start(self) -> None:
        try:
            self._thread.start()
        except KeyError as error:  # CPython's own, if a signal handler raises in it just after the thread has begun
            if error.__context__ is None:
                raise
            raise error.__context__ from None

    def _interrupt(self, error: BaseException) -> None:
        """Keep the error of a signal handler for the function; raise it here if the function does not react."""
        waits = self.interruption
        if self._is_stuck() or (waits is not None and isinstance(error, KeyboardInterrupt)):
            raise error
        if not isinstance(waits, KeyboardInterrupt):
            self.interruption = error.with_traceback(None)

    def _strike(self) -> None:
        """Raise the pending interruption in the present line, if that is the user's."""
        frame = self._running_frame() if self.interruption is not None else None
        if frame is None or not is_users(frame):
            return
        with self._guard:
            if self.interruption is not None and not self._is_over:  # a later thread may get the same number
                self._struck = self.interruption, frame, frame.f_lasti
                _raise_in_thread(self._thread.ident, type(self.interruption))
                self.interruption = self.interruption if self.is_abandoned else None

    def _running_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread.ident or 0)

    def _is_stuck(self) -> bool:
        """Whether the interrupted line has not ended yet, because it waits in C."""
        frame = self._running_frame()
        return self._struck is not None and frame is not None and self._struck[1:] == (frame, frame.f_lasti)

    def _abandon(self) -> None:
        """Continue without it. It ends at its next op; its blocks end now if that may take long."""
        with self._guard:
            self.is_abandoned = True
            if self.interruption is None:
                self.interruption = KeyboardInterrupt()
            frame = self._running_frame()
            if frame is not None and is_users(frame):
                self._entered.clear()
                self._blocks.close()
        if self._begins.locked():
            self._begins.release()
        self._strike()

    # ---- in the thread of the function ------------------------------------------------------------------------

    def body(self) -> None:
        """The body of the thread."""
        this_thread.task = self
        try:
            try:
                with self._begins:  # an error of a signal handler before this is not for the function
                    pass
                self._set_torch_state()
                with self._blocks:
                    self.enter(self._first_blocks)
                    if self._debugger is not None and sys.gettrace() is None:
                        sys.settrace(self._debugger)
                    with guards_ended():
                        self._result = self._context.run(self._function)
            except BaseException as error:
                self._error = error
            with self._guard:
                self._is_over = True
        except BaseException as error:  # which was meant for a line of the user
            self._error, self._is_over = error, True
        self._ends.release()

    def put_back(self, kind: type[BaseException]) -> bool:
        """Keep the interruption again if this is the error that was raised for it."""
        with self._guard:
            if self._struck is None or kind is not type(self._struck[0]):
                return False
            self.interruption, self._struck = self._struck[0], None
            return True

    def enter(self, blocks: Sequence[Block]) -> None:
        """Enter blocks that the thread has not entered yet; they end with it."""
        raise_interruption()
        for block in blocks:
            if block not in self._entered:
                self._blocks.enter_context(block())
                self._entered.add(block)
        raise_interruption()

    def raise_interruption(self) -> None:
        """Raise the interruption."""
        with self._guard:
            error = self.interruption
            self.interruption = error if self.is_abandoned else None
            is_out_of_turn = self.is_abandoned and in_turn not in self._entered
        if is_out_of_turn:  # torch's tracer, which now ends, may belong to another thread
            self._entered.add(in_turn)
            self._blocks.enter_context(in_turn())
        if error is not None:
            raise error


_unraisable_of_before: Callable[[Any], Any] = sys.unraisablehook


def _watch_what_python_drops() -> None:
    """Put back an interruption that Python dropped in a finalizer, or in the callback of a weak reference."""
    global _unraisable_of_before
    if sys.unraisablehook is not _put_back:
        _unraisable_of_before, sys.unraisablehook = sys.unraisablehook, _put_back


def _put_back(dropped: Any) -> None:
    task = this_thread.task
    if task is None or not task.put_back(dropped.exc_type):
        _unraisable_of_before(dropped)


BODY = _Task.body.__code__  # of the outermost frame of the thread of a trace
