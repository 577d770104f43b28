"""Lesson 06: the view of the whole beside the view of one device, for shard_map and pmap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from course.widgets.base import Choice, Control, Explorer, Step
from course.widgets.card import MUTED, Piece, Sheet, beside, paragraph, stack
from course.widgets.grid import Entry, grid
from tinyshard import lax
from tinyshard.arrays.placement import device_get
from tinyshard.core.layout import Layout
from tinyshard.runtime.lifecycle import devices
from tinyshard.sharding import P
from tinyshard.sharding.mesh import make_mesh
from tinyshard.transforms.pmap import pmap
from tinyshard.transforms.shard_map import shard_map
from tinyshard.transforms.vmap import vmap

__all__ = ["CALLS", "Spread", "Views", "describe", "draw", "look", "two_views"]

HEADING = "The whole array, and what one device sees of it"

COUNT = 4  # devices: so few that all numbers are readable
MATRIX = torch.arange(16.0).reshape(4, 4)

Function = Callable[[Tensor], Tensor]


def _by_rows(function: Function) -> Any:
    return pmap(function, axis_name="i", devices=devices()[:COUNT])


def _stacks(function: Function) -> Any:
    return pmap(vmap(function), axis_name="i", devices=devices()[:COUNT])


def _blocks(out_specs: Any, is_checked: bool = True) -> Callable[[Function], Any]:
    def mapped(function: Function) -> Any:
        mesh = make_mesh((2, 2), ("a", "b"), devices=devices()[:COUNT])
        return shard_map(function, mesh=mesh, in_specs=P("a", "b"), out_specs=out_specs, check_vma=is_checked)

    return mapped


_MAP_BLOCKS = 'ts.shard_map({}, mesh=mesh, in_specs=P("a", "b"), out_specs={})(x)'

# code of the call, the function, how it is mapped, its argument
CALLS: tuple[tuple[str, Function, Callable[[Function], Any], Tensor], ...] = (
    (_MAP_BLOCKS.format("lambda v: 2 * v", 'P("a", "b")'), lambda v: 2 * v, _blocks(P("a", "b")), MATRIX),
    (
        _MAP_BLOCKS.format("lambda v: v.sum(1)", 'P("a"), check_vma=False'),
        lambda v: v.sum(1),
        _blocks(P("a"), is_checked=False),
        MATRIX,
    ),
    (
        _MAP_BLOCKS.format('lambda v: ts.lax.psum(v.sum(1), "b")', 'P("a")'),
        lambda v: lax.psum(v.sum(1), "b"),
        _blocks(P("a")),
        MATRIX,
    ),
    ("ts.pmap(lambda v: 2 * v)(x)", lambda v: 2 * v, _by_rows, MATRIX),
    ("ts.pmap(lambda v: v.sum())(x)", lambda v: v.sum(), _by_rows, MATRIX),
    (
        'ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(x)',
        lambda v: lax.psum(v, "i"),
        _by_rows,
        MATRIX,
    ),
    (
        'ts.pmap(lambda v: ts.lax.pshuffle(v, "i", [3, 0, 1, 2]), axis_name="i")(x)',
        lambda v: lax.pshuffle(v, "i", [3, 0, 1, 2]),
        _by_rows,
        MATRIX,
    ),
    ("ts.pmap(ts.vmap(lambda v: v.sum()))(x)", lambda v: v.sum(), _stacks, MATRIX.reshape(4, 2, 2)),
)


@dataclass(frozen=True)
class Spread:
    """A tensor as a whole, and which device holds what of it.

    Args:
        shape: of the whole.
        values: its numbers, in reading order.
        places: for each device which numbers of the whole it holds, in reading order.
        held: for each device what it holds: other numbers than the whole has there, where a promise was broken.
        shard_shape: of what a device holds.
    """

    shape: tuple[int, ...]
    values: tuple[float, ...]
    places: tuple[tuple[int, ...], ...]
    held: tuple[tuple[float, ...], ...]
    shard_shape: tuple[int, ...]


@dataclass(frozen=True)
class Views:
    """One mapped call.

    Args:
        code: the call.
        before: the argument.
        after: the result.
        inside: the shapes of argument and result inside the function.
        nbytes: what the busiest device sends at least, by the cost model.
        device: the one whose view is shown.
    """

    code: str
    before: Spread
    after: Spread
    inside: tuple[tuple[int, ...], tuple[int, ...]]
    nbytes: int
    device: int


def two_views() -> Explorer[Views]:
    """Choose a mapped call and a device; see the whole, and what this device gets and returns.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: runs the call on the first four devices; those with psum and pshuffle communicate.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> print(two_views().choose(call=4, device=2).text.splitlines()[3])
        CPU 2 has a (1, 4) block of x: 8 9 10 11; the function gets shape (4,) and returns shape ()
    """
    made: dict[int, Views] = {}

    def seen_from(call: int, device: int) -> Views:
        if call not in made:
            made[call] = look(call)
        return replace(made[call], device=device)

    controls: list[Control] = [
        Choice("call", "call", [(code, number) for number, (code, _, _, _) in enumerate(CALLS)]),
        Step("device", "look at device", most=COUNT - 1, start=1),
    ]
    return Explorer(HEADING, controls, seen_from, draw, describe)


def look(call: int) -> Views:
    """Run the call, and look at what its function saw and at what the devices hold.

    Args:
        call: number of the call in CALLS.

    Returns:
        The views, with device 0 as the one that is shown.

    Communication: that of the call.
    """
    code, function, mapping, argument = CALLS[call]
    seen: list[tuple[int, ...]] = []

    def watched(v: Tensor) -> Tensor:
        result = function(v)
        seen[:] = [tuple(v.shape), tuple(result.shape)]
        return result

    mapped = mapping(watched)
    compiled = mapped.lower(argument).compile()
    result = mapped(argument)
    before = _spread(argument, compiled.input_shardings[0][0].layout(argument.dim()))
    shards = [_flat(device_get(shard.data)) for shard in result.addressable_shards]
    after = replace(_spread(device_get(result), result.sharding.layout(result.dim())), held=tuple(shards))
    return Views(code, before, after, (seen[0], seen[1]), compiled.cost_analysis().nbytes, device=0)


def draw(views: Views) -> Sheet:
    """Above the whole, below what the one device gets and returns."""
    heading = paragraph([views.code], size=12, is_code=True)
    whole = beside([_whole("x", views.before, views.device), _whole("result", views.after, views.device)], 40)
    own = beside([_own("x", views.before, views.device), _own("the result", views.after, views.device)], 40)
    pieces = [
        heading,
        paragraph(
            [f"the whole arrays; a colour is a device, a thick border marks what CPU {views.device} has"], fill=MUTED
        ),
        whole,
        paragraph([f"what CPU {views.device} has"], fill=MUTED),
        own,
        paragraph([*_told(views), _sent(views)]),
    ]
    return Sheet(f"{views.code}, as a whole and on CPU {views.device}", stack(pieces, 8))


def describe(views: Views) -> str:
    """The call, the whole, the one device, and what is sent."""
    wholes = [
        f"{name} as a whole, shape {spread.shape}: {_numbers(spread.values)}"
        for name, spread in (("x", views.before), ("result", views.after))
    ]
    return "\n".join([views.code, *wholes, *_told(views), _sent(views)])


def _spread(values: Tensor, layout: Layout) -> Spread:
    numbers = torch.arange(values.numel()).reshape(values.shape)
    indices = [layout.index(position, values.shape) for position in range(len(layout.devices))]
    return Spread(
        tuple(values.shape),
        _flat(values),
        tuple(tuple(numbers[index].flatten().tolist()) for index in indices),
        tuple(_flat(values[index]) for index in indices),
        layout.shard_shape(values.shape),
    )


def _flat(values: Tensor) -> tuple[float, ...]:
    return tuple(values.flatten().tolist())


def _told(views: Views) -> list[str]:
    before, after, device = views.before, views.after, views.device
    lines = [
        f"CPU {device} has a {before.shard_shape} block of x: {_numbers(before.held[device])}; the function gets shape "
        f"{views.inside[0]} and returns shape {views.inside[1]}",
        f"CPU {device} has a {after.shard_shape} block of the result: {_numbers(after.held[device])}",
    ]
    if after.held[device] != tuple(after.values[place] for place in after.places[device]):
        lines.append(
            "The whole shows other numbers there: out_specs promised equal values along b, and they are not equal."
        )
    return lines


def _sent(views: Views) -> str:
    if not views.nbytes:
        return "no device sends anything"
    return f"the busiest device sends at least {views.nbytes} bytes, by the model of lesson 07"


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _whole(name: str, spread: Spread, device: int) -> Piece:
    """All numbers, in the colours of the devices that have them; a thick border around those of the chosen device."""
    entries = []
    for place, value in enumerate(spread.values):
        owners = tuple(owner for owner, places in enumerate(spread.places) if place in places)
        tip = f"{value:g}, on CPU {', '.join(map(str, owners))}"
        entries.append(Entry(f"{value:g}", owners, tip, device in owners))
    return _titled(f"{name}: shape {spread.shape}", entries, spread.shape)


def _own(name: str, spread: Spread, device: int) -> Piece:
    entries = [
        Entry(f"{value:g}", (device,), f"place {place} of the whole")
        for place, value in zip(spread.places[device], spread.held[device], strict=True)
    ]
    return _titled(f"its block of {name}: shape {spread.shard_shape}", entries, spread.shard_shape)


def _titled(title: str, entries: list[Entry], shape: tuple[int, ...]) -> Piece:
    columns = shape[-1] if shape else 1
    return stack([paragraph([title]), grid([entries[k : k + columns] for k in range(0, len(entries), columns)])], 2)
