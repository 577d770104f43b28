"""A manual region: code that every device runs on its own shard, traced; its shapes on devices and as a whole.

    on whole tensors     f32[8, 3] x  ->  mapped(x, region)  ->  f32[8, 3]
    on each device       f32[1, 3] x  ->  the region's graph ->  f32[1, 3]

`transforms.manual_region_rules` has the primitive: how it is partitioned, differentiated and vmapped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tinyshard.compile.tracing import Traced, is_effective
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import bound_in
from tinyshard.core.types import ShapedType
from tinyshard.sharding.mesh import Mesh, layout_on


@dataclass(frozen=True, eq=False)
class ManualRegion:
    """A per-device function, traced.

    Attributes:
        traced: its graph on local shapes; the placeholders are its inputs and then the tensors that it closes over.
        mesh: the devices, and the names that the graph's collectives use.
        names: the axes of the mesh that the region is for: along the others its values are whole, and the partitioner
            decides.
        ins: the layout of each input, on the mesh's axes; closed-over tensors are whole.
        outs: the layout of each result.
        is_typed: whether the graph says, by pcast, where values begin to vary between devices: that of check_vma.
        derived: what was made of it: its handle, its entry of the trace cache, its derivatives.
    """

    traced: Traced
    mesh: Mesh
    names: frozenset[str]
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    is_typed: bool = False
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def is_of_part(self) -> bool:
        """Whether the partitioner decides along some axes of the mesh."""
        return len(self.names) < len(self.mesh.axis_names)

    @property
    def all_ins(self) -> tuple[Layout, ...]:
        """The layout of each placeholder."""
        closed = self.traced.inputs[len(self.ins) :]
        return (*self.ins, *(layout_on(self.mesh, ((),) * node.meta["val"].dim()) for node in closed))

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each whole result."""
        values = [node.meta["val"] for node in self.traced.results]
        return [ShapedType(layout.global_shape(x.shape), x.dtype) for x, layout in zip(values, self.outs, strict=True)]

    @property
    def has_effect(self) -> bool:
        """Whether an op of its graph is called for its effect, as a check of values is."""
        return is_effective(self.traced.graph)

    @property
    def asks(self) -> bool:
        """Whether the devices read a value to choose what they run."""
        return any(primitive.asks for _, primitive, _ in bound_in(self.traced.graph))

    def unmentioned(self, layout: Layout) -> tuple[str, ...]:
        """The names of the region's axes along which devices hold copies, except those of size 1."""
        names = (self.mesh.axis_names[a] for a in layout.free_axes if layout.axes[a] > 1)
        return tuple(name for name in names if name in self.names)
