"""Lesson 09: what jit remembers."""

import contextlib
import io
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, number_in
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

P = ts.P
WINDOWS, RATES = (2, 4), (1, 0.5, 2, 0.25, 3, 0.125, 4, 0.75, 5, 1.5)
LENGTHS = range(1, 65)

_numbers = itertools.count()


class Traces:
    """How many there are in a `counted_traces`, what differed, and the traced vectors' lengths, as far as reported."""

    count = 0
    has_static = False  # another value of a static argument
    lengths: frozenset[int] = frozenset()


@contextlib.contextmanager
def counted_traces() -> Iterator[Traces]:
    """Inside, jit finds no older trace, since another mesh is set; afterwards `count` says how many were made."""
    traces, reported = Traces(), io.StringIO()
    mesh = ts.make_mesh((1,), (f"judged{next(_numbers)}",))
    ts.config.update("explain_cache_misses", True)
    try:
        with ts.set_mesh(mesh), contextlib.redirect_stderr(reported):
            yield traces
    finally:
        ts.config.update("explain_cache_misses", False)
        traces.count = sum(" is traced" in line for line in reported.getvalue().splitlines())
        traces.has_static = "static argument" in reported.getvalue()
        traces.lengths = frozenset(map(int, re.findall(r"\[(\d+)\]", reported.getvalue())))


def _traces(number: int) -> str:
    return "1 trace" if number == 1 else f"{number} traces"


def window_means(v: Any, window: int, rate: float) -> Any:
    """The lesson's function."""
    return v.reshape(-1, window).mean(1) * rate


def all_static(v: Any, window: int, rate: float) -> Any:
    """The stub of 09.1."""
    return ts.jit(window_means, static_argnames=("window", "rate"))(v, window, rate)


def judge_means(means: Callable[..., Any]) -> Verdict:
    """Right for two windows and ten rates, by two traces."""
    v = torch.arange(24.0)
    with counted_traces() as traces:
        for window in WINDOWS:
            for rate in RATES:
                want = v.reshape(-1, window).mean(1) * rate
                wrong = difference(means(v, window, rate), want, f"means(v, {window}, {rate})")
                if wrong:
                    return differs(wrong)
    reported = f"the values are right; {_traces(traces.count)} for 20 calls"
    if traces.count == 2:
        return PASSED
    if traces.count == 0:
        return differs(reported, "Nothing was traced: a jitted function must compute the means.")
    if traces.count == 4:
        return differs(
            reported, "Two for each window. Among the rates are ints and floats: which dtype has 2, which 0.5?"
        )
    if traces.count == 20:
        hint = (
            "A trace for each call: a static value, or a new function, is another key. Which of the three "
            "arguments must be a Python value?"
        )
        return differs(reported, hint)
    return differs(reported)


def judge_shrunk(shrunk: Callable[..., Any]) -> Verdict:
    """Divided by the largest where that is more than 1."""
    values = ts.device_put(torch.tensor([1.0, 2.0, 3.0, 4.0]), ts.NamedSharding(ts.make_mesh((4,), ("a",)), P("a")))
    jitted = ts.jit(shrunk)
    try:
        large, small = jitted(values), jitted(values / 8)
    except TypeError as error:
        hint = "A trace has no values to choose a branch by. Section 6 has the ways out."
        return differs(f"jit says: {str(error).splitlines()[0]}", hint)
    reported = difference(large, [0.25, 0.5, 0.75, 1.0], "shrunk of 1, 2, 3, 4")
    if reported and not difference(large, [1.0, 0.5, 0.75, 1.0]):
        return differs(
            reported, "Each element decided for itself: 1 was left as it is. The condition is about the largest."
        )
    if reported:
        return differs(reported)
    reported = difference(small, [0.125, 0.25, 0.375, 0.5], "shrunk of 1/8, 2/8, 3/8, 4/8")
    return (
        differs(reported, "Here the largest is not more than 1. By what may one divide without a change?")
        if reported
        else PASSED
    )


