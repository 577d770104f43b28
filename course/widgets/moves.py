"""The messages of a `device_put`: from one device to all, or from all to one; read from its Program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from course.widgets.traffic import Message, Moment, Pair, Recording, exchanged, held_by
from tinyshard.arrays.transfer import move_program
from tinyshard.core.layout import coarsest
from tinyshard.runtime.lifecycle import devices
from tinyshard.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from tinyshard.sharding.mesh import make_mesh

__all__ = ["MOVES", "ends_of", "record_move"]


def record_move(have: Sharding, want: Sharding, shape: tuple[int, ...]) -> Recording:
    """Move an array from one sharding to another, and record the messages between devices.

    Args:
        have: its present sharding; on the first devices.
        want: its new sharding, on the first devices too, but on more or fewer of them.
        shape: of the array; its numbers are 0, 1, 2, …

    Returns:
        The recording: one exchange, or none if everything is there already.

    Communication: none; the program runs in this process.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> rows = ts.NamedSharding(ts.make_mesh((4,), "i"), ts.P("i"))
        >>> found = record_move(ts.SingleDeviceSharding(ts.devices()[0]), rows, (4, 4))
        >>> [(message.target, message.nbytes) for message in found.moments[0].messages]
        [(1, 16.0), (2, 16.0), (3, 16.0)]
    """
    old, new = have.checked_layout(shape), want.checked_layout(shape)
    program = move_program(coarsest(old), coarsest(new), shape, torch.float32)
    count = len(program.devices)
    table = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    before: list[Pair | None] = [None] * count
    for position in range(len(old.devices)):
        block = table[old.index(position, shape)]
        before[position] = block, torch.full_like(block, 2.0**position)
    step = next((step for step in program.steps if step.op == "transfer"), None)
    if step is None:
        return Recording(count, (), held_by(before), 0)
    numbers, bits = (exchanged(program, step, [pair and pair[k] for pair in before]) for k in (0, 1))
    held = held_by(None if one is None else (one, whose) for one, whose in zip(numbers, bits, strict=True))
    messages = []
    for source, target, cut, _ in step.kwargs["moves"]:
        pair = before[source]
        assert pair is not None
        if source != target:
            messages.append(Message(source, target, float(pair[0][cut].nbytes)))
    moment = Moment(
        "transfer", "each block goes to the device that is to hold it", held_by(before), held, tuple(messages)
    )
    moved = Recording(count, (moment,), held, 0)
    return replace(moved, nbytes=int(max(moved.sent())))


def _places(count: int) -> tuple[SingleDeviceSharding, NamedSharding, NamedSharding]:
    """CPU 0 alone; a row on each device; a copy on each device."""
    mesh = make_mesh((count,), "i", devices=devices()[:count])
    return (
        SingleDeviceSharding(devices()[0]),
        NamedSharding(mesh, PartitionSpec("i")),
        NamedSharding(mesh, PartitionSpec()),
    )


def ends_of(pattern: str, count: int) -> tuple[Sharding, Sharding, tuple[int, ...]]:
    """From where to where something goes, and its shape.

    Args:
        pattern: one of MOVES.
        count: how many devices take part.
    """
    one, rows, copies = _places(count)
    return {
        "scatter": (one, rows, (count, count)),
        "broadcast": (one, copies, (count,)),
        "gather": (rows, one, (count, count)),
    }[pattern]


# words → (code, from the number of devices to what is recorded): from one device to all, and from all to one
MOVES: dict[str, tuple[str, Callable[[int], Recording]]] = {
    "scatter": (
        'device_put(table_on_cpu_0, NamedSharding(mesh, P("i")))',
        lambda count: record_move(*ends_of("scatter", count)),
    ),
    "broadcast": (
        "device_put(row_on_cpu_0, NamedSharding(mesh, P()))",
        lambda count: record_move(*ends_of("broadcast", count)),
    ),
    "gather": ("device_put(table_in_rows, devices()[0])", lambda count: record_move(*ends_of("gather", count))),
}
