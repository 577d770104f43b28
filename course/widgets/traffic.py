"""The messages between devices in a mapped function: recorded while its Program runs, step by step, on a small table.

The Program is the one that the devices get. Here it runs in this process, all devices in lockstep, as on the local
runtime, and what goes into each collective and what comes out of it is written down. It runs twice: once on the
numbers, and once on a table in which every number of device d is 2 to the power of d. A sum of those says by its bits
whose numbers are in it:

    5 = 0b101    the numbers of device 0 and of device 2, added up

So the origins are right for functions that copy, cut and add, as the collectives of lesson 07 do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES, all_gather, group_positions, reduce_scatter
from tinyshard.core.program import Eqn, Program
from tinyshard.runtime.lifecycle import devices
from tinyshard.runtime.worker.executor import make_ready
from tinyshard.transforms.pmap import pmap

__all__ = ["Held", "Message", "Moment", "Pair", "Recording", "exchanged", "held_by", "in_lockstep", "record"]


@dataclass(frozen=True, slots=True)
class Held:
    """A number that a device holds, or a run of numbers; `origins` are the devices whose numbers are in it."""

    words: str
    origins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What one device sends to another: its size in bytes."""

    source: int
    target: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Moment:
    """One exchange.

    Args:
        op: the step of the Program that it belongs to.
        what: what happens, in words.
        before: for each device what it brings.
        after: for each device what it gets.
        messages: with their senders and receivers.
    """

    op: str
    what: str
    before: tuple[tuple[Held, ...], ...]
    after: tuple[tuple[Held, ...], ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """All exchanges of one call, in order, and the results.

    Args:
        count: number of devices.
        moments: the exchanges.
        result: for each device what the function returns there.
        nbytes: what one device sends, as the Program's cost analysis counts it; where something is moved, the most
            that any of them sends.
    """

    count: int
    moments: tuple[Moment, ...]
    result: tuple[tuple[Held, ...], ...]
    nbytes: int

    def sent(self) -> list[float]:
        """The bytes that each device sends in all."""
        sums = [0.0] * self.count
        for moment in self.moments:
            for message in moment.messages:
                sums[message.source] += message.nbytes
        return sums


def record(function: Callable[[Tensor], Tensor], count: int) -> Recording:
    """Map `function` over the rows of a table of `count` by `count` numbers, and write down every exchange.

    Args:
        function: from a row, float32[count], to a tensor; its axis is named "i".
        count: how many devices take part; at most as many as there are.

    Returns:
        The recording.

    Communication: none; the program runs in this process.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> found = record(lambda row: ts.lax.ppermute(row, "i", [(0, 3)]), count=4)
        >>> found.moments[0].messages, found.nbytes
        ((Message(source=0, target=3, nbytes=16.0),), 16)
    """
    table = torch.arange(float(count * count)).reshape(count, count)
    bits = (2.0 ** torch.arange(count)).reshape(count, 1).expand(count, count)
    compiled = pmap(function, axis_name="i", devices=devices()[:count]).lower(table).compile()
    program = compiled.program
    numbers, whose = (in_lockstep(program, [[row[None]] for row in rows]) for rows in (table, bits))
    moments: list[Moment] = []
    for (op, params, before, after), (_, _, before_bits, after_bits) in zip(numbers[0], whose[0], strict=True):
        moments += _moments(op, params, list(zip(before, before_bits, strict=True)), (after, after_bits))
    result = held_by(zip(numbers[1], whose[1], strict=True))
    return Recording(count, tuple(moments), result, compiled.cost_analysis().nbytes)


Pair = tuple[Tensor, Tensor]  # numbers, and whose they are in bits
Exchange = tuple[str, dict[str, Any], list[Tensor], list[Tensor]]


def in_lockstep(program: Program, inputs: Sequence[Sequence[Tensor]]) -> tuple[list[Exchange], list[Tensor]]:
    """Run a program in this process, step by step on all devices.

    Args:
        program: as `compile().program` gives it; all its devices are one group of its collectives.
        inputs: for each device the program's inputs.

    Returns:
        The exchanges as (op, parameters, for each device what it brings, what it gets), one of several operands as
        several; and for each device the first
        result.

    Communication: none.
    """
    ready = make_ready(program)
    values: list[list[Any]] = [[*shards, *[None] * (ready.size - len(shards))] for shards in inputs]
    exchanges: list[Exchange] = []
    for step in ready.steps:
        if step.call is not None:
            for row in values:
                for slot, made in zip(step.results, step.call(row), strict=False):
                    if slot >= 0:
                        row[slot] = made
            continue
        assert step.request is not None
        name, params = step.request.name, step.request.params
        # one mapped axis, so all devices are one group
        assert step.request.positions(0) == tuple(range(len(values)))
        for operand, slot in zip(step.step.operands, step.results, strict=True):
            before = [row[operand] for row in values]
            after = exchanged(program, step.step, before)
            for row, shard in zip(values, after, strict=True):
                row[slot] = shard
            if COLLECTIVES[name].communicates:
                exchanges.append((name, params, before, after))
    return exchanges, [row[program.outputs[0]] for row in values]


def exchanged(program: Program, step: Eqn, before: Sequence[Any]) -> list[Any]:
    """What each device gets in a collective, group by group, or in a transfer.

    Args:
        program: the program.
        step: its step.
        before: for each device its operand; None if it does not have one, in a transfer.

    Returns:
        For each device a tensor; None where it gets nothing, in a transfer.

    Communication: none.
    """
    made: list[Any] = [None] * len(before)
    if step.op == "transfer":
        meta = program.metas[step.results[0]]
        assert meta is not None
        for source, target, cut, place in step.kwargs["moves"]:
            if made[target] is None:
                made[target] = torch.zeros(meta.shape, dtype=meta.dtype)
            made[target][place] = before[source][cut]
        return made
    does = COLLECTIVES[step.op]
    params = {name: value for name, value in step.kwargs.items() if name not in ("axes", "groups")}
    for position in range(len(before)):
        group = group_positions(program.axes, step.kwargs["axes"], position, step.kwargs.get("groups"))
        members, mine = [before[p] for p in group], group.index(position)
        if does.own is not None:
            made[position] = does.own(members[mine], mine, len(group), **params)
        elif made[position] is None:
            assert does.form is not None
            for p, got in zip(group, does.form(torch.stack(members), **params).unbind(0), strict=True):
                made[p] = got
    return made


def _moments(
    op: str, params: dict[str, Any], before: list[Pair], after: tuple[list[Tensor], list[Tensor]]
) -> list[Moment]:
    """One collective as the exchanges that it is made of; an all-reduce is two."""
    count, size = len(before), before[0][0].numel()
    nbytes = before[0][0].nbytes
    held, gets = held_by(before), held_by(zip(*after, strict=True))
    others = [(i, j) for i in range(count) for j in range(count) if i != j]

    def to_others(share: float) -> tuple[Message, ...]:
        return tuple(Message(i, j, nbytes * share) for i, j in others)

    if op == "collective_permute":
        pairs = tuple(Message(i, j, float(nbytes)) for i, j in params["pairs"] if i != j)
        return [Moment(op, "each sender has one receiver", held, gets, pairs)]
    if op == "all_gather":
        return [Moment(op, "each device sends all that it holds to all others", held, gets, to_others(1))]
    if op == "all_to_all":
        return [Moment(op, "piece j goes to device j", held, gets, to_others(1 / count))]
    if op == "reduce_scatter":
        return [Moment(op, "piece j goes to device j, which adds up", held, gets, to_others(1 / count))]
    if params["op"] == "sum" and size % count == 0:
        pieces = [
            list(reduce_scatter(torch.stack([pair[k].flatten() for pair in before]), dim=0, op="sum").unbind(0))
            for k in (0, 1)
        ]
        whole = [list(all_gather(torch.stack(piece), dim=0).unbind(0)) for piece in pieces]
        middle = held_by(zip(*pieces, strict=True))
        return [
            Moment(op, "first half: piece j goes to device j, which adds up", held, middle, to_others(1 / count)),
            Moment(
                op,
                "second half: each device sends its finished piece to all others",
                middle,
                held_by(zip(*whole, strict=True)),
                to_others(1 / count),
            ),
        ]
    return [Moment(op, "the values of all devices are combined", held, gets, to_others(2 / count))]


def held_by(shards: Iterable[Pair | None]) -> tuple[tuple[Held, ...], ...]:
    """What each device holds, in words; a whole table is described by its rows.

    Args:
        shards: for each device its numbers, and by bits whose they are; None where it has nothing.
    """
    found: list[tuple[Held, ...]] = []
    for pair in shards:
        if pair is None:
            found.append(())
            continue
        numbers, bits = pair
        run = numbers.shape[-1] if numbers.squeeze().dim() > 1 else 1
        rows = zip(numbers.reshape(-1, run).tolist(), bits.reshape(-1, run).tolist(), strict=True)
        found.append(tuple(Held(_words(row), _origins(row_bits)) for row, row_bits in rows))
    return tuple(found)


def _words(row: list[float]) -> str:
    return f"{row[0]:g}" if len(row) == 1 else f"{row[0]:g} … {row[-1]:g}"


def _origins(row_bits: list[float]) -> tuple[int, ...]:
    """The devices whose bit is set in any number of the row."""
    together = 0
    for bits in row_bits:
        together |= int(bits)
    return tuple(device for device in range(together.bit_length()) if together >> device & 1)
