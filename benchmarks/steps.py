"""What each step of the work was worth: several commits of tinyshard measured side by side, in one run.

python -m benchmarks.steps COMMIT ...                # in this order, each compared with the one before
python -m benchmarks.steps HEAD~1 HEAD --rounds 20

Only what has not changed between the commits is used: device_put, ops on Arrays, jit. Each commit is a process of its
own, and in every round each takes its samples in turn. Prints the least and the median, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import time_text
from benchmarks.serve import Generator, serve, timed
from benchmarks.side import ROOT, Side
from benchmarks.start import TINYSHARD

SAMPLES = 20


def _rows(ts: Any) -> Any:
    return ts.NamedSharding(ts.make_mesh((8,), ("i",)), ts.P("i"))


def _repeated(call: Callable[[Any, Any], Any], shape: tuple[int, ...], wanted: float) -> Callable[[], Generator]:
    """Samples of one call on ones of a shape, rows sharded eight ways; one element of the result is looked at."""

    def samples() -> Generator:
        import torch

        import tinyshard as ts

        x = ts.device_put(torch.ones(shape), _rows(ts))
        while True:
            seconds, y = timed(lambda: call(ts, x))
            assert y.reshape(-1)[-1].item() == wanted
            del y
            yield seconds

    return samples


def _jitted() -> Callable[[Any, Any], Any]:
    kept: list[Any] = []

    def call(ts: Any, x: Any) -> Any:
        if not kept:
            kept.append(ts.jit(lambda x: x * 2 + 1))
        return kept[0](x).block_until_ready()

    return call


def _loop(ts: Any, x: Any) -> Any:
    for _ in range(500):
        x = x + 1
    return x.block_until_ready()


CASES: dict[str, Callable[[], Generator]] = {
    "eager": _repeated(lambda ts, x: (x + 1).block_until_ready(), (8,), 2.0),
    "jit": _repeated(_jitted(), (8,), 3.0),
    "500 dependent ops": _repeated(_loop, (8,), 501.0),
    "sum over devices, 4 KB": _repeated(lambda ts, x: x.sum(0).block_until_ready(), (8, 1 << 10), 8.0),
    "sum over devices, 16 MB": _repeated(lambda ts, x: x.sum(0).block_until_ready(), (8, 1 << 22), 8.0),
}
START = "start to first result, and the end"


def _checked_out(commit: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    there = folder / commit
    there.mkdir()
    packed = subprocess.run(["git", "archive", commit, "tinyshard"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(there)], input=packed, check=True)
    return there


def _started(path: Path) -> float:
    command = [sys.executable, "-c", TINYSHARD]
    start_s = time.perf_counter()
    subprocess.run(command, check=True, env={"PYTHONPATH": str(path), "PATH": ""}, cwd=path)
    return time.perf_counter() - start_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    taken: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {commit: _checked_out(commit, Path(folder)) for commit in asked.commits}
        for _ in range(max(2, asked.rounds // 3)):
            for commit, path in paths.items():
                taken.setdefault((START, commit), []).append(_started(path))
        sides = {c: Side(c, sys.executable, "--serve", module="benchmarks.steps", path=p) for c, p in paths.items()}
        for case in CASES:
            for side in sides.values():
                side.ask(f"prepare {list(CASES).index(case)}")
            for number in range(asked.rounds * SAMPLES):
                for commit, side in sides.items():
                    seconds = side.ask("sample").get("seconds")
                    if seconds is not None and number >= SAMPLES // 2:
                        taken.setdefault((case, commit), []).append(seconds)
        for side in sides.values():
            side.end()
    print("| | " + " | ".join(asked.commits) + " |")
    print("|---" * (len(asked.commits) + 1) + "|")
    for case in (START, *CASES):
        cells, before = [], 0.0
        for commit in asked.commits:
            samples = taken.get((case, commit))
            if not samples:
                cells.append("–")
                continue
            median = statistics.median(samples)
            cells.append(time_text((min(samples), median)) + (f" (× {median / before:.2f})" if before else ""))
            before = median
        print(f"| {case} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve({str(number): case for number, case in enumerate(CASES.values())})
    else:
        main()
