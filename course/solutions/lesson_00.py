"""Lesson 00: answers."""

from collections.abc import Sequence
from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

Tensor = torch.Tensor


def part(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """00.1: the layer of its own columns and rows."""
    width = up.shape[1] // 8
    mine = slice(k * width, (k + 1) * width)
    return torch.relu(x @ up[:, mine]) @ down[mine]


def part_whole(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """Every device has all."""
    return torch.relu(x @ up) @ down


def part_eighth(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """The right sum, of what no device has."""
    return torch.relu(x @ up) @ down / 8


def part_without_relu(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """Two products only."""
    mine = slice(k * 1024, (k + 1) * 1024)
    return x @ up[:, mine] @ down[mine]


def part_relu_last(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """Wrong: `relu` of a part of a sum."""
    mine = slice(k * 1024, (k + 1) * 1024)
    return torch.relu(x @ up[:, mine] @ down[mine])


def part_relu_first(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """Wrong: `relu` of the operand."""
    mine = slice(k * 1024, (k + 1) * 1024)
    return torch.relu(x) @ up[:, mine] @ down[mine]


def part_strided(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """Every eighth column."""
    return torch.relu(x @ up[:, k::8]) @ down[k::8]


def part_before_down(x: Tensor, up: Tensor, down: Tensor, k: int) -> Tensor:
    """Stops at `%4`."""
    return torch.relu(x @ up[:, k * 1024 : (k + 1) * 1024])


def place(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Any]:
    """00.2: the first device that has room."""
    placed = []
    for tensor in tensors:
        for device in room:
            if tensor.nbytes <= room[device]:
                room[device] -= tensor.nbytes
                placed.append(ts.device_put(tensor, device))
                break
    return placed


def place_on_one(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Any]:
    """All on CPU 0."""
    return [ts.device_put(tensor, ts.devices()[0]) for tensor in tensors]


def place_in_turn(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Any]:
    """As many tensors on each, not as many bytes."""
    return [ts.device_put(tensor, ts.devices()[number % 8]) for number, tensor in enumerate(tensors)]


def place_by_numel(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Any]:
    """Numbers are counted for bytes."""
    placed = []
    for tensor in tensors:
        for device in room:
            if tensor.numel() <= room[device]:
                room[device] -= tensor.numel()
                placed.append(ts.device_put(tensor, device))
                break
    return placed


def place_without_room(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Any]:
    """Always on the device that has got the least so far, whatever room it has."""
    taken = dict.fromkeys(room, 0)
    placed = []
    for tensor in tensors:
        device = min(taken, key=lambda each: taken[each])
        taken[device] += tensor.nbytes
        placed.append(ts.device_put(tensor, device))
    return placed


def place_halved(tensors: Any, room: Any) -> Any:
    """Wrong: makes them fit by other numbers of half the size."""
    return place([tensor.half() for tensor in tensors], room)


def place_copies(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Any]:
    """Wrong: each tensor on all devices."""
    mesh = ts.make_mesh((8,), ("all",))
    return [ts.device_put(tensor, ts.NamedSharding(mesh, ts.P())) for tensor in tensors]


def place_nowhere(tensors: Sequence[Tensor], room: dict[Any, int]) -> list[Tensor]:
    """No device is involved."""
    return list(tensors)


ANSWERS = {
    "00.1": Answers(
        solution=part,
        wrong=(
            Wrong(part_whole, "That is the whole y"),
            Wrong(part_eighth, "no device could compute this"),
            Wrong(part_without_relu, "layer without `relu`"),
            Wrong(part_relu_last, "`relu` comes last"),
            Wrong(part_relu_first, "is applied to `x`"),
            Wrong(part_strided, "these are not its columns"),
            Wrong(part_before_down, "the shape of the whole y"),
        ),
    ),
    "00.2": Answers(
        solution=place,
        wrong=(
            Wrong(place_on_one, "All are on one device"),
            Wrong(place_in_turn, "counts tensors"),
            Wrong(place_by_numel, "`numel` counts numbers"),
            Wrong(place_without_room, "as much room as the emptiest"),
            Wrong(place_copies, "not a sharding"),
            Wrong(place_nowhere, "Which function sends it"),
            Wrong(place_halved, "a count of the bytes"),
        ),
    ),
    "00.3": Answers(
        solution=[4, 2097152],
        wrong=(
            Wrong([2097156, 2097152], "An Array without a name is forgotten"),
            Wrong([4, 0], "What becomes of `c` itself"),
            Wrong([1, 524288], "These are numbers, not bytes"),
            Wrong([0, 2097152], "where is it kept"),
        ),
    ),
}
