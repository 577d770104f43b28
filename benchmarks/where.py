"""Where the time of a gradient step goes, device by device: kernels, exchange, the Python between steps, and waiting.

python -m benchmarks.where                     # the network of the table, 8 x 1 and 4 x 2; writes benchmarks/where.md
python -m benchmarks.where --steps 5

The workers measure themselves: each counts the processor time of its thread in ops and in collectives, and the time by
the clock from the start of a step to the next. What the clock shows beyond the processor time is waiting: for a core,
for other devices in a collective, or for the controller. Measuring takes a few microseconds a step of the program.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report import processor
from benchmarks.side import ROOT

FOLDER = "BENCHMARK_WHERE"  # the environment variable that names where workers write
COLUMNS = ("kernels", "exchange", "between", "waiting")
HEAD = """# Where the time of a gradient step goes

Written by `python -m benchmarks.where` on {processor}, {cores} cores; medians of {steps} steps.
Kernels, exchange and between (the Python between steps of the program) are processor time of the device; waiting is
for a core, for other devices, or for the controller.
"""
MOST_OPS = 8  # that are named


class Clock:
    """Processor time of this thread, by what it was spent on, since the last report."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spent: collections.Counter[str] = collections.Counter()  # "exchange", or the name of an op
        self._ended_s = time.perf_counter()
        self._ended_processor_s = time.thread_time()

    def timed(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        """The function, which counts its processor time."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            start_s = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._spent[what] += time.thread_time() - start_s  # type: ignore[assignment]

        return counted

    def report(self) -> None:
        """Write what has been spent since the last report, in seconds, as a line of JSON."""
        ended_s, processor_s = time.perf_counter(), time.thread_time()
        clock_s, used_s = ended_s - self._ended_s, processor_s - self._ended_processor_s
        spent_s = self._spent.total()
        row = {
            "kernels": spent_s - self._spent["exchange"],
            "exchange": self._spent.pop("exchange", 0.0),
            "between": used_s - spent_s,
            "waiting": clock_s - used_s,
            "clock": clock_s,
            **self._spent,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._spent.clear()
        self._ended_s, self._ended_processor_s = time.perf_counter(), time.thread_time()


def measure_workers() -> None:
    """In the process that the workers are forked from: let each count what it does."""
    from tinyshard.runtime.worker import loop

    make_ready, run, clocks = loop.make_ready, loop.Worker._call, dict[int, Clock]()

    def clock() -> Clock:
        if os.getpid() not in clocks:
            clocks[os.getpid()] = Clock(Path(os.environ[FOLDER]) / str(os.getpid()))
        return clocks[os.getpid()]

    def ready(*args: Any) -> Any:
        program = make_ready(*args)
        steps = [
            replace(
                step,
                call=step.call and clock().timed(step.call, step.step.op),  # in a program's first call
                function=step.function and clock().timed(step.function, step.step.op),  # in a later one
                perform=step.perform and clock().timed(step.perform, "exchange"),
            )
            for step in program.steps
        ]
        return replace(program, steps=tuple(steps))

    def run_and_report(self: Any, *args: Any) -> None:
        run(self, *args)
        clock().report()

    loop.make_ready, loop.Worker._call = ready, run_and_report  # type: ignore[method-assign, assignment]


def train(layout: str, steps: int) -> None:
    """A child of `main`: takes the steps, and writes the ids of the workers and the time of each step."""
    import tinyshard as ts
    from benchmarks import ours

    ts.init(devices=8)
    sample = ours.CASES[f"step_{layout}"]()
    next(sample)
    seconds = [next(sample) for _ in range(steps)]
    print(json.dumps({"pids": [device.pid for device in ts.devices()], "seconds": seconds}))


def measured(layout: str, steps: int) -> str:
    """A table: a line for each device, medians over the steps."""
    with tempfile.TemporaryDirectory() as folder:
        start = "import os\nif os.environ.get('TINYSHARD_ROLE') == 'worker':\n    import benchmarks.where as w\n"
        (Path(folder) / "sitecustomize.py").write_text(start + "    w.measure_workers()\n")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.where", "--layout", layout, "--steps", str(steps)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", FOLDER: folder}, check=True,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
        rows = [
            [json.loads(line) for line in (Path(folder) / str(pid)).read_text().splitlines()[-steps:]]
            for pid in answer["pids"]
        ]
    lines = [f"| {layout}, ms | " + " | ".join(COLUMNS) + " | clock |", "|---" * (len(COLUMNS) + 2) + "|"]
    medians = [{c: 1e3 * statistics.median(r[c] for r in device) for c in (*COLUMNS, "clock")} for device in rows]
    for number, of in enumerate(medians):
        lines.append(f"| CPU {number} | " + " | ".join(f"{of[c]:.1f}" for c in (*COLUMNS, "clock")) + " |")
    ops = {name for device in rows for row in device for name in row} - {*COLUMNS, "clock"}
    by_op = {name: 1e3 * statistics.median(row.get(name, 0.0) for row in rows[0]) for name in ops}
    first = sorted(by_op, key=lambda name: -by_op[name])[:MOST_OPS]
    used = sum(of[c] for of in medians for c in COLUMNS[:3])
    step_ms = 1e3 * statistics.median(answer["seconds"])
    cores = os.cpu_count() or 1
    share = 100 * used / (cores * step_ms)
    if share > 110:  # 100, but for the noise of medians
        raise RuntimeError(f"the devices counted {used:.0f} ms in {step_ms:.0f} ms on {cores} cores: not only a step's")
    return "\n".join([
        *lines, "", "CPU 0's kernels: " + ", ".join(f"{name} {by_op[name]:.1f} ms" for name in first) + ".",
        f"A step takes {step_ms:.0f} ms; the devices use {used:.0f} ms of the {cores * step_ms:.0f} that {cores} cores "
        f"have: {share:.0f} %.",
    ])  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--layout", choices=("8x1", "4x2"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.layout:
        train(args.layout, args.steps)
        return
    head = HEAD.format(processor=processor(), cores=os.cpu_count(), steps=args.steps)
    parts = [head, *[measured(layout, args.steps) + "\n" for layout in ("8x1", "4x2")]]
    print("\n".join(parts))
    (ROOT / "benchmarks" / "where.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
