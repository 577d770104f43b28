"""One command that measures tinyshard, JAX, raw gloo, ipyparallel and torchmonarch side by side, in one run.

python -m benchmarks                          # all cases, nine rounds; writes benchmarks/results.md and .svg
python -m benchmarks psum_4k eager --rounds 5 # some cases; prints only
python -m benchmarks --jax /elsewhere/python  # a JAX that is installed beside another Python; --monarch likewise

Each side is a process of its own, all are there at once, and only one works at a time. In every round each side takes
one sample of a case in turn, so that what else the machine does strikes all alike; inputs change between samples and
results are checked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

from benchmarks.cases import CASES, Case
from benchmarks.memory import memory_nbytes
from benchmarks.report import Figures, Spread, table, write
from benchmarks.side import ROOT, Side, in_turns
from benchmarks.start import PROGRAMS

SIDES = {
    "tinyshard": "ours",
    "JAX": "by_jax",
    "gloo": "by_gloo",
    "ipyparallel": "by_ipyparallel",
    "torchmonarch": "by_monarch",
}


def measure(case: Case, sides: list[Side], rounds: int) -> Figures:
    """Interleaved samples of one case."""
    taken, taking = in_turns(case.name, sides, rounds)
    peaks = {side.name: peak_while(side) for side in taking if side.name in taken}
    for side in sides:
        side.ask("drop")
    return Figures(case, {n: Spread.of(t) for n, t in taken.items()}, peaks)


def peak_while(side: Side) -> int:
    """The most memory that a side holds during one more sample; not timed, for looking takes time."""
    seen = [memory_nbytes(side.process.pid)]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            seen.append(memory_nbytes(side.process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    side.ask("sample")
    over.set()
    watcher.join()
    return max(seen)


def measure_start(case: Case, sides: list[Side], rounds: int) -> Figures:
    """From nothing to a first result on eight devices, each time in a fresh process."""
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for side in sides:
            if side.name in PROGRAMS:
                start_s = time.perf_counter()
                subprocess.run(
                    [side.python, "-c", PROGRAMS[side.name]],
                    cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
                )  # fmt: skip
                taken.setdefault(side.name, []).append(time.perf_counter() - start_s)
    return Figures(case, {n: Spread.of(t) for n, t in taken.items()}, {})


def measure_first(case: Case, sides: list[Side], rounds: int) -> dict[str, Spread]:
    """The first call of a case, each time in a fresh process whose devices are up and hold the operands."""
    taken: dict[str, list[float]] = {}
    taking = list(sides)
    for _ in range(rounds):
        for side in list(taking):
            fresh = side.fresh()
            seconds = fresh.ask(f"prepare {case.name}").get("seconds")
            fresh.end()
            if seconds is None:
                taking.remove(side)
            else:
                taken.setdefault(side.name, []).append(seconds)
    return {n: Spread.of(t) for n, t in taken.items()}


def main() -> None:
    """Measure and print; write the report if all cases ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names; all if none is given")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jax", default=sys.executable, help="a Python that has JAX")
    parser.add_argument("--monarch", default=sys.executable, help="a Python that has torchmonarch")
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--collectives", help="tinyshard's: shared or gloo; by default its own choice")
    args = parser.parse_args()
    wanted = [case for case in CASES if not args.cases or case.name in args.cases]
    more = {"tinyshard": [args.collectives] if args.collectives else []}
    python = {"JAX": args.jax, "torchmonarch": args.monarch}
    sides = [
        Side(n, python.get(n, sys.executable), *more.get(n, []), module=f"benchmarks.{SIDES[n]}") for n in args.sides
    ]
    figures = []
    try:
        versions: dict[str, str] = {}
        for side in list(sides):  # all are up before anything is measured
            answer = side.ask("versions")
            if "error" in answer:
                sides.remove(side)
                side.end()
            versions.update(answer.get("versions", {}))
        for case in wanted:
            measured = (measure_start if case.name == "start" else measure)(case, sides, args.rounds)
            if case.first_to_jax is not None:
                measured = replace(measured, first=measure_first(case, sides, args.rounds))
            figures.append(measured)
            print(table(figures[-1:], heading=len(figures) == 1), flush=True)
    finally:
        for side in sides:
            side.end()
    if not args.cases:
        write(figures, ROOT / "benchmarks", args.rounds, versions)


if __name__ == "__main__":
    main()
