"""A run that a shell started in the background: there SIGINT is ignored, and a test of Ctrl-C would wait for ever."""

import signal


def restore_sigint() -> str | None:
    """Give SIGINT its usual meaning in this process and in those that it starts; returns what was done, if anything."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        return None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return "SIGINT was ignored, as a shell does for what it starts in the background; it interrupts this run again"
