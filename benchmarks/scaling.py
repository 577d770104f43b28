"""How the time changes with the number of devices.

python -m benchmarks.scaling                 # both tables, nine rounds; writes benchmarks/scaling.md
python -m benchmarks.scaling --jax /elsewhere/python --rounds 3

The first table: a gradient step on 1, 2, 4 and 8 devices, tinyshard beside JAX; the work is the same on all. The
second: what the controller alone costs for 8, 32 and 64 devices of the local runtime, which has no processes.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.report import Spread, processor
from benchmarks.side import ROOT, Side, in_turns

STEPS = {"step_8x1": "gradient step of the network", "layer": "gradient step of a transformer layer"}
CALLS = {"eager": "eager round trip", "jit": "jit round trip", "eager_500": "500 dependent eager ops"}


def table(cases: dict[str, str], sides: list[Side], rounds: int) -> str:
    """Each case on every side in turns: medians and quartiles, a column for each side."""
    lines = ["| devices | " + " | ".join(side.name for side in sides) + " |", "|---" * (len(sides) + 1) + "|"]
    for case, what in cases.items():
        taken, _ = in_turns(case, sides, rounds)
        for side in sides:
            side.ask("drop")
        cells = [str(Spread.of(taken[side.name])) if side.name in taken else "–" for side in sides]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jax", default=sys.executable, help="a Python that has JAX")
    args = parser.parse_args()

    def side(name: str, python: str, module: str, count: int, runtime: str = "process") -> Side:
        environment = {"BENCHMARK_DEVICES": str(count), "BENCHMARK_RUNTIME": runtime}
        return Side(name, python, module=f"benchmarks.{module}", environment=environment)

    several = []
    for count in (1, 2, 4, 8):
        several.append(side(f"tinyshard, {count}", sys.executable, "ours", count))
        several.append(side(f"JAX, {count}", args.jax, "by_jax", count))
    local = [side(str(count), sys.executable, "ours", count, "local") for count in (8, 32, 64)]
    try:
        for each in [*several, *local]:
            each.ask("drop")
        parts = [
            f"# How the time changes with the number of devices\n\nWritten by `python -m benchmarks.scaling` on "
            f"{processor()}, {os.cpu_count()} cores; {args.rounds} rounds, in turns.\nA figure is the median, and in "
            "parentheses the lower and the upper quartile.\n",
            "The same work on 1, 2, 4 and 8 devices:\n",
            table(STEPS, several, args.rounds),
            "\nThe controller alone: the local runtime, all of whose devices are in one process.\n",
            table(CALLS, local, args.rounds),
        ]
    finally:
        for each in [*several, *local]:
            each.end()
    (ROOT / "benchmarks/scaling.md").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
