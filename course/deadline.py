"""A time limit on work in the main thread: the cell that checks an answer always ends, whatever the answer does."""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OverdueError", "deadline"]


class OverdueError(TimeoutError):
    """The work was still running when its time was up."""


@contextmanager
def deadline(limit_s: float) -> Iterator[None]:
    """Interrupt what runs inside after `limit_s` seconds, as Ctrl-C would, and again should that be swallowed.

    Only the main thread can be interrupted: in any other thread there is no limit.

    Raises:
        OverdueError: the time was up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    turn = threading.Lock()
    is_late = False

    def watch() -> None:
        nonlocal is_late
        while not over.wait(limit_s):
            with turn:
                if not over.is_set():
                    is_late = True
                    _interrupt_main()

    watcher = threading.Thread(target=watch, name="deadline", daemon=True)
    try:
        watcher.start()
        try:
            yield
        finally:
            with turn:  # an interrupt has been sent by now, or never will be
                over.set()
            watcher.join()
    except KeyboardInterrupt:
        if not is_late:
            raise
        raise OverdueError(f"still running after {limit_s} s") from None


def _interrupt_main() -> None:
    """A real signal where there is one: it also wakes a main thread that sleeps in a system call."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()
