"""What tests of real processes share: waiting for a fact, stopping a process, and a controller of one's own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import psutil

from tinyshard.runtime.shm import segment

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60
# what can join worker processes here
JOINED = ["shared", "gloo"] if segment.is_possible() else ["gloo"]


def wait_until(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Look again and again; fail if it does not come true."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"never came true: {what}"
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Let a process run no further; it has stopped when this returns, which a signal alone does not say."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{pid} stopped")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does not run in this block."""
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Controller:
    """A Python program that uses tinyshard, in a process of its own.

    Args:
        code: what it runs; `tell(*words)` gives this side a line, `input()` waits for `release`.
        path: its PYTHONPATH.
        before: what to put before the command.
        environment: its further variables.
    """

    def __init__(
        self,
        code: str,
        tmp_path: Path,
        path: str = str(ROOT),
        before: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        start = (
            "import tinyshard as ts, torch, os, signal, sys, warnings\ndef tell(*words): print(*words, flush=True)\n"
        )
        # Python 3.12 warns of every fork beside threads
        start += "warnings.filterwarnings('ignore', 'This process .* is multi-threaded', DeprecationWarning)\n"
        self.folder = tmp_path
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", start + textwrap.dedent(code)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "TMPDIR": str(tmp_path),
                "TINYSHARD_RUNTIME": "process",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it tells; it fails, with what was written, where there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended and told no more: {self.process.communicate(timeout=PATIENCE_S)[1]}"
        return line.strip()

    def release(self) -> None:
        """Let it go on from where it waits in `input()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        """Its helper process and the workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self, within_s: float = PATIENCE_S) -> tuple[str, str]:
        """Wait for its end; what else it wrote."""
        return self.process.communicate(timeout=within_s)


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
