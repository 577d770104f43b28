"""Lesson 03: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P


def holders(array: Any, row: int, column: int) -> list[int]:
    """03.1."""
    rows, columns = (range(size) for size in array.shape)
    return sorted(
        shard.device.id
        for shard in array.addressable_shards
        if row in rows[shard.index[0]] and column in columns[shard.index[1]]
    )


def first_holder(array: Any, row: int, column: int) -> list[int]:
    """Wrong: stops at the first copy."""
    return holders(array, row, column)[:1]


def holders_of_row(array: Any, row: int, column: int) -> list[int]:
    """Wrong: forgets that columns may be cut."""
    rows = range(array.shape[0])
    return [shard.device.id for shard in array.addressable_shards if row in rows[shard.index[0]]]


def holders_of_number(array: Any, row: int, column: int) -> list[int]:
    """Wrong: looks for the number of the element, which others may have, too."""
    number = ts.device_get(array)[row, column]
    return [shard.device.id for shard in array.addressable_shards if (ts.device_get(shard.data) == number).any()]


def all_devices(array: Any, row: int, column: int) -> list[int]:
    """Wrong: where the array lives, not the element."""
    return sorted(device.id for device in array.devices())


def set_of_holders(array: Any, row: int, column: int) -> set[int]:
    """Wrong: the ids without an order."""
    return set(holders(array, row, column))


def holding_devices(array: Any, row: int, column: int) -> list[Any]:
    """Wrong: devices, not their ids."""
    return [ts.devices()[id] for id in holders(array, row, column)]


def fetch(array: Any) -> torch.Tensor:
    """03.2."""
    whole = torch.empty(array.shape)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = ts.device_get(shard.data)
    return whole


def fetch_copies(array: Any) -> torch.Tensor:
    """Wrong: fetches each copy."""
    whole = torch.empty(array.shape)
    for shard in array.addressable_shards:
        whole[shard.index] = ts.device_get(shard.data)
    return whole


def fetch_below(array: Any) -> torch.Tensor:
    """Wrong: takes it that only rows are cut."""
    return torch.cat([ts.device_get(shard.data) for shard in array.addressable_shards if shard.replica_id == 0])


def fetch_whole(array: Any) -> Any:
    """Wrong: asks the library for all of it."""
    return ts.device_get(array)


def fetch_nothing(array: Any) -> torch.Tensor:
    """Wrong: knows the numbers without asking."""
    return torch.arange(32.0).reshape(array.shape)


ANSWERS = {
    "03.1": Answers(
        solution=holders,
        wrong=(
            Wrong(first_holder, "Do not stop at the first"),
            Wrong(holders_of_row, "and the column in the second"),
            Wrong(holders_of_number, "`index` has two slices"),
            Wrong(set_of_holders, "A set has no order"),
            Wrong(holding_devices, "These are devices"),
            Wrong(all_devices, "Which of the shards"),
        ),
    ),
    "03.2": Answers(
        solution=fetch,
        wrong=(
            Wrong(fetch_copies, "Copies of a block are fetched"),
            Wrong(fetch_below, "need not lie below each other"),
            Wrong(fetch_whole, "Take `addressable_shards`"),
            Wrong(fetch_nothing, "the shards of the argument"),
        ),
    ),
    "03.3": Answers(
        solution=[P("a1", ("b", "a2"))],
        wrong=(
            Wrong(P("a1", ("b", "a2")), "stands in a list"),
            Wrong([P()], "name all three axes"),
            Wrong([P(("a1", "a2"))], "name all three axes"),
            Wrong([P("a1", ("a2", "b"))], "several collectives"),
            Wrong([P(("a1", "a2", "b")), P(None, ("a1", "a2", "b"))], "the library's own path"),
            Wrong([P(("a1", "a2", "b")), P("a1", ("a2", "b"))], "more often than they have to"),
        ),
    ),
}
