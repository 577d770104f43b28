"""A manual region: code that every device runs on its own shard, traced; its shapes on devices and as a whole.

    on whole tensors     f32[8, 3] x  ->  mapped(x, region)  ->  f32[8, 3]
    on each device       f32[1, 3] x  ->  the region's graph ->  f32[1, 3]

`manual_region_rules` has the primitive: how it is partitioned, differentiated and vmapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyshard.compile.capture import has_effect
from tinyshard.compile.tracing import Traced
from tinyshard.core.types import ShapedType
from tinyshard.sharding import NamedSharding, P
from tinyshard.sharding.mesh import Mesh

NamedDims = tuple[tuple[str, ...], ...]  # for each dim the names of the axes that cut it


@dataclass(frozen=True, eq=False)
class ManualRegion:
    """A per-device function, traced.

    Attributes:
        traced: its graph on local shapes; the placeholders are its inputs and then what it closes over.
        mesh: the devices, and the names that the graph's collectives use.
        in_dims: how each input is cut; what it closes over is whole.
        out_dims: how each result is.
        made: what was made of it: its handle, its entry of the trace cache, its derivatives.
    """

    traced: Traced
    mesh: Mesh
    in_dims: tuple[NamedDims, ...]
    out_dims: tuple[NamedDims, ...]
    made: dict[Any, Any] = field(default_factory=dict)

    @property
    def all_in_dims(self) -> tuple[NamedDims, ...]:
        """How each placeholder is cut."""
        closed = tuple(((),) * node.meta["val"].dim() for node in self.traced.inputs[len(self.in_dims) :])
        return (*self.in_dims, *closed)

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each whole result."""
        return [
            ShapedType(self.whole_shape(tuple(node.meta["val"].shape), cut), node.meta["val"].dtype)
            for node, cut in zip(self.traced.results, self.out_dims, strict=True)
        ]

    @property
    def has_effect(self) -> bool:
        """Whether an op of its graph is called for what it does, as a check of values is."""
        return any(has_effect(node.target) for node in self.traced.graph.graph.nodes)

    def whole_shape(self, local: Sequence[int], cut: NamedDims) -> tuple[int, ...]:
        """The shape of the whole from that of a shard."""
        return tuple(n * self.parts(names) for n, names in zip(local, cut, strict=True))

    def parts(self, names: Sequence[str]) -> int:
        """In how many parts these axes cut together."""
        sizes = self.mesh.shape
        total = 1
        for name in names:
            total *= sizes[name]
        return total

    def unmentioned(self, cut: NamedDims) -> tuple[str, ...]:
        """The axes along which lie copies."""
        used = {name for names in cut for name in names}
        return tuple(name for name in self.mesh.axis_names if name not in used)

    def sharding(self, cut: NamedDims) -> NamedSharding:
        """The sharding of a value that is cut so."""
        return NamedSharding(self.mesh, P(*(names or None for names in cut)))

    @property
    def anywhere(self) -> NamedSharding:
        """A sharding that names its devices, and no more."""
        return NamedSharding(self.mesh, P())
