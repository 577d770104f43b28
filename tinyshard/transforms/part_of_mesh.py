"""A region for a part of its mesh's axes, written into a program: along the others its graph is partitioned.

    mesh of data 4 and model 2, a region for data alone

    x on the mesh                    f32[8@data, 6@model]
    its block, for the partitioner   f32[2, 6@model]

The axes of the region cut no dim of a block. As the partitioner cuts dims by those axes alone that cut them already, or
that a constraint names, it leaves them alone: each of its collectives is among devices with the same block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinyshard.compile.spmd import PartOfMesh
from tinyshard.core import config
from tinyshard.core.errors import MeshError
from tinyshard.core.evaluate import evaluate
from tinyshard.core.layout import Layout
from tinyshard.core.program import Builder, Value
from tinyshard.partition.deferred import Deferred
from tinyshard.partition.reshard import Dims, ShardedVar, noted
from tinyshard.primitives.branching import noting_uneven
from tinyshard.primitives.manual_region import Axes, ManualRegion
from tinyshard.primitives.varying import compare_copies, varying


def write(partitioner: Any, region: ManualRegion, written: Layout | None, operands: Sequence[Any]) -> list[ShardedVar]:
    """Write a region into a program.

    Args:
        partitioner: the walk over the graph around it.
        region: the region, for a part of the axes of its mesh.
        written: on the program's axes, a layout with a dim for each axis of the mesh.
        operands: the values of its inputs.

    Communication: operands are brought to its layouts along its axes; then its own, and the partitioner's.
    """
    if written is None:
        raise MeshError(
            "a shard_map over a part of a mesh's axes shares its program with another mesh",
            got=f"axis_names {sorted(region.names)}, mesh {region.mesh.shape}, program axes {partitioner.builder.axes}",
            rule="the partitioner needs axes for both meshes, and (2, 3) and (3, 2) have none in common",
            try_="one mesh for both; or a jit for each",
        )
    builder: Builder = partitioner.builder
    with noting_uneven() as uneven:
        varying(region)
    named = {name: a for name, a in zip(region.mesh.axis_names, written.dims, strict=True) if name in region.names}
    around = partitioner.part or PartOfMesh(None, (), frozenset(), frozenset())
    part = PartOfMesh(
        Axes(region.mesh.shape, named),
        written.dims,
        around.taken.union(*named.values()),
        around.uneven | uneven,
    )
    walk = partitioner.on_blocks(region.traced.graph, part)
    blocks = [
        _block(builder, partitioner, x, part.on_program(at), part)
        for x, at in zip(operands, region.all_ins, strict=True)
    ]
    results = [walk.placed(walk.value(x)) for x in evaluate(region.traced.graph, walk, blocks, walk.values)]
    if config.read("check_replicated"):
        compare_copies(
            builder, region, lambda names: part.axes.of(names, None, builder.axes), [x.number for x in results]
        )
    return [_whole(builder, x, part.on_program(layout)) for x, layout in zip(results, region.outs, strict=True)]


def _block(builder: Builder, partitioner: Any, x: Any, own: Dims, part: PartOfMesh) -> ShardedVar:
    """The block of an operand along a region's axes; the other axes cut it as they cut the operand, where that is even.

    Args:
        own: for each dim the axes of the region that cut it.
    """
    x = partitioner.value(x)
    have: Dims = ((),) * len(own) if isinstance(x, Deferred) else x.dims
    shape = tuple(n // _size(builder, cut) for n, cut in zip(x.shape, own, strict=True))
    rest = [tuple(a for a in cut if a not in part.taken) for cut in have]
    rest = [cut if n % _size(builder, cut) == 0 else () for n, cut in zip(shape, rest, strict=True)]
    x = partitioner.reshard_to(x, tuple(a + b for a, b in zip(own, rest, strict=True)))
    # a number of its own, by a reshape that `compile.simplify` leaves out: that of an input stands for the whole
    block = replace(x, shape=shape, dims=tuple(rest))
    local = x.local(builder.axes)

    def emit() -> int:
        return builder.emit("aten.reshape.default", (Value(x.number), list(local.shape)), {}, [local])[0]

    return noted(builder, replace(block, number=builder.once(("block", block), emit)))


def _whole(builder: Builder, x: ShardedVar, own: Dims) -> ShardedVar:
    """The whole of a block: the axes of the region cut it first."""
    shape = tuple(n * _size(builder, cut) for n, cut in zip(x.shape, own, strict=True))
    whole = replace(x, shape=shape, dims=tuple(a + b for a, b in zip(own, x.dims, strict=True)))
    builder.cuts[x.number] = whole.dims, whole.partial
    builder.reordered.pop(x.number, None)  # as a block it may be a view of another block
    return whole


def _size(builder: Builder, cut: Sequence[int]) -> int:
    return math.prod(builder.axes[a] for a in cut)
