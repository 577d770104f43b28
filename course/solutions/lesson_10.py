"""Lesson 10: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

random = ts.random


def dropout(key: Any, h: Any) -> Any:
    """10.2."""
    return torch.where(random.bernoulli(key, 0.5, h.shape), 2 * h, 0.0)


def noise_of(key: Any, block: Any, first: Any) -> Any:
    """Noise for the rows of a block, whose first row has the number `first`."""

    def of_row(number: Any) -> Any:
        return random.normal(random.fold_in(key, number), (block.shape[1],))

    return block + ts.vmap(of_row)(first + torch.arange(block.shape[0]))


def noise_of_rows(key: Any, block: Any) -> Any:
    """10.3."""
    return noise_of(key, block, ts.lax.axis_index("rows") * block.shape[0])


def noise_of_own_rows(key: Any, block: Any) -> Any:
    """Wrong: rows are counted from 0 in every block."""
    return noise_of(key, block, 0)


def noise_of_blocks(key: Any, block: Any) -> Any:
    """Wrong: the counters of a block, under a key for the device."""
    number = ts.lax.axis_index("rows") + 100
    return block + random.normal(random.fold_in(key, number), block.shape)


def noise_for_all(key: Any, block: Any) -> Any:
    """Wrong: the rows of all devices are fetched."""
    rows = ts.lax.all_gather(block, "rows", tiled=True)
    noise = random.normal(key, rows.shape)
    return ts.lax.psum_scatter(rows + noise, "rows", tiled=True)


def noise_of_all_rows(key: Any, block: Any) -> Any:
    """Wrong: each device draws for all rows and keeps its own."""
    count = ts.lax.axis_size("rows") * block.shape[0]
    own = ts.lax.axis_index("rows") * block.shape[0] + torch.arange(block.shape[0])
    return block + random.normal(key, (count, block.shape[1]))[own]


def noise_of_one_number(key: Any, block: Any) -> Any:
    """Wrong: the same key for each row."""
    return block + random.normal(key, block.shape[1:])


ANSWERS = {
    "10.1": Answers(
        solution=range(30, 36),
        wrong=(
            Wrong(range(24, 30), "device 2 has it"),
            Wrong(range(42, 48), "the *second* row"),
            Wrong(range(18, 24), "plus the column"),
            Wrong([3], "how many rows and columns"),
        ),
    ),
    "10.2": Answers(
        solution=dropout,
        wrong=(
            Wrong(lambda key, h: torch.nn.functional.dropout(h, 0.5), "have a hidden state"),
            Wrong(lambda key, h: torch.where(random.bernoulli(key, 0.5, h.shape), h, 0.0), "count twice"),
            Wrong(lambda key, h: 2 * h * random.bernoulli(key, 0.5, h.shape[1:]), "one number for each element"),
            Wrong(lambda key, h: 2 * h * random.bernoulli(key, 0.5, (len(h), 1)), "one number for each element"),
            Wrong(lambda key, h: dropout(random.key(0), h), "the key that the caller gives"),
            Wrong(lambda key, h: torch.where(random.bernoulli(key, 0.9, h.shape), 2 * h, 0.0), "What decides"),
        ),
    ),
    "10.3": Answers(
        solution=noise_of_rows,
        wrong=(
            Wrong(noise_of_own_rows, "what is the number of its first row"),
            Wrong(noise_of_blocks, "The number of the *device* is still in the key"),
            Wrong(noise_for_all, "Nothing has to be sent"),
            Wrong(noise_of_all_rows, "those of its rows only"),
            Wrong(noise_of_one_number, "a key of its own"),
            Wrong(lambda key, block: noise_of_rows(random.key(1), block), "from the key of the caller"),
        ),
    ),
}
