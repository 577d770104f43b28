"""Lesson 12: when it goes wrong."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tinyshard as ts
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.schedules import ring, start, steps

__all__ = ["EXERCISES"]

STILL_THERE = (False, True, False, True)
BEST_ROUNDS = 2
ROOM, SENT = 16 * 2**20, 2_000_000  # bytes of a device


def judge_left(guess: object) -> Verdict:
    """12.1: what was fetched, and what lives elsewhere, is left."""
    if not isinstance(guess, list | tuple) or len(guess) != 4 or not all(isinstance(each, bool) for each in guess):
        return differs("it is not a list of four values, each True or False")
    right = sum(each is truth for each, truth in zip(guess, STILL_THERE, strict=True))
    reported = f"{right} of 4 {'is' if right == 1 else 'are'} right"
    if right == 4:
        return PASSED
    if guess[2]:
        return differs(reported, "`c` was computed in time. But where are its numbers kept?")
    if not guess[3]:
        return differs(reported, "`d` came back before the kill. In whose memory is a plain tensor?")
    if not guess[1]:
        return differs(reported, "One worker was killed, not the pool. On which device does `b` live?")
    return differs(reported)


@dataclass(frozen=True)
class Stand:
    """A substitute for a device: its id, and perhaps a pid."""

    id: int
    is_lost: bool

    @property
    def pid(self) -> int:
        """As a device's: of a process that lives, so that an answer may also ask the system."""
        if self.is_lost:
            raise ts.DeviceLostError(f"CPU {self.id} is gone")
        return os.getpid()


def judge_alive(alive: Callable[[Sequence[object]], object]) -> Verdict:
    """12.2: the ids of those that have a pid."""
    for lost in ((1, 5), (0,), (), (0, 1, 2, 3, 4, 5, 6, 7)):
        devices = [Stand(number, number in lost) for number in range(8)]
        want = [device.id for device in devices if not device.is_lost]
        try:
            got = alive(devices)
        except ts.DeviceLostError as error:
            hint = "A lost device raises when it is asked for its pid. Ask each device in a `try` of its own."
            return differs(f"it lets an error through: {error}", hint)
        if got in (want, tuple(want)):
            continue
        reported = f"when {_names(lost)} lost, it returns {got!r}, not {want}"
        if not isinstance(got, list | tuple):
            return differs(reported, "A list of ids is asked for.")
        if got == list(range(8)):
            return differs(reported, "Nothing in the id says whether its worker lives. Ask for the pid.")
        if lost and got == list(range(lost[0])):
            return differs(
                reported, "It stops at the first lost device: the `try` belongs inside the loop, not around it."
            )
        return differs(reported)
    return PASSED


def _names(lost: Sequence[int]) -> str:
    return f"CPU {','.join(map(str, lost))} {'is' if len(lost) == 1 else 'are'}" if lost else "none is"


# Stubs, word by word as in the answer cells: a docstring would make them other functions.
def _first(device: int) -> Any:
    return ["send", "receive"]


def judge_order(order: Callable[[int], Sequence[str]]) -> Verdict:
    """12.3: rings of 4 and of 8 get done, in two rounds."""
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
            hint = (
                "The circle is broken, but neighbours that begin alike wait in turn. No two neighbours may begin alike."
            )
            return differs(f"with {count} devices all are done, but after {moment.rounds} rounds", hint)
    return PASSED


def _centered_layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    down = down - down.median(0).values
    return torch.relu(x @ up) @ down


def judge_layout(answer: object) -> Verdict:
    """12.4: the layer with a median in it fits, and sends one all_gather of the values between its two products."""
    if not isinstance(answer, list | tuple) or len(answer) != 2 or isinstance(answer, ts.PartitionSpec):
        return differs("it is not a tuple of two specs, that of up and that of down")
    specs = [each for each in answer if isinstance(each, ts.PartitionSpec)]
    if len(specs) < 2:
        return differs("it is not a tuple of two specs, such as (P(None, 'd'), P('d'))")
    mesh = ts.AbstractMesh((8,), ("d",))
    shapes = ((64, 1024), (1024, 8192), (8192, 1024))
    shardings = [ts.NamedSharding(mesh, spec) for spec in (ts.P(), *specs)]
    operands = [
        ts.ShapeDtypeStruct(shape, torch.float32, sharding=sharding)
        for shape, sharding in zip(shapes, shardings, strict=True)
    ]
    compiled = ts.jit(_centered_layer).lower(*operands).compile()
    peak_nbytes, nbytes = compiled.memory_analysis().peak_nbytes, compiled.cost_analysis().nbytes
    reported = f"{peak_nbytes / 2**20:.2f} MiB at the peak, {nbytes:,} bytes sent"
    if nbytes <= SENT and peak_nbytes <= ROOM:
        return PASSED
    _, up, down = (sharding.shard_shape(shape) for sharding, shape in zip(shardings, shapes, strict=True))
    if tuple(up) == shapes[1] or tuple(down) == shapes[2]:
        return differs(reported, "One of the matrices is whole on every device, 32 MiB. Both must be cut.")
    if down[0] < 8192:
        return differs(reported, "A median needs the whole column. Which dim of `down` may then not be cut?")
    return differs(
        reported, "Look at `up`: cut by rows it makes partial sums of all 8,192 columns. Which cut sends less?"
    )


EXERCISES = (
    Exercise(
        "12.1",
        judge_left,
        (
            "Write down for each name in whose memory its numbers are: CPU 2, CPU 4, or the controller.",
            "The memory of CPU 2 is gone, everything else is left. Where does `device_get` put its copy?",
        ),
        why="`a` and `c` lived in the memory of CPU 2. `b` is on CPU 4, and `d` is a copy in the controller.",
    ),
    Exercise(
        "12.2",
        judge_alive,
        (
            "Which line of `kill` tells that the worker is dead?",
            "In a loop over the devices, ask each for its pid, in a `try`. What does it mean if there is no error?",
        ),
        why="A lost device has no pid, and raises an error when it is asked. A `try` for each one lets the loop go on.",
    ),
    Exercise(
        "12.3",
        judge_order,
        (
            "Draw the ring. Which device must receive first, so that CPU 0 can send?",
            "Let it depend on the id: half of the devices send first, and their neighbours receive first.",
            "`device % 2` is 0 for every other device, and 1 for its neighbours.",
        ),
        stub=_first,
        why="Neighbours differ: in the first round half of the devices send, in the second round the other half.",
    ),
    Exercise(
        "12.4",
        judge_layout,
        (
            "What does the median of a column need in one place, and which dim of `down` may therefore not be cut?",
            "Cut the other dim of `down`. Which part of the hidden values does each device need for its product then?",
            "Which is smaller and may travel, the hidden values or `down`? How is `up` cut if each device makes only a "
            "part of the hidden values?",
        ),
        why="Both matrices are cut by columns. Medians stay on the device, and one all_gather moves the hidden "
        "values, 2 MiB, in place of the matrix, 32 MiB.",
    ),
)
