"""Connections between the controller and the processes of other machines: each side proves that it knows a secret.

    worker                                          controller
    MAGIC, its nonce                          →
                                              ←     the controller's nonce, HMAC(secret, "controller", both nonces)
    HMAC(secret, "worker", both nonces)       →
    (role, rank, facts)                       →
                                              ←     (None,), or the error with which the controller refuses

The first three have a fixed length, and neither side unpickles a byte before the proof of its peer. The secret itself
is never sent. Later messages are neither encrypted nor signed: a process that can change packets between the machines
can change them. (The challenge of `multiprocessing.connection` does not name the side that answers it: a process that
listens in the controller's place can pass one worker's challenge to another worker, and the answer back, and is
accepted by both.)

A machine that loses its power or its cable sends nothing. So the kernels of both machines probe a connection after a
second of silence, then every second; it breaks a second after the second probe without an answer. Processes are not
involved, so a busy or a stopped one is not mistaken for a lost one.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hmac
import os
import secrets
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime import wire

MAGIC = b"tinyshard hosts 1"
NONCE_NBYTES = 32
_PROOF_NBYTES = 32
SECRET = "TINYSHARD_SECRET"
SECRET_FILE = "TINYSHARD_SECRET_FILE"
_SHORTEST_SECRET = 16
# a worker's connections: its channel, its control line, and its printed output
WORKER_LINES = ("channel", "control", "output")
# for the proofs, and for each message up to the welcome: on a machine that is busy
SPEAK_WITHIN_S = 30
_SILENT_S = 1
_PROBES = 2
# silence, probes, and the kernel's own rounding: below the 5 s within which every wait ends
_BROKEN_WITHIN_S = 3


class RefusedError(ConnectionError):
    """The peer does not know the secret, does not use this protocol, or refuses this process."""


def connect(address: tuple[str, int], secret: bytes, hello: tuple[str, int, dict[str, Any]]) -> socket.socket:
    """Connect to the controller, which must know the secret, and send the purpose of the connection.

    Args:
        address: host and port.
        secret: shared by both sides.
        hello: role ("agent" or one of `WORKER_LINES`), rank, and facts.

    Raises:
        OSError: the controller cannot be reached, or cannot take this connection yet.
        RefusedError: it is not the controller, or it refuses.
    """
    sock = socket.create_connection(address, timeout=SPEAK_WITHIN_S)
    try:
        prove_worker(sock, secret, SPEAK_WITHIN_S)
        wire.send(sock, hello)
        (refusal,) = wire.receive(sock)
        if refusal is not None:
            raise refusal
        keep_alive(sock, hello[0])
    except BaseException:
        sock.close()
        raise
    return sock


def prove_worker(sock: socket.socket, secret: bytes, within_s: float) -> None:
    """The worker's side of the proofs.

    Raises:
        RefusedError: the other side is not the controller.
        OSError: it ends the connection, or is too slow.
    """
    end_s = time.monotonic() + within_s
    mine = secrets.token_bytes(NONCE_NBYTES)
    sock.sendall(MAGIC + mine)
    theirs, shown = wire.exactly(sock, NONCE_NBYTES, end_s), wire.exactly(sock, _PROOF_NBYTES, end_s)
    if not hmac.compare_digest(shown, proof(secret, "controller", mine, theirs)):
        raise RefusedError("the controller does not know the secret")
    sock.sendall(proof(secret, "worker", mine, theirs))
    sock.settimeout(within_s)


def prove_controller(sock: socket.socket, secret: bytes, within_s: float) -> None:
    """The controller's side of the proofs. Raises as `prove_worker` does."""
    end_s = time.monotonic() + within_s
    asked = wire.exactly(sock, len(MAGIC) + NONCE_NBYTES, end_s)
    if not asked.startswith(MAGIC):
        raise RefusedError("it does not speak this language")
    theirs, mine = asked[len(MAGIC) :], secrets.token_bytes(NONCE_NBYTES)
    sock.sendall(mine + proof(secret, "controller", theirs, mine))
    try:
        shown = wire.exactly(sock, _PROOF_NBYTES, end_s)
    except ConnectionError:  # a worker that refuses this side's proof disconnects
        raise RefusedError("it left, as it does where it and the controller do not know the same secret") from None
    if not hmac.compare_digest(shown, proof(secret, "worker", theirs, mine)):
        raise RefusedError("it does not know the secret")
    sock.settimeout(within_s)


