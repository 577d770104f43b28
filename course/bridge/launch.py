"""Start a program of the bridge by torchrun, from a cell, and read its results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRAMS", "Result", "code", "run"]

# Each with the processes that it needs here.
PROGRAMS = {"by_hand": 2, "ddp": 2, "fsdp": 2, "tensor_parallel": 2, "two_dims": 4}

_TO_READ = (*PROGRAMS, "ours", "in_jax", "traffic", "setting")
_ENDS_WITHIN_S = 10


@dataclass(frozen=True)
class Result:
    """What a program did.

    Attributes:
        losses: of each step.
        sent: in one step, for each kind of collective: how many, and the bytes that one process sends in them.
        command: what would be typed in a terminal.
    """

    losses: list[float]
    sent: dict[str, tuple[int, int]]
    command: str

    def __str__(self) -> str:
        """A line for each kind of collective, as `ts.collectives_in` prints it."""
        times = {1: "once", 2: "twice"}
        lines = [f"{kind}: {times.get(n, f'{n} times')}, {nbytes:,} bytes" for kind, (n, nbytes) in self.sent.items()]
        return "\n".join(lines) or "no collectives"


def code(name: str) -> str:
    """The text of a program.

    Args:
        name: of PROGRAMS; or "ours", "in_jax", "traffic", "setting".

    Raises:
        ValueError: there is no such program.
    """
    if name not in _TO_READ:
        raise ValueError(f"there is no program {name!r}\n  rule: the programs are {', '.join(_TO_READ)}")
    ending = "txt" if name == "in_jax" else "py"  # this kit does not need JAX
    return Path(__file__).with_name(f"{name}.{ending}").read_text("utf-8")


def run(name: str, timeout_s: float = 120) -> Result:
    """Start a program in processes of its own, wait for it, and read what it printed.

    Args:
        name: of PROGRAMS.
        timeout_s: seconds after which it is ended.

    Returns:
        Its losses, and what it sent.

    Raises:
        ValueError: there is no such program.
        TimeoutError: it had not ended in time.
        RuntimeError: it failed; the message has the last lines that it printed.

    Communication: between the processes of the program, by gloo; none with the devices of tinyshard.
    """
    if name not in PROGRAMS:
        raise ValueError(f"there is no program {name!r}\n  rule: the programs are {', '.join(PROGRAMS)}")
    words = ["--nproc-per-node", str(PROGRAMS[name]), "-m", f"course.bridge.{name}"]
    here = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that an interrupt of the cell ends all of them, below
    )
    try:
        printed, complaints = started.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{name} had not ended after {timeout_s:g} s, and was stopped") from None
    finally:
        _end(started)
    if started.returncode:
        last = "\n".join(complaints.strip().splitlines()[-30:])
        raise RuntimeError(f"{name} failed\n{last}")
    steps = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    sent = {kind: (count, nbytes) for kind, (count, nbytes) in steps[-1]["sent"].items()}
    return Result([step["loss"] for step in steps], sent, " ".join(["torchrun", *words]))


def _end(started: subprocess.Popen[str]) -> None:
    """torchrun and, if it does not end them, the processes that it started."""
    if started.poll() is None:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.communicate(timeout=_ENDS_WITHIN_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGKILL)
