"""Lesson 01: answers."""

import time
from typing import Any

from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def ten_steps(matrix: Any, double: Any) -> list[Any]:
    """01.3."""
    numbers = []
    for _ in range(10):
        matrix = matrix @ double
        numbers.append(matrix[0, 0])
    return numbers


def ten_steps_blocking(matrix: Any, double: Any) -> list[Any]:
    """Wrong: leaves out `.item()` and waits all the same."""
    numbers = []
    for _ in range(10):
        matrix = (matrix @ double).block_until_ready()
        numbers.append(matrix[0, 0])
    return numbers


def ten_steps_float(matrix: Any, double: Any) -> list[float]:
    """Wrong: waits at the end of the loop, for a float of each."""
    return [float(number) for number in ten_steps(matrix, double)]


def ten_steps_in_python(matrix: Any, double: Any) -> list[float]:
    """Wrong: no device computes."""
    return [2.0**step for step in range(1, 11)]


def ten_numbers_before(matrix: Any, double: Any) -> list[Any]:
    """Wrong: each number is taken before the product."""
    numbers = []
    for _ in range(10):
        numbers.append(matrix[0, 0])
        matrix = matrix @ double
    return numbers


def ten_matrices(matrix: Any, double: Any) -> list[Any]:
    """Wrong: the matrices in place of one number of each."""
    return [matrix := matrix @ double for _ in range(10)]


def benchmark(matrix: Any) -> float:
    """01.2."""
    matrix.block_until_ready()
    start = time.perf_counter()
    (matrix @ matrix).block_until_ready()
    return time.perf_counter() - start


def benchmark_with_queue(matrix: Any) -> float:
    """Wrong: the watch starts while `matrix` is still in the queue."""
    start = time.perf_counter()
    (matrix @ matrix).block_until_ready()
    return time.perf_counter() - start


def benchmark_waits_after(matrix: Any) -> float:
    """Wrong: stops the watch first."""
    start = time.perf_counter()
    product = matrix @ matrix
    seconds = time.perf_counter() - start
    product.block_until_ready()
    return seconds


def benchmark_waits_for_operand(matrix: Any) -> float:
    """Wrong: waits for what was there before."""
    start = time.perf_counter()
    matrix @ matrix
    matrix.block_until_ready()
    return time.perf_counter() - start


def benchmark_asks(matrix: Any) -> float:
    """Wrong: asks, and does not wait for a yes."""
    start = time.perf_counter()
    (matrix @ matrix).is_ready()
    return time.perf_counter() - start


def benchmark_polls(matrix: Any) -> float:
    """Wrong: keeps a core busy with asking."""
    matrix.block_until_ready()
    start = time.perf_counter()
    product = matrix @ matrix
    while not product.is_ready():
        pass
    return time.perf_counter() - start


def has_failed(array: Any) -> bool:
    """01.4."""
    try:
        array.block_until_ready()
    except RuntimeError:
        return True
    return False


def has_failed_unless_ready(array: Any) -> bool:
    """Wrong: takes "has ended" for "has succeeded"."""
    return not array.is_ready()


def has_failed_without_waiting(array: Any) -> bool:
    """Wrong: an operation on a failed result is dispatched like any other."""
    try:
        array + 0
    except RuntimeError:
        return True
    return False


def has_succeeded(array: Any) -> bool:
    """Wrong: the other way round."""
    return not has_failed(array)


def has_failed_index(array: Any) -> bool:
    """Wrong: catches the device's error, which is not the one that arrives."""
    try:
        array.block_until_ready()
    except IndexError:
        return True
    return False


def has_failed_uncaught(array: Any) -> bool:
    """Wrong: the error reaches the caller."""
    array.block_until_ready()
    return False


ANSWERS = {
    "01.1": Answers(
        solution=[True, False, True, False],
        wrong=(
            Wrong([True, True, True, True], "nothing else"),
            Wrong([False, False, True, False], "Small work is not done first"),
            Wrong([True, False, True, True], "which array is it taken from"),
            Wrong([False, True, False, True], "Draw the two queues"),
        ),
    ),
    "01.2": Answers(
        solution=benchmark,
        wrong=(
            Wrong(benchmark_with_queue, "what is still in the queue"),
            Wrong(benchmark_waits_after, "Start, product, wait, stop"),
            Wrong(benchmark_waits_for_operand, "Which array is the result"),
            Wrong(benchmark_asks, "Which method waits"),
            Wrong(benchmark_polls, "Which method waits"),
        ),
    ),
    "01.3": Answers(
        solution=ten_steps,
        wrong=(
            Wrong(ten_steps_blocking, "asks for the result"),
            Wrong(ten_steps_float, "Which call needs a number"),
            Wrong(ten_steps_in_python, "A device must compute them"),
            Wrong(ten_matrices, "after each of the ten products"),
            Wrong(ten_numbers_before, "after each of the ten products"),
        ),
    ),
    "01.4": Answers(
        solution=has_failed,
        wrong=(
            Wrong(has_failed_unless_ready, "a failed result is ready as well"),
            Wrong(has_failed_without_waiting, "Nothing in the `try` waits"),
            Wrong(has_succeeded, "can *not* be had"),
            Wrong(has_failed_index, "of another class"),
            Wrong(has_failed_uncaught, "When does the error"),
        ),
    ),
}
