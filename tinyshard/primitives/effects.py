"""Effects as ops: a Python function that the controller calls with values, while the program runs.

    eager            called at once
    jit              a step that sends each device's block; called with whole values
    pmap, shard_map  called for each device, with its own values, by device
    vmap             called for each example
    grad, jvp        called in the forward pass; a recomputation of the function is silent
    scan, cond, ...  called in each round, in the branch that runs

`inspected` calls its function when the program is planned, with the sharding of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinyshard.arrays.placement import device_get
from tinyshard.core.effects import EFFECT, Blocks, Site
from tinyshard.core.errors import MappingError
from tinyshard.core.evaluate import is_silent
from tinyshard.core.layout import Layout, coarsest
from tinyshard.core.primitive import Primitive
from tinyshard.core.program import Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.partitioner import place
from tinyshard.sharding import express

Values = Sequence[torch.Tensor]


@dataclass(frozen=True, eq=False)
class Call:
    """The function to call.

    Attributes:
        function: takes the values.
        levels: for each vmap around it, the outermost first, which values have its examples as dim 0.
    """

    function: Callable[[Values], None]
    levels: tuple[tuple[bool, ...], ...] = ()

    def __call__(self, values: Values) -> None:
        if not self.levels:
            self.function(values)
            return
        is_mapped, *within = self.levels
        inner = replace(self, levels=tuple(within))
        count = next(x.shape[0] for x, mapped in zip(values, is_mapped, strict=True) if mapped)
        for i in range(count):
            inner([x[i] if mapped else x for x, mapped in zip(values, is_mapped, strict=True)])


class _Token(Primitive[Call]):
    """An op that is called for its effect: its result is a dummy number, since torch.func requires a result."""

    several = True

    def abstract(self, params: Call, *xs: ShapedType) -> Sequence[ShapedType]:
        return [ShapedType((), torch.int32)]

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        return [None]

    def batch(
        self, params: Call, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        fronted = [x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True)]
        mapped = tuple(d is not None for d in dims)
        return self.bind(replace(params, levels=(mapped, *params.levels)), *fronted), [None]

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return (_token(),) if is_silent() else self.bind(self.params(args), *args[0])

    def has_effect(self, args: Sequence[Any]) -> bool:
        return not is_silent()

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        return [None]

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> frozenset[str]:
        return frozenset()


def _token() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int32)


class Callback(_Token):
    """Calls a function with the values."""

    name = "callback"

    def run(self, params: Call, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        params(device_get(list(xs)))
        return [_token()]

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if is_silent():
            return [None]
        builder = partitioner.builder
        values = [partitioner.placed(partitioner.value(x)) for x in args[0]]
        values = [place(builder, x, x.dims) for x in values]
        layouts = [coarsest(Layout(builder.devices, builder.axes, x.dims)) for x in values]
        call = self.params(args)

        part = partitioner.part
        apart = () if part is None else tuple(sorted(part.taken))
        groups = Layout(builder.devices, builder.axes, (apart,)).owners().values()

        def perform(blocks: Blocks) -> None:
            for group in groups:  # one, but in a shard_map over a part of the axes
                parts = zip(*(blocks[device] for device in group), strict=True)
                each = zip(layouts, values, parts, strict=True)
                call([_whole(layout, x.shape, dict(zip(group, held, strict=True))) for layout, x, held in each])

        _emit(builder, Site(perform, together=True), [Value(x.number) for x in values])
        return [None]

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        call = self.params(args)

        def perform(blocks: Blocks) -> None:
            for values in blocks.values():
                call(values)

        if not is_silent():
            _emit(inliner.builder, Site(perform, together=False), args[0])
        return [None]


def _emit(builder: Any, site: Site, operands: Sequence[Value]) -> None:
    builder.effects.append(site)
    builder.emit(EFFECT, (list(operands), site.number))


def _whole(layout: Layout, shape: Sequence[int], blocks: dict[int, torch.Tensor]) -> torch.Tensor:
    """A value, assembled from its blocks: those of all devices, or of as many as hold a whole."""
    first = next(iter(blocks.values()))
    if math.prod(layout.parts) == 1:
        return first
    out = torch.empty(tuple(shape), dtype=first.dtype)
    places = {layout.block(p): p for p, device in enumerate(layout.devices) if device in blocks}
    for position in places.values():
        out[layout.index(position, shape)] = blocks[layout.devices[position]]
    return out


class Inspected(_Token):
    """Calls a function with the sharding of a value, when the program is planned."""

    name = "inspected"

    def run(self, params: Call, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        params.function(xs)
        return [_token()]

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        x, assignment = partitioner.placed(partitioner.value(args[0][0])), partitioner.assignment
        layout = Layout(partitioner.builder.devices, partitioner.builder.axes, x.dims, assignment.platform)
        self.params(args).function([express(coarsest(layout), assignment.mesh)])  # type: ignore[list-item]
        return [None]

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        raise MappingError(
            "a value inside of pmap or shard_map has no sharding",
            got=f"inspect_array_sharding in {inliner.builder.where}",
            rule="there it is one device's block; in_specs and out_specs say how the whole is cut",
            try_="ts.debug.inspect_array_sharding of the arguments, or of the results",
        )


CALLBACK = Callback()
INSPECTED = Inspected()