def proof(secret: bytes, side: str, worker_nonce: bytes, controller_nonce: bytes) -> bytes:
    """The proof that a side, "worker" or "controller", knows the secret, valid only for these two nonces."""
    return hmac.digest(secret, side.encode() + b"|" + worker_nonce + controller_nonce, "sha256")


def read_secret(path: str | None = None, *, may_make: bool = False) -> bytes:
    """The secret that the controller and its workers share.

    Args:
        path: of a file that only the user can read; by default the environment variable TINYSHARD_SECRET is the secret
            itself, or TINYSHARD_SECRET_FILE is the path, or the file is ~/.tinyshard/secret.
        may_make: make the file, with a new secret, if there is none.

    Raises:
        RuntimeStateError: there is no secret, it is too short, or other users can read its file.
    """
    place = f"the environment variable {SECRET}"
    secret = os.fsencode(os.environ.get(SECRET, "")).strip() if path is None else b""
    if not secret:
        file = Path(path or os.environ.get(SECRET_FILE) or Path.home() / ".tinyshard" / "secret")
        place = str(file)
        try:
            with contextlib.suppress(FileExistsError):
                if may_make:
                    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                        out.write(secrets.token_hex(32) + "\n")
            with file.open("rb") as opened:
                mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
                secret = opened.read().strip()
        except OSError as error:
            try_ = "copy the file from the controller's machine, where ts.init(hosts=...) makes it"
            raise _no_secret("there is no secret", f"{file}: {error.strerror}", try_) from None
        if mode & 0o077:
            try_ = f"chmod 600 {file}, and make a new secret if another user may have read it"
            raise _no_secret("others can read the file of the secret", f"{file}, mode {mode:o}", try_)
    if len(secret) < _SHORTEST_SECRET:
        try_ = 'python -c "import secrets; print(secrets.token_hex(32))"'
        raise _no_secret("the secret is too short", f"{len(secret)} bytes in {place}", try_)
    return secret


def _no_secret(problem: str, got: str, try_: str) -> RuntimeStateError:
    rule = (
        f"controller and workers know each other by {_SHORTEST_SECRET} bytes or more that were chosen by chance: "
        f"the value of {SECRET}, or a file of mode 600, {SECRET_FILE} or ~/.tinyshard/secret"
    )
    return RuntimeStateError(problem, got=got, rule=rule, try_=try_)


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
            "the address of the controller is a host and a port",
            got=repr(address),
            rule="an address of this machine that the other machines can reach, and a free port",
            try_='ts.init(hosts="10.0.0.1:29400")',
        )
    return host, int(port)


def versions() -> dict[str, str]:
    """The facts that must be the same in a controller and its workers, which exchange pickles and programs."""
    return {"python": "{}.{}".format(*sys.version_info), "torch": torch.__version__.partition("+")[0]}


def keep_alive(sock: socket.socket, role: str) -> None:
    """Probe a silent connection; send small messages at once; wait for the peer without a time limit.

    An agent's connection and a control line break as soon if data is not acknowledged. A channel does not: its data
    may be unread for hours, while a device computes.
    """
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _SILENT_S,
        "TCP_KEEPALIVE": _SILENT_S,
        "TCP_KEEPINTVL": _SILENT_S,
        "TCP_KEEPCNT": _PROBES,
    }
    if role in ("agent", "control"):
        options["TCP_USER_TIMEOUT"] = 1000 * _BROKEN_WITHIN_S
    for name, value in options.items():
        if hasattr(socket, name):  # TCP_KEEPALIVE is macOS's name of TCP_KEEPIDLE
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def wait_until_there(descriptor: int) -> None:
    """Wait until all bytes written to a line have arrived, so that later ones on other lines arrive after them."""
    siocoutq = 0x5411
    pending = array.array("i", [int(sys.platform == "linux")])
    end_s = time.monotonic() + _BROKEN_WITHIN_S
    while pending[0] and time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, siocoutq, pending)
        if pending[0]:
            time.sleep(0.0002)
