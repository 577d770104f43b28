"""A side: a process that is told which case to prepare and when to take a sample, over its standard input and output.

Each case is a generator: what stands before the first `yield` prepares, and each `next` takes one sample: new inputs,
the timed calls, then a check of the result. It yields the seconds that one call took.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Generator = Iterator[float]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """How many seconds a call takes, and what it returns."""
    start_s = time.perf_counter()
    result = call()
    return time.perf_counter() - start_s, result


def _versions() -> Iterator[tuple[str, str]]:
    """The packages that are compared, as far as they are installed here."""
    for name in ("torch", "jax", "jaxlib", "numpy", "ipyparallel", "torchmonarch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def serve(cases: dict[str, Callable[[], Generator]]) -> None:
    """Answer requests until the input ends: "versions", "prepare NAME", "sample", "drop"."""
    running: Generator | None = None
    told = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        word, *rest = line.split()
        answer: dict[str, Any] = {}
        try:
            if word == "prepare":
                running = cases[rest[0]]() if rest[0] in cases else None
                if running is not None:
                    answer["seconds"] = next(running)  # warms up: compiles, plans, touches memory
                answer["known"] = running is not None
            elif word == "sample":
                assert running is not None
                answer["seconds"] = next(running)
            elif word == "versions":
                answer["versions"] = dict(_versions())
            else:
                running = None
        except Exception as error:
            running = None
            answer["error"] = f"{type(error).__name__}: {error}"
        told.write(json.dumps(answer) + "\n")
        told.flush()
