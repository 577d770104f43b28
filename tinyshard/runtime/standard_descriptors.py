"""Keeps descriptors 0, 1 and 2 for the standard streams: no socket or file of the runtime gets one of these numbers.

A process that is started with `2>&-` has no descriptor 2, and the next socket would get the number. Then a C library's
output to stderr would go into it, and a worker, whose stdout and stderr are a pipe, would lose the socket.
"""

from __future__ import annotations

import os


def open_standard_descriptors() -> None:
    """Open the null device at those of 0, 1 and 2 that are closed, in this process and in those that it starts.

    `sys.stdin`, `sys.stdout` and `sys.stderr` do not change: they are None if a stream was closed from the start.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(fd, True)
    os.close(fd)
