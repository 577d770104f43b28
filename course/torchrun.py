"""torchrun, started from a cell: a launcher and the processes that it starts, and their end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

__all__ = ["kill", "start"]

_ENDS_WITHIN_S = 10


def start(
    words: Sequence[str], stdout: Any, stderr: Any, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a launcher; what it starts finds the packages that are imported here.

    Args:
        words: of the command, after "torchrun".
        stdout, stderr: as for `subprocess.Popen`.
        environment: further variables.
    """
    source = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C in the notebook is not for them
    )


def kill(launcher: subprocess.Popen[bytes]) -> None:
    """End a launcher and all that it has started, the launcher first: it must not start others in their place."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(launcher.pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    launcher.wait(_ENDS_WITHIN_S)
