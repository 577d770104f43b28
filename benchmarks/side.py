"""A side as the process that measures sees it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHORT_S = 0.02  # what takes less is sampled this many times more often
SAMPLES_IF_SHORT = 30


class Side:
    """A process that runs `benchmarks.serve`.

    Args:
        name: for messages.
        python: what runs it.
        args: of its module.
        module: what it runs.
        path: a folder whose packages it takes first.
        environment: variables that it gets beside this process's own.

    Attributes:
        fresh: makes another Side like it.
    """

    def __init__(
        self,
        name: str,
        python: str,
        *args: str,
        module: str,
        path: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.python = python
        self.fresh = partial(Side, name, python, *args, module=module, path=path, environment=environment)
        self.process = subprocess.Popen(
            [python, "-m", module, *args],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]),
                "PYTHONSAFEPATH": "1",
                **(environment or {}),
            },
        )  # fmt: skip

    def ask(self, request: str) -> dict[str, Any]:
        """One request and its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: there is no answer then
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"{self.name} has ended"}
        if "error" in answer:
            print(f"{self.name}: {request}: {answer['error']}", file=sys.stderr)
        return answer

    def end(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def in_turns(case: str, sides: Sequence[Side], rounds: int) -> tuple[dict[str, list[float]], list[Side]]:
    """Samples of one case, every side in turn in each round.

    Returns:
        Seconds by the side's name; and the sides that know the case and have not failed.
    """
    taken: dict[str, list[float]] = {}
    taking = [side for side in sides if side.ask(f"prepare {case}").get("known")]
    for number in range(rounds):
        for side in list(taking):
            many = SAMPLES_IF_SHORT if number and taken[side.name][0] < SHORT_S else 1
            for _ in range(many):
                seconds = side.ask("sample").get("seconds")
                if seconds is None:
                    taking.remove(side)
                    break
                taken.setdefault(side.name, []).append(seconds)
    return taken, taking
