"""What a pattern of lessons 07 and 08 takes on the devices: on the rows of the picture, and on rows of 1 MiB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.planner import LAPTOPS, estimate
from course.widgets.timed import Timed, problem_of, timed
from tinyshard.arrays.placement import device_put
from tinyshard.arrays.transfer import move_program
from tinyshard.compile.cost import bytes_sent
from tinyshard.core.layout import coarsest
from tinyshard.runtime.lifecycle import devices
from tinyshard.sharding import Sharding
from tinyshard.transforms.pmap import pmap

__all__ = ["times_of_function", "times_of_move"]

LARGE_NBYTES = 2**20  # of a row
FLOAT_NBYTES = 4


def times_of_function(function: Callable[[Tensor], Tensor], count: int) -> tuple[Timed, ...]:
    """A function mapped over the rows of a table; on small rows the floor is seen, on large ones the bytes.

    Args:
        function: from a row to a tensor; its axis is named "i".
        count: how many devices take part.

    Communication: that of the function, several times.
    """
    mapped = pmap(function, axis_name="i", devices=devices()[:count])
    return tuple(_mapped(mapped, shape, words) for shape, words in _sizes((count, count)))


def times_of_move(have: Sharding, want: Sharding, shape: tuple[int, ...]) -> tuple[Timed, ...]:
    """A `device_put` of a table, or of a row, from one sharding to another.

    Args:
        have: where it is.
        want: where it goes.
        shape: of what is moved in the picture.

    Communication: that of the move, several times.
    """
    return tuple(_move(have, want, each, words) for each, words in _sizes(shape))


def _sizes(shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], str]]:
    """The shape of the picture, and one whose rows have one more dim, so that they are of 1 MiB."""
    row_nbytes = FLOAT_NBYTES * shape[-1]
    return [(shape, f"rows of {row_nbytes} bytes"), ((*shape, LARGE_NBYTES // row_nbytes), "rows of 1 MiB")]


def _mapped(mapped: Any, shape: tuple[int, ...], words: str) -> Timed:
    table = torch.ones(shape)
    try:
        compiled = mapped.lower(table).compile()
    except Exception as error:  # a learner's function may take rows of numbers only
        return Timed(words, 0, (0.0, 0.0), None, problem_of(error))
    cost, by_model = compiled.cost_analysis(), estimate(compiled, LAPTOPS)

    def prepare() -> Callable[[], Any]:
        placed = device_put(table, compiled.input_shardings[0][0])
        return lambda: mapped(placed)

    return timed(words, cost.nbytes, (by_model.overlapped_s, by_model.step_s), prepare)


def _move(have: Sharding, want: Sharding, shape: tuple[int, ...], words: str) -> Timed:
    old, new = (coarsest(sharding.checked_layout(shape)) for sharding in (have, want))
    program = move_program(old, new, shape, torch.float32)
    nbytes = sum(bytes_sent(program, step) for step in program.steps if step.op == "transfer")
    modelled_s = LAPTOPS.inside.latency_s + nbytes / LAPTOPS.inside.bytes_per_s

    def prepare() -> Callable[[], Any]:
        placed = device_put(torch.ones(shape), have)
        return lambda: device_put(placed, want)

    return timed(words, nbytes, (modelled_s, modelled_s), prepare)
