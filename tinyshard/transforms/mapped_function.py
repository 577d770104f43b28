"""The base of pmap and shard_map: a function of one shard that every device runs on its own shard.

    pmap        one row of the arguments per device; the function sees the row without the mapped dim
    shard_map   one block per device, cut over a mesh by in_specs; the function sees the block

Both trace the function on shards (a `ManualRegion`), once for each signature, and apply it as one op; `jit`'s
machinery does the rest, so that a call is one message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.placement import as_tensor
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile.capture import capture_outer, note_modes
from tinyshard.compile.executable import DeviceAssignment, assembled
from tinyshard.compile.outlived import refuse_holders
from tinyshard.compile.signature import Bound, static_both_ways
from tinyshard.compile.trace_cache import MOST_TRACES, TraceCacheEntry, Traces
from tinyshard.core import axis_names
from tinyshard.core.cache import Recent
from tinyshard.core.errors import MappingError
from tinyshard.core.layout import Layout
from tinyshard.core.thread_state import is_tracing, varying_types
from tinyshard.primitives.collective import pcast
from tinyshard.primitives.manual_region import ManualRegion
from tinyshard.primitives.varying import varying
from tinyshard.sharding.mesh import Mesh, layout_on, names_in
from tinyshard.transforms.jitted import Jitted
from tinyshard.transforms.manual_region_rules import MANUAL_REGION, apply_region, entry_of, trace_region


@dataclass(frozen=True)
class Split:
    """How a call's operands are distributed over the devices.

    Attributes:
        mesh: the devices.
        names: the axes of the mesh along which the operands are split; the partitioner decides along the others.
        ins: the layout of each operand, on the axes of the mesh.
        dims: for each operand the mapped dim, which the function does not see.
    """

    mesh: Mesh
    names: frozenset[str]
    ins: tuple[Layout, ...]
    dims: tuple[int | None, ...]


class OverDevices(Jitted):
    """A function that every device runs on its own shard. Made by `pmap` and `shard_map`."""

    def __init__(self, function: Callable[..., Any], static_numbers: Sequence[int]) -> None:
        numbers, by_name = static_both_ways(function, tuple(static_numbers), (), self.what)
        super().__init__(function, None, None, numbers, by_name)

    def _known_traces(self) -> Traces:
        return Recent(MOST_TRACES)  # of regions: the function's own are of whole tensors

    def __repr__(self) -> str:
        return f"<{self.what} of {self._name}>"

    @property
    def _splits_again(self) -> bool:
        """Whether it may be called where devices are mapped already: along axes that are left to it."""
        return False

    # ---- defined by pmap and shard_map ------------------------------------------------------------------------

    @abstractmethod
    def _split(self, bound: Bound) -> Split:
        """How the operands of a call are distributed over the devices. Raises MappingError."""

    @abstractmethod
    def _outs(self, split: Split, out: Any) -> list[tuple[Layout, int | None]]:
        """For each leaf of the function's result its layout, and the position at which the mapped dim is inserted."""

    def _check(self, region: ManualRegion) -> None:
        """Refuse a region whose results contradict the user's out_axes or out_specs."""

    def _types(self, split: Split) -> VaryingTypes | None:
        """Along which axes the operands vary, if the values of the function have types that say so."""
        return None

    # ---- tracing ----------------------------------------------------------------------------------------------

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        if axis_names.device_names() and not self._splits_again:
            raise MappingError(
                f"{self.what} inside a function that is mapped over devices already",
                got=f"{self.what} of {self._name} where {', '.join(map(repr, axis_names.device_names()))} is mapped",
                rule="a device cannot be split again",
                try_="shard_map over a mesh of two axes; or vmap for the inner one;\n"
                "or axis_names for the outer shard_map, which leave axes of the mesh to the inner one",
            )
        bound = super()._bind(args, kwargs)
        split = self._split(bound)
        around = (split.mesh, split.names, split.ins, *((n.name, n.size) for n in axis_names.in_scope()))
        return replace(bound, signature=replace(bound.signature, around=around), split=split)

    def _inlined(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        bound = self._bind(args, kwargs)
        bound = bound if bound.operands else _with_an_operand(bound)
        return self._applied(bound, *self._trace_and_inputs(bound, bound.operands))

    def _applied(self, bound: Bound, entry: TraceCacheEntry, everything: Sequence[torch.Tensor]) -> Any:
        """Bind the region: a trace records it as one op, a transformation applies its rules."""
        if not bound.operands:  # transformations process an op by its operands
            bound = _with_an_operand(bound)
            entry, everything = self._trace_and_inputs(bound, bound.operands)
        note_modes(entry.traced.modes)
        region, inputs = region_of(entry), _alike([capture_outer(x) for x in everything])
        if region is None:
            outputs: Sequence[torch.Tensor] = ()
        elif region.outs:
            outputs = apply_region(region, inputs)
        else:  # it has an effect, and nothing to transform
            outputs = MANUAL_REGION.record(region, inputs) if is_tracing() else MANUAL_REGION.run(region, *inputs)
        return assembled(entry.traced, outputs)

    def _traced(self, bound: Bound, roots: Sequence[Any]) -> TraceCacheEntry:
        """The region by itself, as a graph of one node."""
        split: Split = bound.split
        outs: list[Layout] = []

        def call(shards: Sequence[torch.Tensor]) -> Any:
            rows = [x if d is None else x.squeeze(d) for x, d in zip(shards, split.dims, strict=True)]
            out = bound.call(rows)
            refuse_holders(out, self._name)
            leaves, form = tree_flatten(out)
            leaves = [x if x is None or isinstance(x, torch.Tensor) else as_tensor(x) for x in leaves]
            found = self._outs(split, tree_unflatten(leaves, form))
            outs[:] = [layout for x, (layout, _) in zip(leaves, found, strict=True) if x is not None]
            if types is not None:
                named = [names_in(split.mesh, layout) for layout, _ in found]
                leaves = [x if x is None else types.cast(x, names) for x, names in zip(leaves, named, strict=True)]
            put_in = [
                x if x is None or dim is None else x.unsqueeze(dim) for x, (_, dim) in zip(leaves, found, strict=True)
            ]
            return tree_unflatten(put_in, form)

        metas = bound.signature.metas
        shards = [replace(m, shape=cut.shard_shape(m.shape)) for m, cut in zip(metas, split.ins, strict=True)]
        types = self._types(split)
        names = split.names
        traced = trace_region(split.mesh, names, roots, call, shards, bound.names, bound.signature.numbers, types)
        region = ManualRegion(traced, split.mesh, names, split.ins, tuple(outs), types is not None)
        if region.asks:
            varying(region)  # which refuses devices that take different branches before they communicate
        self._check(region)
        return entry_of(region)

    # ---- where it runs ----------------------------------------------------------------------------------------

    def _typed(self, bound: Bound, operands: list[Any]) -> tuple[Bound, list[Any]]:
        """As they are: the function sees shards, and its signature says in `around` how the operands are split."""
        return bound, operands

    def _assignment(
        self, entry: TraceCacheEntry, operands: Sequence[Any], names: Callable[[], list[str]]
    ) -> DeviceAssignment:
        found, region = super()._assignment(entry, operands, names), region_of(entry)
        return found if region is None else DeviceAssignment(found.devices, found.platform, region.mesh, True)


def region_of(entry: TraceCacheEntry) -> ManualRegion | None:
    """The traced region; None where the function neither returns a tensor nor has an effect."""
    return next((region for _, region in MANUAL_REGION.nodes(entry.traced.graph)), None)


def _alike(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs of a call inside a shard_map, all varying along its axes as any does: the function may join them."""
    types = varying_types()
    if types is None:
        return inputs
    every = frozenset[str]().union(*map(types.names, inputs))
    return [types.cast(x, every) if x.is_floating_point() or x.is_complex() else x for x in inputs]


def types_of(split: Split) -> VaryingTypes:
    """Along which axes the operands of a call vary."""
    several = frozenset(name for name, size in split.mesh.shape.items() if size > 1) & split.names
    return VaryingTypes([names_in(split.mesh, layout) & several for layout in split.ins], several, pcast)


def _with_an_operand(bound: Bound) -> Bound:
    """A call without operands, given one that the function does not get."""
    x, split = torch.zeros(()), bound.split
    signature = replace(bound.signature, metas=(shaped_type_of(x),), numbers=(False,))
    return replace(
        bound, operands=[x], signature=signature, split=replace(split, ins=(layout_on(split.mesh, ()),), dims=(None,))
    )
