"""Who knows the secret gets in, who does not learns nothing; with real sockets, without a pool."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime.launch import connect as auth

SECRET = b"a secret of enough characters"


def both(worker: Callable[[socket.socket], Any], controller: Callable[[socket.socket], Any]) -> tuple[Any, Any]:
    """What the two sides return or raise."""
    ours, theirs = socket.socketpair()
    ended: list[Any] = [None, None]

    def run(place: int, side: Callable[[socket.socket], Any], sock: socket.socket) -> None:
        with sock:
            sock.settimeout(20)
            try:
                ended[place] = side(sock)
            except Exception as error:  # it is what the test asks about
                ended[place] = error

    threads = [
        threading.Thread(target=run, args=(0, worker, ours)),
        threading.Thread(target=run, args=(1, controller, theirs)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended[0], ended[1]


def test_two_that_know_the_secret_believe_each_other() -> None:
    assert both(lambda s: auth.prove_worker(s, SECRET, 20), lambda s: auth.prove_controller(s, SECRET, 20)) == (
        None,
        None,
    )


def test_a_worker_refuses_a_controller_that_does_not_know_the_secret() -> None:
    worker, controller = both(
        lambda s: auth.prove_worker(s, SECRET, 20), lambda s: auth.prove_controller(s, b"another", 20)
    )
    assert isinstance(worker, auth.RefusedError) and "controller does not know" in str(worker)
    # in the notebook, where it ends the wait: which of the two has the wrong secret cannot be known
    assert isinstance(controller, auth.RefusedError) and "know the same secret" in str(controller)


def test_a_controller_refuses_a_worker_that_does_not_know_the_secret() -> None:
    def lie(sock: socket.socket) -> bytes:
        sock.sendall(auth.MAGIC + b"n" * auth.NONCE_NBYTES)
        said = sock.recv(1000)
        sock.sendall(b"p" * 32)
        assert sock.recv(1000) == b""
        return said

    said, controller = both(lie, lambda s: auth.prove_controller(s, SECRET, 20))
    assert isinstance(controller, auth.RefusedError) and "does not know the secret" in str(controller)
    assert SECRET not in said


def test_what_the_controller_proves_cannot_be_played_back_to_it() -> None:
    def reflect(sock: socket.socket) -> None:
        sock.sendall(auth.MAGIC + b"n" * auth.NONCE_NBYTES)
        said = sock.recv(1000)
        sock.sendall(said[auth.NONCE_NBYTES :])

    _, controller = both(reflect, lambda s: auth.prove_controller(s, SECRET, 20))
    assert isinstance(controller, auth.RefusedError)


def test_who_sends_a_byte_now_and_then_is_refused_in_time() -> None:
    def dawdle(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for byte in auth.MAGIC * 100:
                sock.sendall(bytes([byte]))
                sock.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if not sock.recv(1):
                        return

    _, controller = both(dawdle, lambda s: auth.prove_controller(s, SECRET, 0.3))
    assert isinstance(controller, OSError)


def test_a_proof_holds_for_its_own_side_and_nonces_alone() -> None:
    nonces = [(n, m) for n in (b"1" * 32, b"2" * 32) for m in (b"1" * 32, b"2" * 32)]
    assert len({auth.proof(SECRET, side, n, m) for side in ("worker", "controller") for n, m in nonces}) == 8


def test_one_worker_gives_nothing_that_lets_another_believe_an_impostor() -> None:
    def impostor(sock: socket.socket) -> bytes:
        nonce = sock.recv(1000)[len(auth.MAGIC) :]  # another worker's would be used like it
        sock.sendall(nonce + auth.proof(b"not the secret", "controller", nonce, nonce))
        return sock.recv(1000)

    worker, learned = both(lambda s: auth.prove_worker(s, SECRET, 20), impostor)
    assert isinstance(worker, auth.RefusedError)
    assert learned == b""


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n" + b" " * 60, b"\x80\x05" + b"x" * 80])
def test_who_speaks_another_language_gets_no_answer(words: bytes) -> None:
    def speak(sock: socket.socket) -> bytes:
        sock.sendall(words)
        try:
            return sock.recv(1000)
        except ConnectionResetError:
            return b""

    got, controller = both(speak, lambda s: auth.prove_controller(s, SECRET, 20))
    assert got == b""
    assert isinstance(controller, auth.RefusedError) and "language" in str(controller)


def test_the_controller_makes_a_secret_that_only_its_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(auth.SECRET, raising=False)
    path = tmp_path / "folder" / "secret"
    monkeypatch.setenv(auth.SECRET_FILE, str(path))
    made = auth.read_secret(may_make=True)
    assert len(made) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert auth.read_secret() == auth.read_secret(may_make=True) == made


def test_a_secret_in_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(auth.SECRET, "x" * 20)
    monkeypatch.setenv(auth.SECRET_FILE, str(tmp_path / "none"))
    assert auth.read_secret() == b"x" * 20


def test_a_secret_may_be_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, words = tmp_path / "secret", b"\xff\x00as openssl rand writes it"
    path.touch(0o600)
    path.write_bytes(words)
    assert auth.read_secret(str(path)) == words
    monkeypatch.setenv(auth.SECRET, os.fsdecode(b"\xff" * 20))
    assert auth.read_secret() == b"\xff" * 20


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [("x" * 40, 0o644, "others can read"), ("k3y5", 0o600, "too short"), (None, 0, "there is no secret")],
)
def test_a_secret_that_is_none_is_refused_with_the_reason(
    text: str | None, mode: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(auth.SECRET, raising=False)
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        os.chmod(path, mode)
    with pytest.raises(RuntimeStateError, match=words) as raised:
        auth.read_secret(str(path))
    assert text is None or text not in str(raised.value)
