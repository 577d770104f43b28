"""pmap and shard_map: a function of one shard, run by every device on its own.

    pmap        one row of the arguments a device; the function sees the row without the mapped dim
    shard_map   one block a device, cut as in_specs say over a mesh; the function sees the block

Both trace the function on shards (a `ManualRegion`), once for each signature, and apply it as one op; `jit`'s
machinery does the rest, so that a call is one message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.array import innermost
from tinyshard.arrays.placement import as_tensor, device_put
from tinyshard.compile.capture import capture_outer, note_modes
from tinyshard.compile.executable import DeviceAssignment, assembled
from tinyshard.compile.signature import Bound, static_both_ways
from tinyshard.compile.trace_cache import MOST_ALIKE, MOST_TRACES, TraceCacheEntry
from tinyshard.compile.tracing import trace
from tinyshard.core import axis_names
from tinyshard.core.current_trace import is_tracing
from tinyshard.core.errors import MappingError
from tinyshard.core.layout import Layout
from tinyshard.core.types import ShapedType
from tinyshard.primitives.manual_region import ManualRegion
from tinyshard.runtime.cache import Recent
from tinyshard.sharding.mesh import Mesh, layout_on
from tinyshard.sharding.named import NamedSharding, spec_of
from tinyshard.transforms.jitted import Jitted
from tinyshard.transforms.manual_region_rules import MANUAL_REGION, apply_region, entry_of


@dataclass(frozen=True)
class Split:
    """How a call's operands go to the devices.

    Attributes:
        mesh: the devices.
        ins: the layout of each operand, on the axes of the mesh.
        dims: the mapped dim that the function does not see, for each operand.
    """

    mesh: Mesh
    ins: tuple[Layout, ...]
    dims: tuple[int | None, ...]


class OverDevices(Jitted):
    """A function that every device runs on its own shard. Made by `pmap` and `shard_map`."""

    what = ""

    def __init__(self, function: Callable[..., Any], static_numbers: Sequence[int]) -> None:
        numbers, by_name = static_both_ways(function, tuple(static_numbers), ())
        super().__init__(function, None, None, numbers, by_name)
        self._entries = Recent(MOST_TRACES)  # traces of regions: the function's own are of whole tensors
        self._regions: Recent[Any, list[ManualRegion]] = Recent(MOST_TRACES)

    def __repr__(self) -> str:
        return f"<{self.what} of {self._name}>"

    # ---- what pmap and shard_map tell -------------------------------------------------------------------------

    @abstractmethod
    def _split(self, bound: Bound) -> Split:
        """How the operands of a call go to the devices. Raises MappingError."""

    @abstractmethod
    def _outs(self, mesh: Mesh, out: Any) -> list[tuple[Layout, int | None]]:
        """For each leaf of the function's result its layout, and where the mapped dim is to be put in."""

    def _check(self, region: ManualRegion) -> None:
        """Refuse a region whose results are not what the user says of them."""

    # ---- tracing ----------------------------------------------------------------------------------------------

    def _traced(self, bound: Bound, roots: Sequence[Any]) -> TraceCacheEntry:
        """The region alone, as a graph of one node."""
        return entry_of(self._region(bound, self._split(bound), bound.operands)[0])

    def _inlined(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        bound = self._bind(args, kwargs)
        return self._bound(bound, bound.operands)

    def _applied(self, bound: Bound, entry: TraceCacheEntry, everything: Sequence[torch.Tensor]) -> Any:
        return self._bound(bound, everything[: len(bound.operands)])

    def _bound(self, bound: Bound, operands: Sequence[Any]) -> Any:
        """Bind the region: within a trace it is recorded as one op, within a transformation it has its rules."""
        if axis_names.device_names():
            raise MappingError(
                f"{self.what} inside a function that is mapped over devices already",
                got=f"{self.what} of {self._name} where {', '.join(map(repr, axis_names.device_names()))} is mapped",
                rule="a device cannot be split again",
                try_="shard_map over a mesh of two axes; or vmap for the inner one",
            )
        operands, split = [capture_outer(x) for x in operands], self._split(bound)
        if not operands:  # transformations find an op by what it takes
            operands, split = [torch.zeros(())], Split(split.mesh, (layout_on(split.mesh, ()),), (None,))
        region, closed = self._region(bound, split, operands)
        inputs = [*operands, *closed]
        if region.outs:
            made: Sequence[torch.Tensor] = apply_region(region, inputs)
        elif region.has_effect:  # nothing to transform
            made = MANUAL_REGION.record(region, inputs) if is_tracing() else MANUAL_REGION.run(region, *inputs)
        else:
            made = ()
        return assembled(region.traced, made)

    def _region(
        self, bound: Bound, split: Split, operands: Sequence[torch.Tensor]
    ) -> tuple[ManualRegion, list[torch.Tensor]]:
        """The region that fits, and what it closes over as it is now."""
        roots = (self._function, *bound.statics)
        scope = tuple((n.name, n.size) for n in axis_names.in_scope())
        key = (bound.signature, split.mesh, scope, len(operands))
        known = self._regions.get(key)
        known = self._regions.put(key, []) if known is None else known
        for region in list(known):
            entry = entry_of(region)
            closed = None if entry.hides_tensors else entry.look_up(roots)
            if closed is not None:
                note_modes(entry.traced.modes)
                return region, [capture_outer(x) for x in closed]
        outs: list[Layout] = []

        def call(shards: Sequence[torch.Tensor]) -> Any:
            rows = [x if d is None else x.squeeze(d) for x, d in zip(shards, split.dims, strict=True)]
            out = bound.call(rows)
            leaves, form = tree_flatten(out)
            leaves = [x if x is None or isinstance(x, torch.Tensor) else as_tensor(x) for x in leaves]
            found = self._outs(split.mesh, tree_unflatten(leaves, form))
            outs[:] = [at for x, (at, _) in zip(leaves, found, strict=True) if x is not None]
            put_in = [
                x if x is None or dim is None else x.unsqueeze(dim) for x, (_, dim) in zip(leaves, found, strict=True)
            ]
            return tree_unflatten(put_in, form)

        shards = [ShapedType(at.shard_shape(x.shape), x.dtype) for x, at in zip(operands, split.ins, strict=True)]
        with axis_names.mapped_to_devices(split.mesh.shape):
            traced = trace(roots, call, shards, bound.names)
        region = ManualRegion(traced, split.mesh, split.ins, tuple(outs))
        self._check(region)
        known.append(region)
        del known[:-MOST_ALIKE]
        return region, [capture_outer(c.value) for c in traced.closed]

    # ---- where it runs ----------------------------------------------------------------------------------------

    def _assignment(
        self, entry: TraceCacheEntry, operands: Sequence[Any], names: Callable[[], list[str]]
    ) -> DeviceAssignment:
        found, mesh = super()._assignment(entry, operands, names), mesh_of(entry)
        # a function that returns no tensor leaves no region
        return found if mesh is None else DeviceAssignment(found.devices, found.platform, mesh, True)


def mesh_of(entry: TraceCacheEntry) -> Mesh | None:
    """The mesh of the region that was traced; None where the function returns no tensor."""
    return next((region.mesh for _, region in MANUAL_REGION.nodes(entry.traced.graph)), None)


def moved_to(split: Split, operands: Sequence[Any]) -> list[Any]:
    """Operands that are committed to other devices, put on those of the mesh."""

    def moved(x: Any, at: Layout) -> Any:
        there = innermost(x)  # of what a transformation wraps
        layout = getattr(there, "_layout", None)
        is_elsewhere = layout is not None and there.committed and layout.devices != at.devices
        return device_put(x, NamedSharding(split.mesh, spec_of(at.dims, split.mesh))) if is_elsewhere else x

    return [moved(x, at) for x, at in zip(operands, split.ins, strict=True)]
