"""Start a program of the bridge by torchrun, from a cell, and read its results."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course import torchrun

__all__ = ["PROGRAMS", "Result", "code", "run", "run_text"]

# Each with the processes that it needs here.
PROGRAMS = {"by_hand": 2, "ddp": 2, "fsdp": 2, "tensor_parallel": 2, "two_dims": 4}

# Forked from torchrun, which has imported torch, the processes share it: for four of them that saves 0.4 GB. macOS does
# not support a fork of a process with threads.
_ON_A_LAPTOP = ["--standalone", *(["--start-method", "fork", "--run-path"] if sys.platform == "linux" else [])]

_TO_READ = (*PROGRAMS, "loop", "ours", "in_jax", "traffic", "setting")


@dataclass(frozen=True)
class Result:
    """What a program did.

    Attributes:
        losses: of each step.
        sent: in one step, for each kind of collective: how many, and the bytes that one process sends in them.
        counted: for each kind how many CommDebugMode saw in that step.
        command: what would be typed in a terminal. Each process would import torch itself, as it must with GPUs.
    """

    losses: list[float]
    sent: dict[str, tuple[int, int]]
    counted: dict[str, int]
    command: str

    def __str__(self) -> str:
        """A line for each kind of collective, as `ts.collectives_in` prints it."""
        times = {1: "once", 2: "twice"}
        lines = [f"{kind}: {times.get(n, f'{n} times')}, {nbytes:,} bytes" for kind, (n, nbytes) in self.sent.items()]
        return "\n".join(lines) or "no collectives"


def code(name: str) -> str:
    """The text of a program.

    Args:
        name: of PROGRAMS; or "loop", "ours", "in_jax", "traffic", "setting".

    Raises:
        ValueError: there is no such program.
    """
    _check(name, _TO_READ)
    ending = "txt" if name == "in_jax" else "py"  # this kit does not need JAX
    return _path(name, ending).read_text("utf-8")


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
    _check(name, PROGRAMS)
    return _run(name, PROGRAMS[name], _path(name), f"-m course.bridge.{name}", timeout_s)


def run_text(script: str, processes: int = 2, timeout_s: float = 120) -> Result:
    """Start a program that is given as its text, as `run` does.

    Args:
        script: the text; its training is that of `course.bridge.loop`.
        processes: how many.
        timeout_s: seconds after which it is ended.

    Raises:
        TimeoutError: it had not ended in time.
        RuntimeError: it failed; the message has the last lines that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, "utf-8")
        return _run("the script", processes, path, path.name, timeout_s)


def _run(name: str, processes: int, path: Path, typed: str, timeout_s: float) -> Result:
    many = f"--nproc-per-node {processes}"
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    quiet["CUDA_VISIBLE_DEVICES"] = ""  # the programs use CPUs; a process that finds a GPU must not be forked
    words = [*_ON_A_LAPTOP, *many.split(), str(path)]
    with torchrun.start(words, subprocess.PIPE, subprocess.PIPE, quiet) as started:
        try:
            printed, complaints = started.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{name} had not ended after {timeout_s:g} s, and was stopped") from None
        finally:
            if started.poll() is None:  # too late, or interrupted
                torchrun.kill(started)
    lines = [line for line in printed.decode().splitlines() if line.startswith("{")]
    if started.returncode or not lines:
        last = "\n".join(complaints.decode().strip().splitlines()[-60:])
        raise RuntimeError(f"{name} failed\n{last}" if started.returncode else f"{name} did not train")
    steps = [json.loads(line) for line in lines]
    sent = {kind: (count, nbytes) for kind, (count, nbytes) in steps[-1]["sent"].items()}
    return Result([step["loss"] for step in steps], sent, steps[-1]["counted"], f"torchrun {many} {typed}")


def _path(name: str, ending: str = "py") -> Path:
    return Path(__file__).with_name(f"{name}.{ending}")


def _check(name: str, programs: Iterable[str]) -> None:
    if name not in programs:
        raise ValueError(f"there is no program {name!r}\n  rule: the programs are {', '.join(programs)}")
