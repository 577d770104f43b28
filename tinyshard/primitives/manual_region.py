"""A region: code that every device runs on its own shard, as one op on whole tensors.

    on whole tensors     f32[8, 3] x  ->  mapped(x, region)  ->  f32[8, 3]
    on each device       f32[1, 3] x  ->  the region's graph ->  f32[1, 3]

The op is recorded by jit like any other, and differentiated and vmapped by the rules of `manual_region_rules`;
the partitioner brings its operands to the layout that the region wants, and writes its graph into the program.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from tinyshard.compile.tracing import Traced
from tinyshard.core.current_trace import is_tracing
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
        number: stands for the region in the op, which takes no Python objects.
    """

    traced: Traced
    mesh: Mesh
    in_dims: tuple[NamedDims, ...]
    out_dims: tuple[NamedDims, ...]
    number: int = field(default_factory=itertools.count(1).__next__)
    _jit: ClassVar[Callable[[Any], Any]]  # `transforms.jit`, which is built on regions, puts it here

    def __post_init__(self) -> None:
        _regions[self.number] = self

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """The placeholders of the graph."""
        return [n for n in self.traced.graph.graph.nodes if n.op == "placeholder"]

    @property
    def all_in_dims(self) -> tuple[NamedDims, ...]:
        """How each placeholder is cut."""
        closed = tuple(((),) * node.meta["val"].dim() for node in self.inputs[len(self.in_dims) :])
        return (*self.in_dims, *closed)

    @property
    def outputs(self) -> list[ShapedType]:
        """Shape and dtype of each whole result."""
        return [
            ShapedType(self.whole_shape(tuple(node.meta["val"].shape), cut), node.meta["val"].dtype)
            for node, cut in zip(self.traced.results, self.out_dims, strict=True)
        ]

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

    @cached_property
    def jitted(self) -> Any:
        """The op alone as a program, for calls that no trace records."""
        number = self.number
        return ManualRegion._jit(lambda *xs: MAPPED(list(xs), number))


_regions: weakref.WeakValueDictionary[int, ManualRegion] = weakref.WeakValueDictionary()

_library = torch.library.Library("tinyshard", "FRAGMENT")
_library.define("mapped(Tensor[] xs, int region) -> Tensor[]")


def region_of(number: int) -> ManualRegion:
    """The region that an op's number stands for."""
    return _regions[number]


@torch.library.impl(_library, "mapped", "CompositeExplicitAutograd")
def _run(xs: Sequence[torch.Tensor], region: int) -> Any:
    if is_tracing():  # on tensors that the traced function makes: what matters is the shape
        return [torch.zeros(m.shape, dtype=m.dtype) for m in _regions[region].outputs]
    return list(_regions[region].jitted(*xs))


@torch.library.impl(_library, "mapped", "Meta")
def _on_meta(xs: Sequence[torch.Tensor], region: int) -> Any:
    return [torch.empty(m.shape, dtype=m.dtype, device="meta") for m in _regions[region].outputs]


MAPPED = torch.ops.tinyshard.mapped.default


def regions_in(traced: Traced) -> list[ManualRegion]:
    """The regions of a graph, in order."""
    return [_regions[node.args[1]] for node in traced.graph.graph.nodes if node.target is MAPPED]
