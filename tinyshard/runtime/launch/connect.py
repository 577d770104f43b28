"""TCP connections between machines: how they are opened, and when a silent one counts as broken.

A machine that loses its power or its cable says nothing. So the kernels of the two machines send keep-alive probes
after a second of silence, then every second, and the third one without an answer breaks the connection. No process
takes part, so a busy or a stopped one is not mistaken for a lost one. Data that is not acknowledged breaks an agent's
connection as fast; but not a worker's, where data may lie for hours before a device that computes has time for it.
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

# a worker's connections: its channel, its control line, what it prints, and its rendezvous with the other workers
WORKER_LINES = ("channel", "control", "output", "store")
# the controller's answer to a hello is one of these, and why; after LATER it may be tried again
WELCOME = "welcome"
LATER = "later"
REFUSED = "refused"

SILENT_S = 1
PROBES = 2
# silence, probes, and the kernel's own rounding: below the 5 s within which every wait ends
BROKEN_WITHIN_S = 3
# on a machine that is busy; START_WITHIN_S of `remote_workers` is longer
SPEAK_WITHIN_S = 30


def connect(address: tuple[str, int], secret: bytes, hello: tuple[str, int, dict[str, Any]]) -> socket.socket:
    """Connect to the controller, prove to each other to know the secret, and say what the connection is for.

    Args:
        address: host and port.
        secret: what both know.
        hello: role ("agent" or one of `WORKER_LINES`), rank, and facts.

    Raises:
        OSError: it cannot be reached, or cannot take this one yet.
        authentication.RefusedError: it is not the controller, or it refuses.
    """
    sock = socket.create_connection(address, timeout=SPEAK_WITHIN_S)
    try:
        authentication.ask(sock, secret, SPEAK_WITHIN_S)
        wire.send(sock, hello)
        word, why = wire.receive(sock)
        if word != WELCOME:
            raise ConnectionError(why) if word == LATER else authentication.RefusedError(why)
        keep_alive(sock, hello[0])
    except BaseException:
        sock.close()
        raise
    return sock


def keep_alive(sock: socket.socket, role: str) -> None:
    """Probe a silent connection; send small messages at once; wait for the other side without a time limit."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": SILENT_S, "TCP_KEEPALIVE": SILENT_S, "TCP_KEEPINTVL": SILENT_S, "TCP_KEEPCNT": PROBES}
    if role == "agent":
        options["TCP_USER_TIMEOUT"] = 1000 * BROKEN_WITHIN_S
    for name, value in options.items():
        if hasattr(socket, name):  # TCP_KEEPALIVE is macOS's name of TCP_KEEPIDLE
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def wait_until_there(descriptor: int) -> None:
    """Wait until all that was written to a line is at the other end: what comes on other lines later is later there."""
    if sys.platform != "linux":
        return
    siocoutq = 0x5411
    pending = array.array("i", [1])
    end_s = time.monotonic() + BROKEN_WITHIN_S
    while pending[0] and time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, siocoutq, pending)
        if pending[0]:
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
