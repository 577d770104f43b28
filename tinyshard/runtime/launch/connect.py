"""TCP connections between machines: how they are opened, and when a silent one counts as broken.

A machine that loses its power or its cable says nothing. The kernels ask each other: after a second of silence, then
every second; the third question without an answer breaks the line. No process takes part, so a busy or a stopped one is
not mistaken for a lost one. Data that nobody acknowledges breaks a watched line as fast; but not a channel, where data
may lie for hours before a device that computes has time for it.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import sys
import time
from typing import Any

from tinyshard.errors import RuntimeStateError, message
from tinyshard.runtime import wire
from tinyshard.runtime.launch import authentication

# the controller's answer to a hello, before which nothing else is said on a line. The others are (LATER, why), after
# which it may be tried again, and (REFUSED, why)
WELCOME = ("welcome",)
LATER = "later"
REFUSED = "refused"

SILENT_S = 1
QUESTIONS = 2
# silence, questions, and the kernel's own rounding: below the 5 s within which every wait ends
BROKEN_WITHIN_S = 3
# on a machine that is busy; START_WITHIN_S of `remote_workers` is longer
SPEAK_WITHIN_S = 30


def connect(
    address: tuple[str, int], secret: bytes, hello: tuple[Any, ...], timeout_s: float = SPEAK_WITHIN_S
) -> socket.socket:
    """Connect to the controller, prove to each other who one is, and say what the line is for.

    Args:
        address: host and port.
        secret: what both know.
        hello: role and particulars.
        timeout_s: how long it may take.

    Raises:
        OSError: it cannot be reached.
        authentication.RefusedError: it is not the controller, or it refuses.
    """
    sock = socket.create_connection(address, timeout=timeout_s)
    try:
        authentication.ask(sock, secret, timeout_s)
        wire.send(sock, hello)
        word, *why = wire.receive(sock)
        if word == LATER:
            raise ConnectionError(why[0])
        if word != WELCOME[0]:
            raise authentication.RefusedError(why[0])
        tune(sock)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Send small messages at once, and ask the other kernel whether it is there when nothing is said."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # the second is macOS's
    for option, value in (
        (idle, SILENT_S),
        (getattr(socket, "TCP_KEEPINTVL", None), SILENT_S),
        (getattr(socket, "TCP_KEEPCNT", None), QUESTIONS),
    ):
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def watch(sock: socket.socket) -> None:
    """For a line on which little is said: what is sent must be acknowledged soon."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * BROKEN_WITHIN_S)


def wait_until_there(descriptor: int) -> None:
    """Wait until all that was written to a line is at the other end: what comes on other lines later is later there."""
    if sys.platform != "linux":
        return
    siocoutq = 0x5411
    pending = array.array("i", [1])
    end_s = time.monotonic() + BROKEN_WITHIN_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, siocoutq, pending)
        if not pending[0]:
            return
        time.sleep(0.0002)


def parse(address: str) -> tuple[str, int]:
    """Host and port of "10.0.0.1:29400" or "[fd00::1]:29400".

    Raises:
        RuntimeStateError: it is not of this form.

    Example:
        >>> parse("10.0.0.1:29400")
        ('10.0.0.1', 29400)
    """
    host, _, port = str(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise RuntimeStateError(
            message(
                "the address of the controller is a host and a port",
                got=repr(address),
                rule="an address of this machine that the other machines can reach, and a free port",
                try_='ts.init(hosts="10.0.0.1:29400")',
            )
        )
    return host, int(port)
