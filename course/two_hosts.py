"""Two hosts on this laptop: torchrun twice, and a link to the second one that can be made slow, or cut.

    the notebook  ──────────────────────────────── host a: torchrun, CPU 0
     (controller) ───── relay: slow, or cut ────── host b: torchrun, CPU 1

A relay is a program that takes bytes from one connection and passes them on to another. All that the controller and
host b say to each other goes through it: orders, values that are fetched, and signs of life. What devices send to each
other in a collective does not: gloo opens connections of its own, and nothing without the rights of an administrator
can make those slow.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course import torchrun

__all__ = ["Relay", "TwoHosts"]

_ROOM = 2**16  # bytes that are read at once
_SECOND_ADDRESS = "127.0.0.2"  # host b's, as the controller sees it


class Relay:
    """Passes bytes on between those that connect and one address, after a delay, and not at all while it is cut.

    While it is cut, bytes are held, not lost: that is what TCP makes of a link that is cut and joined again.

    Args:
        to: "HOST:PORT", where the bytes go.

    Attributes:
        address: "HOST:PORT", where it listens.
        latency_s: seconds by which every byte is late, in each direction. May be changed while it runs.
    """

    def __init__(self, to: str) -> None:
        self.latency_s = 0.0
        self._to = to
        self._passes = threading.Event()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet([self._listener])
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def cut(self) -> None:
        """Let nothing through any more; no connection ends."""
        self._passes.clear()

    def join(self) -> None:
        """Let through what was held, and all that follows."""
        self._passes.set()

    def close(self) -> None:
        """End it and its connections."""
        self.join()
        for sock in list(self._sockets):
            _shut(sock)

    def _start(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=given, name="relay", daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        host, port = self._to.rsplit(":", 1)
        with self._listener, contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.add(near)
                try:
                    far = self._reach(host, int(port))
                except OSError:  # no controller yet: the worker will try again
                    near.close()
                    continue
                self._sockets.add(far)
                self._start(self._carry, near, far)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Both directions of one connection, until both have ended."""
        threads = []
        with near, far:
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((near, far), (far, near)):
                late: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threads += [self._start(self._read, source, late), self._start(self._write, target, late)]
            for thread in threads:
                thread.join()

    def _reach(self, host: str, port: int) -> socket.socket:
        """A connection to where the bytes go, from an address of its own where this system has more than one."""
        try:
            return socket.create_connection((host, port), source_address=(_SECOND_ADDRESS, 0))
        except OSError:  # macOS has only 127.0.0.1 by default
            return socket.create_connection((host, port))

    def _read(self, source: socket.socket, late: queue.Queue[tuple[float, bytes]]) -> None:
        data = b" "
        while data:
            try:
                data = source.recv(_ROOM)
            except OSError:
                data = b""
            late.put((time.monotonic() + self.latency_s, data))

    def _write(self, target: socket.socket, late: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            due_s, data = late.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._passes.wait()
            try:
                if not data:
                    break
                target.sendall(data)
            except OSError:
                break
        _shut(target, socket.SHUT_WR)  # the other direction may still send


class TwoHosts:
    """Two launchers on this laptop, each with a few workers, that wait for a controller.

    Use it in a `with` block, or call `close`.

    Args:
        devices_each: how many devices each host has.

    Attributes:
        address: for `ts.init(hosts=...)`.
        link: to host b, between it and the controller.
        commands: what was typed on each host, by its name.

    Example:
        >>> TwoHosts.__name__, Relay.__name__
        ('TwoHosts', 'Relay')
    """

    def __init__(self, devices_each: int = 1) -> None:
        self.address = f"127.0.0.1:{_free_port()}"
        self.link = Relay(self.address)
        self.commands: dict[str, list[str]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="two-hosts-", ignore_cleanup_errors=True)
        secret = Path(self._folder.name) / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        self._before = {name: os.environ.get(name) for name in ("TINYSHARD_SECRET_FILE", "TINYSHARD_SECRET")}
        os.environ.pop("TINYSHARD_SECRET", None)
        os.environ["TINYSHARD_SECRET_FILE"] = str(secret)  # the controller reads it, too
        meet = f"--master-addr=127.0.0.1 --master-port={_free_port()}"
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}
        for rank, (name, controller) in enumerate({"a": self.address, "b": self.link.address}.items()):
            job = f"--nnodes=2 --node-rank={rank} --nproc-per-node={devices_each} {meet}"
            self.commands[name] = ["torchrun", *job.split(), "-m", "tinyshard.worker", "--controller", controller]
            self._launchers[name] = self._launch(name)
        weakref.finalize(self, _end, list(self._launchers.values()), self.link)

    def __enter__(self) -> TwoHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        with (Path(self._folder.name) / f"{name}.log").open("w") as log:
            return torchrun.start([*self.commands[name][1:], "--wait", "20"], log, log)

    def said(self) -> str:
        """What the launchers and the workers have written."""
        return "\n".join(f"{name}: {(Path(self._folder.name) / f'{name}.log').read_text()}" for name in self._launchers)

    def switch_off(self, name: str) -> None:
        """End all processes of a host at once. Their connections end too; a host without power would only be silent.

        Args:
            name: "a" or "b".
        """
        torchrun.kill(self._launchers[name])

    def close(self) -> None:
        """End both hosts and the link. Call `ts.shutdown()` before it."""
        _end(list(self._launchers.values()), self.link)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._folder.cleanup()


def _end(launchers: list[subprocess.Popen[bytes]], link: Relay) -> None:
    for launcher in launchers:
        torchrun.kill(launcher)
    link.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _shut(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    with contextlib.suppress(OSError):  # closed before
        sock.shutdown(how)
