"""Lesson 11: when it goes wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.schedules import ring, start, steps
from tinyshard.core import config

__all__ = ["EXERCISES"]

CHOICES = ("ask again", "start afresh", "mend my line", "compute again")
BEST_ROUNDS = 2
ON_ALL = 4096 // 8  # elements of a 64 × 64 array that each of eight devices holds


def judge_first_steps(answer: object) -> Verdict:
    """11.1: what to do after each of four errors, which stand in the order of `CHOICES`."""
    if not isinstance(answer, list | tuple) or len(answer) != 4 or not all(each in CHOICES for each in answer):
        return differs(f"it is not a list of four of these: {', '.join(map(repr, CHOICES))}")
    right = sum(each == best for each, best in zip(answer, CHOICES, strict=True))
    told = f"{right} of 4 {'is' if right == 1 else 'are'} right"
    if right == 4:
        return PASSED
    if answer[0] == "start afresh":
        return differs(told, "1: a fresh pool costs all arrays, and here nothing is lost: the device was only asleep.")
    if answer[1] in ("ask again", "compute again"):
        return differs(told, "2: a dead process does not come back, however often you ask. What gives you eight again?")
    if answer[2] in ("ask again", "compute again", "start afresh"):
        return differs(told, "3: the same line on the same values fails again, on a fresh pool too.")
    if answer[3] == "ask again":
        return differs(told, "4: a cancelled value never comes by itself; its order was thrown away.")
    return differs(told)


# Stubs, word by word as in the answer cells: a docstring would make them other functions.
def _first(device: int) -> Any:
    return ["send", "receive"]


def judge_order(order: Callable[[int], Sequence[str]]) -> Verdict:
    """11.2: rings of 4 and of 8 get done, in two rounds."""
    for count in (4, 8):
        orders = {device: order(device) for device in range(count)}
        for device, words in orders.items():
            if not isinstance(words, list | tuple) or sorted(words) != ["receive", "send"]:
                return differs(f'order({device}) is {words!r}, not "send" and "receive" in some order')
        moment = steps(start(ring(count, orders)))[-1]
        if moment.circle:
            stuck = " → ".join(f"CPU {device}" for device in (*moment.circle, moment.circle[0]))
            different = {tuple(each) for each in orders.values()}
            hint = (
                "While all do the same first, each waits for the next. They must differ." if len(different) == 1 else ""
            )
            return differs(f"with {count} devices there is a deadlock: {stuck}", hint)
        if moment.rounds > BEST_ROUNDS:
            hint = "One that differs breaks the circle, but the others go one by one. Let half of them differ."
            return differs(f"with {count} devices all are done, but after {moment.rounds} rounds", hint)
    return PASSED


def _rectified(v: Any) -> Any:
    v -= v.mean(0)
    v[v < 0] = 0
    return v


def judge_rectified(answer: Callable[[Any], Any]) -> Verdict:
    """11.3: column means away, negatives to zero; an Array in, an Array out, and the first as it was."""
    device = ts.devices()[0]
    for host in (torch.tensor([[0.0, 2.0], [2.0, 4.0]]), torch.tensor([[3.0, -1.0], [0.0, 5.0], [0.0, 2.0]])):
        given = ts.device_put(host, device)
        try:
            got = answer(given)
        except ts.ImmutableError as error:
            hint = "A copy is an Array, too, and does not change either. Name each step's result: `w = v - …`"
            return differs(f"it still writes: {str(error).splitlines()[1].strip()}", hint)
        want = (host - host.mean(0)).clamp(min=0)
        if isinstance(got, torch.Tensor) and not isinstance(got, ts.Array):
            hint = "Somewhere the numbers are fetched to the kernel. Each step works on the Array itself."
            return differs("it returns a plain tensor", hint)
        told = difference(got, want, "the result")
        if told:
            lowest = ts.device_get(got).min() if isinstance(got, ts.Array) else torch.tensor(0.0)
            return differs(told, "Negative numbers are left. Which function chooses by a mask?" if lowest < 0 else "")
    return PASSED


def _augmented(image: Any, key: Any) -> Any:
    noisy = image + ts.random.normal(key, image.shape)
    return noisy * ts.random.bernoulli(key, 0.5, image.shape)


def judge_augmented(answer: Callable[[Any, Any], Any]) -> Verdict:
    """11.4: no key twice, and the result hangs on the key alone."""
    before = config.read("debug_key_reuse")
    config.update("debug_key_reuse", True)
    try:
        results = [_values(answer(torch.zeros(8, 8), ts.random.key(seed))) for seed in (7, 7, 8)]
    except ts.TinyshardError as error:
        if type(error).__name__ != "KeyReuseError":
            raise
        split_too = "split" in str(error).splitlines()[1]
        hint = "After `split` the old key is used up: draw from the two new ones only." if split_too else ""
        return differs("a key is used a second time", hint)
    finally:
        config.update("debug_key_reuse", before)
    images = [result for result in results if result is not None and result.shape == (8, 8)]
    if len(images) < len(results):
        return differs("the result is no image of the shape that came in")
    once, again, other = images
    if not torch.equal(once, again):
        return differs(
            "the same key gives another result the second time", "Draw with ts.random only, from `key` only."
        )
    if torch.equal(once, other):
        hint = "It no longer depends on `key`. Split the one that came in, and make none yourself."
        return differs("another key gives the same result", hint)
    share = (once == 0).double().mean().item()
    if not 0.2 < share < 0.8:
        return differs(f"{share:.0%} of the image is black, not about half", "Both draws are still needed.")
    return PASSED


def _values(result: object) -> torch.Tensor | None:
    return ts.device_get(result).detach() if isinstance(result, torch.Tensor) else None


def judge_quiet_rows(spec: object) -> Verdict:
    """11.5: rows sorted without a byte, on an eighth a device."""
    if isinstance(spec, tuple) and not isinstance(spec, ts.PartitionSpec):
        spec = ts.P(*spec)
    if not isinstance(spec, ts.PartitionSpec):
        return differs(f"it is of type {type(spec).__name__}, not a spec such as P('a', 'b')")
    sharding = ts.NamedSharding(ts.AbstractMesh((4, 2), ("a", "b")), spec)
    v = ts.ShapeDtypeStruct((64, 64), torch.float32, sharding=sharding)
    nbytes = ts.jit(lambda v: v.sort(1).values).lower(v).compile().cost_analysis().nbytes
    held = torch.Size(sharding.shard_shape((64, 64))).numel()
    told = f"{nbytes:,} bytes are sent, and each device holds {held} elements"
    if nbytes:
        hint = "The place of a number depends on all others of its row. Which dim must therefore not be cut?"
        return differs(told, hint)
    if held > ON_ALL:
        hint = "Quiet, but with copies: an axis that cuts nothing leaves copies. One dim may be cut by two axes."
        return differs(f"{told}, not {ON_ALL}", hint)
    return PASSED


EXERCISES = (
    Exercise(
        "11.1",
        judge_first_steps,
        (
            "Say of each error: is a device asleep, is one dead, is a line wrong, or was an order thrown away?",
            "Each of the four choices is right once.",
        ),
    ),
    Exercise(
        "11.2",
        judge_order,
        (
            "Draw the ring. Who has to receive first, so that CPU 0 can send?",
            "Let it depend on the id: half of the devices send first, and their neighbours receive first.",
            "`device % 2` is 0 for every other device.",
        ),
        stub=_first,
    ),
    Exercise(
        "11.3",
        judge_rectified,
        (
            "The table in section 9 has both lines of this function, and beside them the same out of place.",
            "`w = v - v.mean(0)`, then `torch.where(…, 0.0, w)`.",
        ),
        stub=_rectified,
    ),
    Exercise(
        "11.4",
        judge_augmented,
        (
            "Two draws need two keys. How does one become two?",
            "`noise_key, mask_key = ts.random.split(key)`",
        ),
        stub=_augmented,
    ),
    Exercise(
        "11.5",
        judge_quiet_rows,
        (
            "Keep each row whole, and cut the rows into eight.",
            "Section 11 cut the rows by both axes, by a tuple of their names.",
        ),
    ),
)
