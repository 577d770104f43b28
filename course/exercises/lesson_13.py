"""Lesson 13: one look over a slow wire, rows for a roofline, examples a device, and an all-reduce in two stages."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, number_in
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.watching import watched_waits
from course.network import step_on
from course.planner import GPU_BOXES, Link, Machine, estimate

__all__ = ["EXERCISES"]

Answer = Callable[..., Any]


# 13.1's answer cell before it is touched: right, but it looks at each loss
def _looking(w, steps):  # type: ignore[no-untyped-def]
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append(float((w * w).sum()))
    return w, losses


def judge_one_look(train: Answer) -> Verdict:
    """13.1: any number of steps, one wait."""
    for steps in (5, 3):
        start = torch.arange(1.0, 5.0)
        w = ts.device_put(start, ts.devices()[-1]).block_until_ready()
        waits: list[object] = []
        with watched_waits(waits.append):
            got = train(w, steps)
        if not isinstance(got, tuple | list) or len(got) != 2:
            return differs("it does not return two things, w and the losses")
        after, losses = got
        if not isinstance(after, ts.Array):
            return differs("w is no Array any more", "Only the losses are to be fetched: w stays where it is.")
        if isinstance(losses, ts.Array) or (
            isinstance(losses, list | tuple) and any(isinstance(loss, ts.Array) for loss in losses)
        ):
            hint = (
                "The losses are still on the device: a caller that prints them will wait. Fetch them before you return."
            )
            return differs("the losses are Arrays", hint)
        want, wanted = start, []
        for _ in range(steps):
            want = want - 0.1 * want
            wanted.append(float((want * want).sum()))
        told = difference(losses, torch.tensor(wanted), "the losses") or difference(after, want, "w")
        if told:
            return differs(told)
        if len(waits) == 1:
            continue
        told = f"for {steps} steps the controller waits {len(waits)} times, not once"
        if "stack" in _names(train) or "cat" in _names(train):
            return differs(told, "One array of all losses, one fetch: nothing else may be looked at.")
        hint = "Each loss is an array of its own, and each is fetched for itself. What makes one array of them?"
        return differs(told, hint)
    return PASSED


def _names(function: Any) -> tuple[str, ...]:
    return getattr(getattr(function, "__code__", None), "co_names", ())


D, F = 8192, 28_672  # of `up`
FLOPS_PER_S, BYTES_PER_S = 989e12, 3.35e12


def arithmetic_decides(rows: int, counted: int = 3) -> bool:
    """Whether a bfloat16 product of this many rows computes at least as long as it reads and writes.

    Args:
        counted: 3: x, matrix and result; 2: without the result; 1: the matrix alone.
    """
    numbers = D * F + (rows * D if counted > 1 else 0) + (rows * F if counted > 2 else 0)
    return 2 * rows * D * F / FLOPS_PER_S >= 2 * numbers / BYTES_PER_S


def _fewest(is_enough: Callable[[int], bool]) -> int:
    """The smallest number from which it is true, up to a million."""
    low, high = 1, 10**6
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def judge_rows(answer: object) -> Verdict:
    """13.2: the row from which an H100 does not wait for its memory."""
    rows = number_in(answer)
    if not isinstance(rows, int):
        return differs(f"{answer!r} is not a whole number")
    best = _fewest(arithmetic_decides)
    if rows == best:
        return PASSED
    told = f"{rows:,} is {'more' if rows > best else 'less'} than the smallest number"
    if rows in (295, 296):
        return differs(told, "That is the approximation: the matrix alone. Also x is read, and the result is written.")
    if rows == _fewest(lambda each: arithmetic_decides(each, counted=2)):
        return differs(told, "x is counted, the result is not: B rows of 28,672 numbers are written.")
    if rows == best - 1:
        return differs(told, "The times are not equal yet: at least as long means the next whole number.")
    return differs(told)


def is_computing_longer(each: int) -> bool:
    """Whether computing takes at least as long as communicating, with so many examples on each of 64 devices."""
    total = estimate(step_on("data", 64, 64 * each), GPU_BOXES)
    return total.compute_s >= total.communicate_s


def judge_examples(answer: object) -> Verdict:
    """13.3: the batch of a device from which computing decides."""
    examples = number_in(answer)
    if not isinstance(examples, int) or not 0 < examples < 10**6:
        return differs(f"{answer!r} is no number of examples")
    if is_computing_longer(examples) and not (examples > 1 and is_computing_longer(examples - 1)):
        return PASSED
    if is_computing_longer(examples):
        hint = "Enough, but not the smallest. Both times are known for 1,024 examples: which of them grows?"
        return differs(f"with {examples:,} examples computing is the longer part; so it is with fewer", hint)
    told = f"with {examples:,} examples a device communicating is still the longer part"
    if examples == 1024:
        return differs(told, "That is the batch of the tables: 7.6 ms of computing against 14.7 ms.")
    return differs(told)


# two hosts of four devices
TWO_HOSTS = Machine("two hosts", 4, 1.0, 10**9, Link(0.0, 100.0), Link(0.0, 12.0))
NUMBERS = 100


def judge_two_stages(answer: Answer) -> Verdict:
    """13.4: an all-reduce that sends only a quarter of its bytes between hosts."""
    x = torch.arange(8.0 * NUMBERS).reshape(2, 4, NUMBERS) % 17
    got = ts.vmap(ts.vmap(answer, axis_name="device"), axis_name="host")(x)
    if got is None:
        return differs("it returns None")
    told = difference(
        got, x.sum((0, 1)).expand(2, 4, NUMBERS), f"for eight rows of {NUMBERS} numbers, what the devices hold"
    )
    if told:
        return differs(told.splitlines()[0])
    mesh = ts.AbstractMesh((2, 4), ("host", "device"))
    both = ts.P(("host", "device"))
    described = ts.ShapeDtypeStruct((8 * NUMBERS,), torch.float32, sharding=ts.NamedSharding(mesh, both))
    compiled = ts.shard_map(answer, mesh=mesh, in_specs=both, out_specs=both).lower(described).compile()
    leaving = estimate(compiled, TWO_HOSTS).host_nbytes
    if leaving <= 4 * NUMBERS:
        return PASSED
    told = f"the sums are right, but {leaving:,} bytes leave each host; the target is {4 * NUMBERS}"
    if leaving > 8 * NUMBERS - NUMBERS:
        return differs(
            told,
            "All four devices of a host send the same sums to the other host. Let each of them send a quarter: "
            "psum_scatter first.",
        )
    return differs(told, "One ring through all devices leaves each host once, with nearly twice the bytes of a row.")


# 13.4's answer cell before it is touched: right, but one ring through all devices of both hosts
def _one_ring(row):  # type: ignore[no-untyped-def]
    return ts.lax.psum(row, ("host", "device"))


EXERCISES = (
    Exercise(
        "13.1",
        judge_one_look,
        (
            "Which call in the loop needs a number? Can it wait until the loop is over?",
            "Keep the losses as Arrays in the loop. Afterwards each fetch of an Array is a round trip: how many?",
            "`torch.stack` makes one Array of a list of them, on their device.",
        ),
        stub=_looking,
        why="All steps were dispatched without a look. The losses became one Array on the device, and one fetch is one "
        "round trip, however many steps there are.",
    ),
    Exercise(
        "13.2",
        judge_rows,
        (
            "Write both times as functions of B: 2 · B · D · F operations, and the bytes of three matrices.",
            "There are B · D numbers in x, D · F in the matrix, B · F in the result, of 2 bytes each.",
            "Set both times equal and solve for B, or try one B after the other in a loop; then the next whole number.",
        ),
        why="With the bytes of x and of the result, each row adds a little to what is read and written, so a few more "
        "rows are needed than the 295 of the matrix alone.",
    ),
    Exercise(
        "13.3",
        judge_examples,
        (
            "What does each of the two times depend on: the examples of a device, or the parameters?",
            "Computing is proportional to the examples; communicating does not change. So one program tells both.",
            "Take `compute_s` and `communicate_s` for 1,024 examples: by which factor must the first grow? Round up.",
        ),
        why="Gradients are as large for one example as for a million, and products grow with the examples: their ratio "
        "is the intensity of the network, and the parameters cancel in it.",
    ),
    Exercise(
        "13.4",
        judge_two_stages,
        (
            "The four devices of a host can add up among themselves first, over their fast wires.",
            "If each of them then holds a quarter of the sum, it has only that to send to the other host.",
            "Three collectives. After which one does a device have a quarter of the sum of its host, and after which "
            "one a quarter of the sum of both?",
        ),
        stub=_one_ring,
        why="Each device sends only its quarter of the sum to the other host: a reduce-scatter inside, an all-reduce "
        "between, an all-gather inside.",
    ),
)
