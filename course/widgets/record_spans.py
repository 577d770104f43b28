"""Record the times that lesson 01 draws first: `python -m course.widgets.record_spans` prints them as Python.

Run it where nothing else runs, and put what it prints into `recorded_spans.py`.
"""

from __future__ import annotations

import time
from itertools import product

import psutil

from course.widgets.spans import MOST_CALLS, SIZES, Call, measure
from tinyshard.runtime.lifecycle import init, shutdown

__all__ = ["recording"]

RUNS, FOR_S = 5, 0.3


def recording(
    most_calls: int = MOST_CALLS, sizes: tuple[int, ...] = SIZES, runs: int = RUNS, for_s: float = FOR_S
) -> str:
    """Measure every state of the time line's controls, several times.

    Other programs hold up a run now and then. What counts is, of the half whose lines came back soonest, the run whose
    products were there soonest.

    Args:
        most_calls: from one product up to so many.
        sizes: rows and columns of the matrices.
        runs: this many of each state, or more if they take less than
        for_s: seconds.

    Returns:
        Python text that sets CORES and RECORDED; times in ms, to the hundredth.

    Communication: none; CPU 0 computes the products.
    """
    lines = [f"CORES = {psutil.cpu_count()}", "RECORDED: dict[tuple[int, int, bool], tuple[Times, ...]] = {"]
    for count, size, waits_each in product(range(1, most_calls + 1), sizes, (False, True)):
        end_s = time.perf_counter() + for_s
        found: list[tuple[Call, ...]] = []
        while len(found) < runs or time.perf_counter() < end_s:
            found.append(measure(count, size, waits_each))
        found.sort(key=lambda calls: sum(call.returned_ms - call.dispatched_ms for call in calls))
        shortest = min(found[: (len(found) + 1) // 2], key=lambda calls: sum(call.ready_ms for call in calls))
        lines.append(f"    ({count}, {size}, {waits_each}): ({' '.join(_times(call) + ',' for call in shortest)}),")
    return "\n".join([*lines, "}"])


def _times(call: Call) -> str:
    return f"({call.dispatched_ms:.2f}, {call.returned_ms:.2f}, {call.ready_ms:.2f})"


if __name__ == "__main__":
    init(devices=1)
    print(recording())
    shutdown()
