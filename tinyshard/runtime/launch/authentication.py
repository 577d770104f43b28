"""Two processes on a network prove to each other that both know a secret, before either believes a word of the other.

    worker                                          controller
    MAGIC, its nonce                          →
                                              ←     the controller's nonce, HMAC(secret, "controller", both nonces)
    HMAC(secret, "worker", both nonces)       →

All of it has a fixed length, and nothing is unpickled before it is over. The secret itself never travels. What follows
is neither encrypted nor signed: whoever can change packets between the machines can change it.

(The challenge of `multiprocessing.connection` does not name the side that answers it: a process that listens in the
controller's place passes one worker's challenge to another worker, and the answer back, and both believe it.)
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import stat
import time
from pathlib import Path

from tinyshard.errors import RuntimeStateError, message

MAGIC = b"tinyshard hosts 1"
NONCE_NBYTES = 32
_PROOF_NBYTES = 32
SHORTEST_SECRET = 16
SECRET = "TINYSHARD_SECRET"
SECRET_FILE = "TINYSHARD_SECRET_FILE"


class RefusedError(ConnectionError):
    """The other side does not know the secret, or does not speak this language."""


def proof(secret: bytes, side: str, worker_nonce: bytes, controller_nonce: bytes) -> bytes:
    """What shows that a side, "worker" or "controller", knows the secret: for these two nonces and no others."""
    return hmac.digest(secret, side.encode() + b"|" + worker_nonce + controller_nonce, "sha256")


def ask(sock: socket.socket, secret: bytes, within_s: float) -> None:
    """The worker's side. Raises RefusedError if the other side is not the controller, or refuses this worker."""
    end_s = time.monotonic() + within_s
    mine = secrets.token_bytes(NONCE_NBYTES)
    sock.sendall(MAGIC + mine)
    theirs, shown = _receive(sock, NONCE_NBYTES, end_s), _receive(sock, _PROOF_NBYTES, end_s)
    if not hmac.compare_digest(shown, proof(secret, "controller", mine, theirs)):
        raise RefusedError("the controller does not know the secret")
    sock.sendall(proof(secret, "worker", mine, theirs))


def answer(sock: socket.socket, secret: bytes, within_s: float) -> None:
    """The controller's side. Raises RefusedError if the other side is no worker that knows the secret."""
    end_s = time.monotonic() + within_s
    asked = _receive(sock, len(MAGIC) + NONCE_NBYTES, end_s)
    if not asked.startswith(MAGIC):
        raise RefusedError("it does not speak this language")
    theirs, mine = asked[len(MAGIC) :], secrets.token_bytes(NONCE_NBYTES)
    sock.sendall(mine + proof(secret, "controller", theirs, mine))
    if not hmac.compare_digest(_receive(sock, _PROOF_NBYTES, end_s), proof(secret, "worker", theirs, mine)):
        raise RefusedError("it does not know the secret")


def _receive(sock: socket.socket, nbytes: int, end_s: float) -> bytes:
    got = b""
    while len(got) < nbytes:
        sock.settimeout(max(0.001, end_s - time.monotonic()))  # of the whole: a byte now and then gains no time
        part = sock.recv(nbytes - len(got))
        if not part:
            raise ConnectionError("the other side ended the connection")
        got += part
    return got


def read_secret(path: str | None = None, *, may_make: bool = False) -> bytes:
    """The secret that the controller and its workers share.

    Args:
        path: of a file that only the user can read; by default the environment variable TINYSHARD_SECRET is the secret
            itself, or TINYSHARD_SECRET_FILE is the path, or the file is ~/.tinyshard/secret.
        may_make: make the file, with a new secret, if there is none.

    Raises:
        RuntimeStateError: there is none, it is too short, or others can read its file.
    """
    place = f"the environment variable {SECRET}"
    secret = os.environ.get(SECRET, "").strip() if path is None else ""
    if not secret:
        file = Path(path or os.environ.get(SECRET_FILE) or Path.home() / ".tinyshard" / "secret")
        place, secret = str(file), _read(file, may_make)
    if len(secret) < SHORTEST_SECRET:
        raise RuntimeStateError(
            message(
                "the secret is too short",
                got=f"{len(secret)} characters in {place}",
                rule=f"at least {SHORTEST_SECRET}, chosen by chance",
                try_='python -c "import secrets; print(secrets.token_hex(32))"',
            )
        )
    return secret.encode()


def _read(file: Path, may_make: bool) -> str:
    try:
        if may_make:
            with contextlib.suppress(FileExistsError):
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                    made.write(secrets.token_hex(32) + "\n")
        with file.open() as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read().strip()
    except OSError as error:
        raise RuntimeStateError(
            message(
                "there is no secret by which workers and controller know each other",
                got=f"{file}: {error.strerror}",
                rule=f"{SECRET} holds it, or a file of mode 600: {SECRET_FILE} or ~/.tinyshard/secret",
                try_="copy the file from the controller's machine, where ts.init(hosts=...) makes it",
            )
        ) from None
    if mode & 0o077:
        raise RuntimeStateError(
            message(
                "others can read the file of the secret",
                got=f"{file}, mode {mode:o}",
                rule="only its owner may: mode 600",
                try_=f"chmod 600 {file}, and make a new secret if anybody may have read it",
            )
        )
    return text
