"""The process that workers are forked from: it has torch loaded and has never computed, so a fork is quick and safe.

The notebook's kernel must not be forked itself: after one large matmul in the parent, forked children hang. (The
standard library's forkserver would work, but there is one per process, it may already run without torch, and it leaves
its listening socket behind when the kernel is killed. This one communicates over a socket pair.)
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import multiprocessing
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime.forks import abandon_in_child, held_off, open_standard_descriptors
from tinyshard.runtime.launch.children import Children

# it imports torch first, on a machine that may be busy
_READY_WITHIN_S = 300.0
_FORKS_WITHIN_S = 60.0
_KILLS_WITHIN_S = 5.0
_LATER_KILLS_WITHIN_S = 0.2  # after it has once not answered in time
# the program of the process. A terminal may stop a process of another group that writes to it: so SIGTTOU comes first.
# Importing torch takes a second or more: meanwhile a thread, which ends before the first worker is forked, ends the
# process if the controller ends
SCRIPT = """
import sys
sys.path[:] = {path!r}
import os, select, signal, threading
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
def end_with_controller():
    connection = select.poll()
    connection.register({fd}, select.POLLHUP)
    while not is_loaded.wait(0.1):
        if connection.poll(0):
            os._exit(0)
is_loaded = threading.Event()
watch = threading.Thread(target=end_with_controller, daemon=True)
watch.start()
from tinyshard.runtime.launch.forkserver import serve
is_loaded.set()
watch.join()
serve({fd})
"""


def allocator() -> dict[str, str]:
    """The environment variables by which a process uses tcmalloc, if it is installed.

    Its memory for a tensor is what another has just left, still in the processor's cache. What it keeps: `shm.system`.
    """
    is_condas = os.path.exists(f"{sys.base_prefix}/conda-meta")  # its libraries do not go together with the system's
    folders = [f"{sys.base_prefix}/lib"] if is_condas else [f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64"]
    names = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
    paths = (f"{folder}/{name}" for folder in folders for name in names if not {" ", ":"} & set(folder))  # separators
    path = next(filter(os.path.exists, paths), "")
    return {"LD_PRELOAD": path, "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "0"} if path else {}  # it would print large


class ForkServer:
    """The controller's end. Starting it takes no time; it is ready about a second later.

    Communication: a socket pair, with no name in any file system and no port.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._kills_within_s = _KILLS_WITHIN_S
        self._is_closing = False
        self._preloaded = allocator()
        self._launch()

    def _launch(self) -> None:
        path = [os.path.abspath(p) for p in sys.path]  # "" is the folder of the controller
        environment = {**self._preloaded, **os.environ, "TINYSHARD_ROLE": "worker"}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors on large pages
        open_standard_descriptors()
        with held_off():
            self._sock, theirs = socket.socketpair()
            try:
                with theirs:
                    self._process = subprocess.Popen(
                        [sys.executable, "-c", SCRIPT.format(path=path, fd=theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        env=environment,
                        # a terminal's Ctrl-C is for the controller. A separate session would keep it away too, but
                        # Linux may distribute the cores by sessions: then another busy process gets nearly all
                        process_group=0,
                    )
                abandon_in_child(self)
                atexit.register(self.close)
            except BaseException:
                self._sock.close()  # which ends the process too
                raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs, belongs to the calling process, and is not being closed."""
        return not self._is_closing and self._sock.fileno() >= 0 and self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until it forks at once: from its start it loads torch for a second.

        Raises:
            OSError: it is gone, or does not answer.
        """
        try:
            self._ask("ready", within_s=_READY_WITHIN_S)
        except ConnectionError:
            if not self._preloaded:
                raise
            self.close()  # what it was to load may not go together with this Python's own libraries
            self._preloaded, self._is_closing = {}, False
            self._launch()
            self._ask("ready", within_s=_READY_WITHIN_S)

    def fork(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Fork one worker; returns its pid. Must be called after it is ready.

        Args:
            request: arguments of `worker.main` that are plain data.
            fds: the descriptors that it should have: channel, control line, output, store, and a doorbell if there is
                one.

        Raises:
            OSError: it is gone, or does not answer.
            RuntimeStateError: the system refuses further forks.
        """
        pid = self._ask("fork", request, fds, within_s=_FORKS_WITHIN_S)
        if isinstance(pid, str):  # the error
            raise _not_started(pid)
        return int(pid)

    def kill(self, pid: int) -> int | None:
        """Kill a worker, stopped or not, and wait until it is gone, if the fork server answers in time.

        Returns:
            Its wait status: of the signal or exit that ended it before, if one did; None if it is unknown.
        """
        try:
            status: int | None = self._ask("kill", pid, within_s=self._kills_within_s)
            self._kills_within_s = _KILLS_WITHIN_S
            return status
        except TimeoutError:  # it is stopped, or waits for a process that cannot end
            self._kills_within_s = _LATER_KILLS_WITHIN_S
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
        return None

    def _ask(self, word: str, what: Any = None, fds: Sequence[int] = (), *, within_s: float) -> Any:
        from tinyshard.runtime import wire

        try:
            with self._lock:
                number, answered, answer = next(self._numbers), 0, None
                self._sock.settimeout(within_s)
                socket.send_fds(self._sock, [b"\0", *wire.frame((number, word, what))], fds)
                while answered != number:  # a late answer to an earlier question
                    answered, answer = wire.receive(self._sock)
                return answer
        except ConnectionError as error:
            raise ConnectionError("the helper process is gone") from error

    def abandon(self) -> None:
        """In a process that user code has forked from this one: release it."""
        self._sock.close()
        self._process.returncode = 0  # it is not this process's child: nothing to wait for

    def close(self) -> None:
        """End it and all remaining workers. Idempotent."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._sock.close()
        atexit.unregister(self.close)


def _not_started(got: str) -> RuntimeStateError:
    return RuntimeStateError(
        "no worker process could be started",
        got=got,
        rule="workers are forked from a helper process, which starts in the current folder and imports torch; each "
        "counts among the user's processes, and takes three descriptors of this one",
        try_='ts.init() again, in a folder that exists, or with fewer devices; or ts.init(runtime="local")',
    )


@contextlib.contextmanager
def refusals_explained() -> Iterator[None]:
    """Raise RuntimeStateError if the system refuses resources that workers need: processes, descriptors, the folder."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        raise _not_started(f"{type(error).__name__}: {error}") from error


_fork_server: ForkServer | None = None


def start() -> ForkServer:
    """The one fork server of this process; started if there is none.

    Raises:
        RuntimeStateError: the system refuses.
    """
    global _fork_server
    with refusals_explained(), held_off():  # a child that finds it half made would have its socket
        if _fork_server is None or not _fork_server.is_alive:
            stop()
            _fork_server = ForkServer()
        return _fork_server


def stop() -> None:
    """End it, if this process has one."""
    global _fork_server
    if _fork_server is not None:
        _fork_server.close()
    _fork_server = None


def prestart() -> None:
    """Start it early, while the controller is busy importing torch; errors are ignored."""
    is_worker = os.environ.get("TINYSHARD_ROLE") == "worker" or "tinyshard.worker" in sys.orig_argv
    # a child of multiprocessing, such as a DataLoader's, imports it with the user's script and rarely uses it
    if sys.platform != "win32" and not is_worker and multiprocessing.parent_process() is None:
        if os.environ.get("TINYSHARD_RUNTIME", "") in ("", "process") and not os.environ.get("TINYSHARD_HOSTS"):
            with contextlib.suppress(RuntimeStateError):
                start()


def serve(fd: int) -> None:
    """The process's main loop: fork on request, report how children ended, kill them when the controller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    from tinyshard.runtime import wire
    from tinyshard.runtime.worker import main as worker

    torch.set_num_threads(1)
    gc.freeze()  # a collection in a worker would write to every page that it shares with other processes
    sock = socket.socket(fileno=fd)
    fork_server = os.getpid()
    children = Children()

    def work(given: dict[str, Any], fds: Sequence[int]) -> None:
        sock.close()
        for fd in fds:  # not inherited by processes that the user's op starts
            os.set_inheritable(fd, False)
        channel, control, output, store, *bell = fds
        given["store"] = given["store"] or f"{'/proc/self' if sys.platform == 'linux' else '/dev'}/fd/{store}"
        lines = socket.socket(fileno=channel), socket.socket(fileno=control)
        worker.main(*lines, output, fork_server=fork_server, bell=bell[0] if bell else -1, **given)

    try:
        while True:
            first, fds, _, _ = socket.recv_fds(sock, 1, 5)  # the descriptors come with the first byte of a request
            if not first:
                return
            number, word, what = wire.receive(sock)
            answer: int | str | None = None
            if word == "kill":
                answer = children.end(what)
            elif word == "fork":
                answer = children.fork(partial(work, what, fds))
            for fd in fds:
                os.close(fd)
            wire.send(sock, (number, answer))
    finally:
        children.end_all()
        os._exit(0)
