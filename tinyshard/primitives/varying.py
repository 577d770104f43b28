"""Checks that the results of a region fit out_specs: equal along the axes that a spec leaves out.

    in_specs P("x"), out_specs P()      the graph                       along "x" the result
    v.sum()                             cut along "x", then local ops   differs: an error
    psum(v.sum(), "x")                  ... then all_reduce over "x"    is the same

The graph shows along which axes a value can differ; with the flag `check_replicated` the devices compare their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tinyshard.core.errors import ShardingError, message
from tinyshard.core.evaluate import Interpreter, evaluate
from tinyshard.core.leaves import named_leaves
from tinyshard.core.primitive import primitive_of
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import collective
from tinyshard.primitives.collective import Groups
from tinyshard.primitives.manual_region import ManualRegion
from tinyshard.sharding.mesh import names_in
from tinyshard.sharding.named import spec_of

Names = frozenset[str]


def varying(region: ManualRegion) -> list[Names]:
    """The axes along which each result may differ from device to device, without axes of size 1.

    Raises:
        ShardingError: control flow depends on a value that may differ between devices, and they communicate inside.
    """
    several = {name for name, size in region.mesh.shape.items() if size > 1}
    inputs = (names_in(region.mesh, layout) & several for layout in region.all_ins)
    return [axes & several for axes in evaluate(region.traced.graph, Varying(), inputs)]


class Varying(Interpreter):
    """The walk over a region's graph; the value of a node is the axes along which it differs."""

    def literal(self, values: torch.Tensor) -> Names:
        return frozenset()

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, frozenset)]
        primitive = primitive_of(node.target)
        return frozenset().union(*given) if primitive is None else primitive.varies(given, args)

    def item(self, node: torch.fx.Node, several: Any, position: int) -> Names:
        return several[position] if isinstance(several, list) else several


def check_specs(region: ManualRegion, name: str) -> None:
    """Compare the axes that out_specs leave out with those of the graph.

    Raises:
        ShardingError: a result may differ along an axis that its spec leaves out.
    """
    ways = [way for way, i in named_leaves(region.traced.tree_of_results) if i is not None]
    for way, axes, layout in zip(ways, varying(region), region.outs, strict=True):
        wrong = sorted(axes & set(region.unmentioned(layout)))
        if wrong:
            axis = ", ".join(map(repr, wrong))
            spec = spec_of(layout.dims, region.mesh)
            raise ShardingError(
                f"out_specs leave mesh axis {axis} out, along which the result may differ between devices",
                got=f"{name}, result{way}, {spec!r}: it depends on an argument that is cut\n"
                f"along {axis}, or on its axis_index, and no psum, pmean, pmax or pmin over it follows",
                rule="along an axis that its spec leaves out, the value of one device stands for all",
                try_=f"a reduction over {axis} in the function, or {axis} in out_specs;\n"
                "all_gather(..., to='invarying'), whose result is typed as the same on all devices;\n"
                "check_vma=False if the devices do compute the same values",
            )


Along = Callable[[Sequence[str]], tuple[tuple[int, ...], Groups | None]]


def compare_copies(builder: Builder, region: ManualRegion, along: Along, numbers: Sequence[int]) -> None:
    """For the flag `check_replicated`: let the devices compare their blocks bit by bit, and fail where they differ.

    On a GPU a failed comparison is a CUDA assertion, after which the worker must be restarted.

    Args:
        builder: the program, to which the comparison is added.
        region: the region.
        along: the program's axes for names of the region's mesh, none for axes of size 1, and the groups along them.
        numbers: the numbers of its results, on their shards.

    Communication: two all_reduces of each result whose spec leaves an axis out.
    """
    for place, (number, layout) in enumerate(zip(numbers, region.outs, strict=True)):
        left_out = region.unmentioned(layout)
        over, groups = along(left_out)
        meta = builder.metas[number]
        if not over or meta is None or not meta.nbytes:
            continue
        flat = ShapedType((meta.nbytes // meta.dtype.itemsize,), meta.dtype)
        bits = ShapedType((meta.nbytes,), torch.uint8)
        row = builder.emit("aten.reshape.default", (Value(number), [-1]), {}, [flat])[0]
        row = builder.emit("aten.view.dtype", (Value(row), torch.uint8), {}, [bits])[0]
        grouped = {} if groups is None else {"groups": groups}
        most, least = (collective(builder, "all_reduce", row, over, op=op, **grouped) for op in ("max", "min"))
        same = builder.emit("aten.eq.Tensor", (Value(most), Value(least)), {}, [ShapedType(bits.shape, torch.bool)])[0]
        same = builder.emit("aten.all.default", (Value(same),), {}, [ShapedType((), torch.bool)])[0]
        text = message(
            "the blocks of a result differ where out_specs or out_axes say that they are the same",
            got=f"result {place} of a mapped function: its blocks differ along {', '.join(map(repr, left_out))}",
            rule="along an axis that its spec leaves out, the value of one device stands for all",
            try_="a psum or pmean over the axis, or the axis in out_specs",
        )
        builder.emit("aten._assert_async.msg", (Value(same), text), {}, [])
