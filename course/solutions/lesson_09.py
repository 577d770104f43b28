"""Lesson 09: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P


def window_means(v: Any, window: int, rate: float) -> Any:
    """The lesson's function."""
    return v.reshape(-1, window).mean(1) * rate


def means(v: Any, window: int, rate: float) -> Any:
    """A trace for each window."""
    return ts.jit(window_means, static_argnames="window")(v, window, float(rate))


def means_of_both_dtypes(v: Any, window: int, rate: float) -> Any:
    """Wrong: ints and floats have a trace each."""
    return ts.jit(window_means, static_argnames="window")(v, window, rate)


def means_by_new_functions(v: Any, window: int, rate: float) -> Any:
    """Wrong: a new function at each call."""
    return ts.jit(lambda x: window_means(x, window, rate))(v)


def means_of_the_first_rate(v: Any, window: int, rate: float) -> Any:
    """Wrong: the rate is left out."""
    return ts.jit(window_means, static_argnames="window")(v, window, 1.0)


def shrunk_by_if(v: Any) -> Any:
    """Wrong: an `if` on a traced value."""
    if v.max() > 1:
        return v / v.max()
    return v


def padded(v: Any) -> Any:
    """With zeros, to the next power of two."""
    size = 1
    while size < len(v):
        size *= 2
    return torch.nn.functional.pad(v, (0, size - len(v)))


def total(v: Any) -> Any:
    """To be jitted once."""
    return v.sum()


def average(v: Any) -> Any:
    """To be jitted once."""
    return v.mean()


total_jit = ts.jit(total)
average_jit = ts.jit(average)


def bucketed_mean(v: Any) -> Any:
    """Seven traces."""
    return total_jit(padded(v)) / len(v)


def mean_of_the_padded(v: Any) -> Any:
    """Wrong: the zeros count."""
    return average_jit(padded(v))


def mean_of_one_shape(v: Any) -> Any:
    """Wrong: the zeros count, already for one number."""
    return average_jit(torch.nn.functional.pad(v, (0, 64 - len(v))))


def sum_by_length(v: Any, length: int) -> Any:
    """To be jitted once."""
    return v.sum() / length


by_static_length = ts.jit(sum_by_length, static_argnames="length")


def bucketed_by_static_length(v: Any) -> Any:
    """Wrong: one shape, but the true length is static."""
    return by_static_length(torch.nn.functional.pad(v, (0, 64 - len(v))), length=len(v))


def bucketed_by_new_functions(v: Any) -> Any:
    """Wrong: a new function at each call."""
    return ts.jit(lambda x: x.sum())(padded(v)) / len(v)


ANSWERS = {
    "09.1": Answers(
        solution=means,
        wrong=(
            Wrong(means_of_both_dtypes, "Among the rates are ints and floats"),
            Wrong(means_by_new_functions, "a new function, is another key"),
            Wrong(window_means, "Nothing was traced"),
            Wrong(means_of_the_first_rate, "Which argument does `reshape` need"),
        ),
    ),
    "09.2": Answers(
        solution=ts.jit(lambda v: v / torch.clamp(v.max(), min=1)),
        wrong=(
            Wrong(ts.jit(shrunk_by_if), "no values to choose a branch by"),
            Wrong(ts.jit(lambda v: v / v.max()), "By what may one divide"),
            Wrong(ts.jit(lambda v: torch.where(v > 1, v / v.max(), v)), "Each element decided for itself"),
            Wrong(ts.jit(lambda v: torch.clamp(v, max=1)), "By what do you divide"),
        ),
    ),
    "09.3": Answers(
        solution=bucketed_mean,
        wrong=(
            Wrong(mean_of_the_padded, "By which number must the sum be divided"),
            Wrong(mean_of_one_shape, "By which number must the sum be divided"),
            Wrong(bucketed_by_new_functions, "is the jitted function the same one"),
            Wrong(bucketed_by_static_length, "such as the true length"),
            Wrong(lambda v: v.mean(), "Nothing was traced"),
            Wrong(lambda v: average_jit(v), "Which lengths do the padded vectors have"),
        ),
    ),
}
