"""Lesson 05: talking to the others."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

TABLE = torch.arange(64.0).reshape(8, 8) ** 2
# What the busiest of 4 devices sends for a row of 256 bytes, by the table in the key points.
SENT = {"psum": 384, "all_gather": 768, "all_to_all": 192, "ppermute": 256}


def _mapped(function: Callable[..., Any]) -> Any:
    """The learner's function on eight devices, a row each, along the axis `i`."""
    return ts.pmap(function, axis_name="i")


def judge_difference(to_the_left: Callable[..., Any]) -> Verdict:
    """Each device's number less that of its left neighbour, around the ring."""
    numbers = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    got = _mapped(to_the_left)(numbers)
    want = numbers - numbers.roll(1)
    told = difference(got, want, "the result for 3, 1, 4, 1, 5, 9, 2, 6")
    if not told:
        return PASSED
    if not difference(got, torch.cat([numbers[:1], want[1:]])):
        return differs(told, "Only device 0 is wrong: it got zeros. Who sends to it, around a ring?")
    if not difference(got, numbers - numbers.roll(-1)):
        return differs(
            told, "That is the neighbour on the right. In a pair the first number sends, the second receives."
        )
    if not difference(got, -want):
        return differs(told, "Right in size, but the sign is turned: own number less the neighbour's.")
    return differs(told)


def judge_two_halves(all_reduce: Callable[..., Any]) -> Verdict:
    """The sum of all rows on each device, out of two collectives, for 56 bytes."""
    mapped = _mapped(all_reduce)
    cost = mapped.lower(TABLE).compile().cost_analysis()
    if cost.count("all_reduce"):
        return differs("its program has an all_reduce", "`psum` is what you are to build. Which two halves has it?")
    got = mapped(TABLE)
    told = difference(got, TABLE.sum(0).expand(8, 8), "the result")
    if told and tuple(got.shape) == (8,):
        return differs(told, "Each device has one number of the sum, complete. The second half of the job is missing.")
    if told:
        return differs(told)
    if cost.nbytes > 56:
        hint = "Right, but dear: whole rows travel. Let each device add up only *one* piece of the sum."
        return differs(f"the busiest device sends {cost.nbytes} bytes, not 56", hint)
    return PASSED


def judge_envelope(sent: Any) -> Verdict:
    """Four numbers from the table of the key points."""
    if not isinstance(sent, dict) or sent.keys() != SENT.keys():
        return differs(f"it is not a dict of {', '.join(SENT)}")
    wrong = [name for name, nbytes in SENT.items() if sent[name] != nbytes]
    told = f"{len(wrong)} of 4 are wrong: {', '.join(wrong)}"
    if sent == {"psum": 448, "all_gather": 1792, "all_to_all": 224, "ppermute": 256}:
        return differs(told, "That is for eight devices. Here n is 4.")
    if sent["psum"] == 192 and "psum" in wrong:
        return differs(told, "An all-reduce has two halves: adding up, and telling everybody. You have counted one.")
    if sent["all_gather"] == 1024 or sent["all_to_all"] == 256:
        return differs(told, "Nobody sends to himself: of n pieces or copies, n - 1 travel.")
    return differs(told) if wrong else PASSED


def judge_from_three(from_three: Callable[..., Any]) -> Verdict:
    """The row of device 3, on all devices, for no more bytes of the busiest device than an all-reduce of it."""
    try:
        mapped = _mapped(from_three)
        got = mapped(TABLE)
    except ts.errors.MappingError as error:
        hint = "A permutation has one receiver for each sender. Which collective lets everybody get the same?"
        return differs(str(error).splitlines()[0], hint)
    told = difference(got, TABLE[3].expand(8, 8), "the result")
    if told and not difference(got, TABLE.sum(0).expand(8, 8)):
        return differs(told, "That is the sum of all. What must the others hold, so that only device 3 counts?")
    if told:
        return differs(told)
    cost = mapped.lower(TABLE).compile().cost_analysis()
    nbytes = cost.nbytes
    if nbytes > 56 and cost.count("collective_permute"):
        hint = "Right, but device 3 sends its row several times. Which collective ends with the same on all devices?"
        return differs(f"the busiest device sends {nbytes} bytes, not 56", hint)
    if nbytes > 56:
        hint = "Right, but all eight rows travel to everybody, and seven are thrown away. Which way needs fewer bytes?"
        return differs(f"the busiest device sends {nbytes} bytes, not 56", hint)
    return PASSED


EXERCISES = (
    Exercise(
        "05.1",
        judge_difference,
        (
            "Whom must each device send its number to, so that everybody has the number of the left neighbour?",
            "Section 7 has the pairs of a ring, also the one from device 7 to device 0.",
            "`v - ts.lax.ppermute(v, 'i', ring)`",
        ),
        stub=lambda v: v,
    ),
    Exercise(
        "05.2",
        judge_two_halves,
        (
            "What does each device hold after a reduce-scatter, and what does it lack?",
            "`psum_scatter` gives everyone one complete piece. Which collective hands the pieces round?",
            "`ts.lax.all_gather` of the result of `ts.lax.psum_scatter`, both along `'i'`.",
        ),
        stub=lambda row: row,
    ),
    Exercise(
        "05.3",
        judge_envelope,
        (
            "What are n and k here, in the table of the key points?",
            "n is 4 and k is 256 bytes. (n − 1)/n is 3/4.",
            "psum: 2 · 256 · 3/4. all_gather: 256 · 3. And so on down the table.",
        ),
        stub=dict.fromkeys(SENT),
    ),
    Exercise(
        "05.4",
        judge_from_three,
        (
            "Everybody is to get the same value. Which collectives end like that?",
            "A sum, in which all but one device have zero, is the value of this one.",
            "`torch.where(ts.lax.axis_index('i') == 3, row, 0)` is what to add up with `psum`.",
        ),
        stub=lambda row: row,
    ),
)
