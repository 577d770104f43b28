"""Ctrl-C at any line of what starts processes and listens: no process, socket or lock is left behind."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.interrupts import strike_at
from tinyshard.runtime.forks import held_off
from tinyshard.runtime.launch import forkserver, hosts

SECRET = b"a secret of enough characters"
OF_LAUNCH = str(Path(hosts.__file__).parent)
# where an interrupt comes before a socket has its owner, the end of the exception closes it, with a warning
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def is_of_launch(file: str) -> bool:
    return file.startswith(OF_LAUNCH)


def test_an_interrupted_stop_leaves_no_fork_server_to_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    first = forkserver.start()

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            forkserver.stop()
        assert not first.is_alive
    try:
        assert forkserver.start() is not first
    finally:
        forkserver.stop()


def struck_everywhere(act: Callable[[], Any]) -> Iterator[int]:
    """After an interrupt at each line of what `act` does, in turn; last after an act without one."""
    is_going_on = True
    for line in range(1, 200):
        if is_going_on:
            is_going_on = strike_at(line, act, is_of_launch) is not None
            gc.collect(1)
            yield line
    assert not is_going_on


def assert_locks_are_free() -> None:
    def take() -> None:
        with held_off():
            pass

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_an_interrupt_of_a_fork_server_that_starts_or_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        """A process that waits for the end of its socket, as the fork server does, without torch."""

        def __init__(self, arguments: list[str], **options: Any) -> None:
            wait = f"import socket; socket.socket(fileno={options['pass_fds'][0]}).recv(1)"
            super().__init__([sys.executable, "-S", "-c", wait], **options)
            made.append(self)

    forkserver.stop()
    monkeypatch.setattr(subprocess, "Popen", Recorded)

    def start_and_stop() -> None:
        forkserver.start()
        forkserver.stop()

    before = psutil.Process().num_fds()
    for line in struck_everywhere(start_and_stop):
        forkserver.stop()  # one that was started is known, and can be ended
        for process in made:
            assert process.wait(timeout=20) == 0, line
        made.clear()
        gc.collect(1)
        assert psutil.Process().num_fds() == before, line
        assert_locks_are_free()
    assert line > 20


@pytest.mark.whole
def test_an_interrupt_of_a_listener_that_starts_or_ends_leaves_its_port_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TINYSHARD_SECRET", SECRET.decode())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    def join_and_leave() -> None:
        hosts.join(address)
        hosts.leave()

    before = psutil.Process().num_fds(), threading.active_count()
    for line in struck_everywhere(join_and_leave):
        hosts.leave()  # one that was joined is known, and can be left
        assert (psutil.Process().num_fds(), threading.active_count()) == before, line
        assert_locks_are_free()
        with contextlib.closing(hosts.Hosts(address, SECRET)):
            pass
    assert line > 30
    assert os.listdir(tmp_path) == []
