"""Lesson 10: random numbers that do not care where they run."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

P = ts.P


def equal_layers(key: Any) -> Any:
    """The stub of 10.1."""
    first = ts.random.normal(key, (3, 3))
    second = ts.random.normal(key, (6, 3))
    return first, second


def judge_two_layers(two_layers: Callable[..., Any]) -> Verdict:
    """Two matrices from one key, that share no number and both depend on the key."""
    one = ts.random.key(1)
    first, second = (plain(each) for each in two_layers(one))
    if (tuple(first.shape), tuple(second.shape)) != ((3, 3), (6, 3)):
        return differs(f"the shapes are {tuple(first.shape)} and {tuple(second.shape)}, not (3, 3) and (6, 3)")
    if set(first.flatten().tolist()) & set(second.flatten().tolist()):
        return differs("the two matrices share numbers", "Both are still drawn from one key. Each draw needs its own.")
    again = [plain(each) for each in two_layers(one)]
    if not (torch.equal(first, again[0]) and torch.equal(second, again[1])):
        return differs("twice the same key gives different matrices", "Draw by `ts.random`, which has no hidden state.")
    other = [plain(each) for each in two_layers(ts.random.key(2))]
    for name, a, b in zip(("first", "second"), (first, second), other, strict=True):
        if torch.equal(a, b):
            return differs(
                f"the {name} matrix is the same for every key", "A new key of your own ignores the caller's."
            )
    from_used = [
        name
        for name, matrix in (("first", first), ("second", second))
        if torch.equal(matrix, plain(ts.random.normal(one, tuple(matrix.shape))))
    ]
    if from_used:
        hint = "`key` has been split, and is used up by that: draw from the new keys only. Section 6 shows the trap."
        return differs(f"the {from_used[0]} matrix is drawn from `key` itself", hint)
    return PASSED


def same_noise(key: Any, step: int) -> Any:
    """The stub of 10.2."""
    return ts.random.normal(key, (3,))


def judge_noise(noise: Callable[..., Any]) -> Verdict:
    """A function of key and step, and of nothing else."""
    steps = [plain(noise(ts.random.key(5), step)) for step in range(4)]
    resumed = plain(noise(ts.random.key(5), 3))
    if not torch.equal(resumed, steps[3]):
        hint = "Something outside remembers how often you called. Step 3 must need nothing but the key and the 3."
        return differs("step 3 after a new start differs from step 3 before", hint)
    if torch.equal(steps[2], steps[3]):
        return differs("steps 2 and 3 have the same noise", "The step does not enter the key yet.")
    if any(torch.allclose(a - a.mean(), b - b.mean(), atol=1e-5) for a, b in pairwise(steps)):
        hint = "The draw is the same in each step, and only shifted. The *key* must be another one in each step."
        return differs("steps differ by a constant", hint)
    if torch.equal(plain(noise(ts.random.key(6), 3)), steps[3]):
        return differs(
            "another key gives the same noise", "`ts.random.key(step)` forgets `key`: mix the step *into* it."
        )
    return PASSED


def identity(key: Any, x: Any) -> Any:
    """The stub of 10.3."""
    return x


def judge_dropout(dropout: Callable[..., Any]) -> Verdict:
    """About half zero, the others doubled, other elements for other keys, no talk."""
    rows = ts.NamedSharding(ts.make_mesh((8,), ("rows",)), P("rows"))
    x = ts.device_put(torch.arange(1.0, 801.0).reshape(8, 100), rows)
    key = ts.random.key(3)
    jitted = ts.jit(dropout)
    try:
        dropped = plain(jitted(key, x))
    except ts.errors.StatefulRandomError as error:
        hint = "torch's own dropout and rand have a hidden state. Draw the mask by `ts.random`, from the key."
        return differs(str(error).splitlines()[0], hint)
    values = plain(x)
    if tuple(dropped.shape) != (8, 100):
        return differs(f"the shape is {tuple(dropped.shape)}, not (8, 100)")
    kept = dropped != 0
    share = 1 - kept.float().mean().item()
    told = f"{share:.0%} of the elements are 0"
    if torch.equal(dropped[kept], values[kept]) and 0.4 < share < 0.6:
        return differs(
            "what is kept is not doubled", "The mean of all is to stay what it was. So the kept ones count twice."
        )
    if not torch.equal(dropped[kept], 2 * values[kept]):
        return differs("an element is neither 0 nor doubled")
    if (kept == kept[0]).all():
        return differs(
            "all rows lose the same elements", "The mask has one row. Draw one number for each element of `x`."
        )
    if not 0.4 < share < 0.6:
        return differs(told)
    if torch.equal(plain(jitted(ts.random.key(4), x)) != 0, kept):
        return differs("another key drops the same elements", "The mask must come from the key that the caller gives.")
    nbytes = jitted.lower(key, x).compile().cost_analysis().nbytes
    if nbytes:
        return differs(f"each device sends {nbytes} bytes", "The mask needs the shape of `x`, and nothing from others.")
    return PASSED


def judge_counters(counters: Any) -> Verdict:
    """Row 2, columns 6 to 11 of a matrix with 12 columns."""
    found = [int(each) for each in counters]
    told = f"these are the counters {found[0]} to {found[-1]}" if found else "there are none"
    if found == list(range(30, 36)):
        return PASSED
    if found == list(range(24, 30)):
        return differs(told, "The row is right, but that is its left half: CPU 2 has it.")
    if found == list(range(42, 48)):
        return differs(told, "The half is right, but that is the *second* row of the block.")
    if found == list(range(18, 24)):
        return differs(told, "That is a block numbered through. A counter is 12 times the row, plus the column.")
    return differs(told)


EXERCISES = (
    Exercise(
        "10.1",
        judge_two_layers,
        (
            "How many things are drawn, and how many keys are there?",
            "Section 5: which function makes two keys of one?",
            "`for_first, for_second = ts.random.split(key)`, and a draw from each.",
        ),
        stub=equal_layers,
    ),
    Exercise(
        "10.2",
        judge_noise,
        (
            "What is known at step 3 to a program that was started again just now?",
            "A key for number *i*: section 6.",
            "Draw from `ts.random.fold_in(key, step)`.",
        ),
        stub=same_noise,
    ),
    Exercise(
        "10.3",
        judge_dropout,
        (
            "What decides for each element, and in which shape is it drawn?",
            "`ts.random.bernoulli(key, 0.5, x.shape)` is a mask, and `torch.where` takes it.",
            "`torch.where(mask, 2 * x, 0)`: kept ones doubled, the others zero.",
        ),
        stub=identity,
    ),
    Exercise(
        "10.4",
        judge_counters,
        (
            "4 x 2 blocks of 8 x 12 numbers: how many rows and columns has a block, and which block is CPU 3's?",
            "CPU 3 has rows 2 and 3, and the right half of the columns.",
            "The counter of row i, column j is 12 · i + j; i is 2, and j goes from 6 to 11.",
        ),
        stub=range(6),
    ),
)