def mean_jit(v: Any) -> Any:
    """The lesson's jitted function."""
    return ts.jit(torch.mean)(v)


def unpadded(v: Any) -> Any:
    """The stub of 09.3."""
    return mean_jit(v)


def judge_bucketed_mean(bucketed_mean: Callable[..., Any]) -> Verdict:
    """The mean for all lengths, by at most seven traces."""
    with counted_traces() as traces:
        for length in LENGTHS:
            got, want = bucketed_mean(torch.arange(float(length)) + 1), (length + 1) / 2
            wrong = difference(got, want, f"the mean of 1 to {length}")
            if wrong and 0 < (number_in(got) or 0) < want:
                return differs(wrong, "What was filled in counts as well. By which number must the sum be divided?")
            if wrong:
                return differs(wrong)
    reported = f"the means are right; {_traces(traces.count)} for 64 lengths"
    if traces.count == 0:
        return differs(reported, "Nothing was traced: a jitted function must compute the sum.")
    if traces.count > 7 and traces.has_static:
        hint = (
            "A static argument, such as the true length, has a trace for each value. A number to divide by may be "
            "traced, or stay outside of the jitted function."
        )
        return differs(reported, hint)
    if traces.count > 7:
        hint = "Which lengths do the padded vectors have? And is the jitted function the same one at each call?"
        return differs(reported, hint)
    return PASSED


def why_bucketed(bucketed_mean: Callable[..., Any]) -> str:
    """What the padding of this answer costs."""
    with counted_traces() as traces:
        for length in LENGTHS:
            bucketed_mean(torch.arange(float(length)))
    if traces.count == 1:
        return (
            "One shape serves all 64 lengths, and zeros do not change a sum. But a vector of one number is then 64 "
            "times as long as it need be. Seven shapes, 1, 2, 4, … 64, never double a length."
        )
    if traces.lengths == {1, 2, 4, 8, 16, 32, 64}:
        return (
            "1, 2, 4, … 64 are seven shapes, and zeros do not change a sum. Less than half of a padded vector is "
            "filling."
        )
    return (
        f"{traces.count} shapes serve all 64 lengths, and zeros do not change a sum. Which shapes they are decides how "
        "much is filling: with 1, 2, 4, … 64 it is always less than half of a padded vector."
    )


EXERCISES = (
    Exercise(
        "09.1",
        judge_means,
        (
            "Which argument does `reshape` need as a Python number?",
            "The other number may be traced: it only multiplies. What is its dtype for 2, and what for 0.5?",
            "Two windows and two dtypes of the rate are four traces. Which one dtype serves all ten rates, and where "
            "is it chosen?",
        ),
        stub=all_static,
        why="`window` decides about shapes, so it must be static: two values, two traces. `rate` is a "
        "number to compute with: as an f32 at each call, or outside the jitted function, it needs no trace of its own.",
    ),
    Exercise(
        "09.2",
        judge_shrunk,
        (
            "Dividing by 1 changes nothing. By what do you divide in each of the two cases?",
            "`v.max()` is a tensor; `torch.where` or `torch.clamp` makes the divisor of it.",
            "What is the smallest number that you ever divide by, and which numbers are larger than that?",
        ),
        stub=lambda v: v,
        why="The choice is now made by values, when the program runs, and not by a branch of Python. One graph serves "
        "both cases.",
    ),
    Exercise(
        "09.3",
        judge_bucketed_mean,
        (
            "Seven lengths from 1 to 64, each twice the one before: which ones?",
            "`torch.nn.functional.pad(v, (0, missing))` fills up with zeros. Zeros do not change a "
            "sum. Do they change a mean?",
            "A mean is a sum and a division. Which of the two may see the zeros, and which one needs the true length?",
        ),
        stub=unpadded,
        why=why_bucketed,
    ),
)
