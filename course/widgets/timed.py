"""The time that a call takes on the devices here, beside the time that the model gives it.

A picture is drawn from what is stored; a time is measured when a button is pressed, and only then. The model is that of
the planner of lesson 14, with the numbers of a laptop: rounds × latency + bytes / bandwidth, and operations / speed.
"""

from __future__ import annotations

import statistics
import textwrap
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import tinyshard as ts
from course.deadline import OverdueError, deadline
from course.planner import LAPTOPS
from course.widgets.card import Piece, paragraph

__all__ = ["LIMIT_S", "RUNS", "OnPress", "Timed", "is_too_much", "problem_of", "table", "table_piece", "timed"]

RUNS = 5
LIMIT_S = 5.0
MOST_NBYTES, MOST_FLOPS = 500_000_000, 20_000_000_000  # of all devices together; a laptop has them in few seconds

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Timed:
    """One call, by the model and by the clock.

    Args:
        what: the call, in words.
        nbytes: what the busiest device sends, by the model.
        modelled_s: by the model, with perfect overlap and with none, in seconds; equal where there is only one of the
            two, computing or communication.
        measured_s: the median of some runs, in seconds; None where it could not be measured.
        problem: why not.
    """

    what: str
    nbytes: int
    modelled_s: tuple[float, float]
    measured_s: float | None
    problem: str = ""


def timed(
    what: str,
    nbytes: int,
    modelled_s: tuple[float, float],
    prepare: Callable[[], Callable[[], Any]],
    problem: str = "",
    limit_s: float | None = None,
) -> Timed:
    """Measure a call; an error, or more time than there is, becomes words.

    Args:
        what: the call, in words.
        nbytes: what the busiest device sends, by the model.
        modelled_s: by the model, in seconds.
        prepare: makes the operands, and gives back the call; the call gives back Arrays.
        problem: why it is not to be run; "" where it may.
        limit_s: for everything together; None for LIMIT_S.

    Returns:
        The times. The first run, which compiles, does not count.

    Communication: that of the call, several times.

    Example:
        >>> timed("a sum", 0, (0.0, 0.0), lambda: lambda: 1 + 1).problem
        ''
        >>> timed("a quotient", 0, (0.0, 0.0), lambda: lambda: 1 / 0).problem
        'ZeroDivisionError: division by zero'
    """
    if problem:
        return Timed(what, nbytes, modelled_s, None, problem)
    limit_s = LIMIT_S if limit_s is None else limit_s
    try:
        with deadline(limit_s):
            call = prepare()
            ts.block_until_ready(call())
            seconds = [_once(call) for _ in range(RUNS)]
    except OverdueError:
        return Timed(what, nbytes, modelled_s, None, f"it took more than {limit_s:g} s")
    except Exception as error:
        return Timed(what, nbytes, modelled_s, None, problem_of(error))
    return Timed(what, nbytes, modelled_s, statistics.median(seconds))


def problem_of(error: Exception) -> str:
    """An error in one line.

    Example:
        >>> problem_of(ValueError("")), problem_of(KeyError("x"))
        ('ValueError: no message', "KeyError: 'x'")
    """
    told = str(error).strip() or "no message"
    return f"{type(error).__name__}: {told.splitlines()[0]}"


def is_too_much(nbytes: int, flops: int) -> str:
    """Why a laptop had better not run this; "" where it may.

    Args:
        nbytes: memory of all devices together.
        flops: operations of all devices together.

    Example:
        >>> is_too_much(1_000, 1_000), is_too_much(5_000_000_000, 0)
        ('', 'the devices would need 5.0 GB together')
    """
    if nbytes > MOST_NBYTES:
        return f"the devices would need {nbytes / 1e9:.1f} GB together"
    return f"the devices would do {flops / 1e9:,.0f} Gflop together" if flops > MOST_FLOPS else ""


def table(rows: Sequence[Timed]) -> list[str]:
    """The model's bytes and times, and the measured times beside them; nothing where nothing was measured.

    Example:
        >>> print("\\n".join(table([Timed("a sum", 56, (0.001, 0.001), 0.0007)])[:2]))
        time of a call         bytes sent            by the model   measured here
        a sum                          56                 1.00 ms         0.70 ms
    """
    if not rows:
        return []
    width = max(20, *(len(row.what) for row in rows))
    lines = [f"{'time of a call':{width}} {'bytes sent':>12}  {'by the model':>22}   {'measured here':>13}"]
    for row in rows:
        least, most = map(_told, row.modelled_s)
        modelled = most if least == most else f"{least} to {most}"
        measured = "-" if row.measured_s is None else _told(row.measured_s)
        lines.append(f"{row.what:{width}} {row.nbytes:>12,}  {modelled:>22}   {measured:>13}")
    for row in rows:
        if row.measured_s is None:
            lines += textwrap.wrap(f"{row.what} is not measured: {row.problem}", 88, subsequent_indent="  ")
    inside = LAPTOPS.inside
    return [
        *lines,
        f"the model, that of lesson 14: {inside.latency_s * 1000:.1f} ms a round, {inside.bytes_per_s / 1e6:.0f} MB/s, "
        f"{LAPTOPS.flops_per_s / 1e9:.0f} Gflop/s a device",
        "(a device computes faster where it has the cores for itself)",
        f"measured: the median of {RUNS} calls, with the time to give the order and to wait",
    ]


def table_piece(rows: Sequence[Timed]) -> Piece:
    """The table, to be put into a picture."""
    return paragraph(table(rows), size=12, is_code=True)


class OnPress(Generic[Key, Found]):
    """What was measured at presses of a button, by what was chosen then; between presses it is only remembered.

    Args:
        measure: from the choices to what is measured.

    Example:
        >>> found = OnPress(lambda size: f"{size} is measured")
        >>> found(0, 8), found(1, 8), found(1, 4), found(1, 8)
        (None, '8 is measured', None, '8 is measured')
    """

    def __init__(self, measure: Callable[[Key], Found]) -> None:
        self._measure = measure
        self._presses = 0
        self._found: dict[Key, Found] = {}

    def __call__(self, presses: int, key: Key) -> Found | None:
        """Measure if the button was pressed since the last call; give what is known of these choices."""
        if presses > self._presses:
            self._found[key] = self._measure(key)
        self._presses = presses
        return self._found.get(key)


def _told(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _once(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    ts.block_until_ready(call())
    return time.perf_counter() - start_s
