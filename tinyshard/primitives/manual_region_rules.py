"""The primitive of a manual region. Its gradient, its tangent and its vmapped form are manual regions again.

input cut over an axis         its gradient is cut so too
input whole on every device    its gradient is the sum over the devices
result whole on every device   each device gets an equal part of its gradient

Outside of a trace it is a graph of one node, compiled and called as any other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.executable import Elsewhere
from tinyshard.compile.replay import gradients, replayed, tangents
from tinyshard.compile.trace_cache import TraceCacheEntry
from tinyshard.compile.tracing import Traced, trace
from tinyshard.core import axis_names
from tinyshard.core.errors import DtypeError, message
from tinyshard.core.handles import Handle
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import FunctionPrimitive
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import ShardedVar
from tinyshard.primitives.collective import COLLECTIVE, collective, lifted
from tinyshard.primitives.inlining import Axes, inline
from tinyshard.primitives.manual_region import ManualRegion, NamedDims
from tinyshard.sharding import Sharding
from tinyshard.sharding.mesh import Mesh
from tinyshard.transforms.vmap import vmap

Function = Callable[..., Sequence[torch.Tensor]]
T = TypeVar("T")


def make_region(
    mesh: Mesh,
    function: Function,
    metas: Sequence[ShapedType],
    cuts: Sequence[NamedDims],
    out_dims: Sequence[NamedDims],
) -> ManualRegion:
    """Trace a function of shards that closes over constants at most, as the conjugate of 1j in a gradient."""
    with axis_names.mapped_to_devices(mesh.shape):
        traced = trace((), lambda xs: tuple(function(*xs)), metas, lambda: [f"shard {i}" for i in range(len(metas))])
    return ManualRegion(traced, mesh, tuple(cuts), tuple(out_dims))


def apply_region(region: ManualRegion, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Apply a region to whole tensors, within any transformation.

    Args:
        region: the region.
        operands: its inputs, and then what it closes over, as it is now; constants may be left out.
    """
    constants = [c.value for c in region.traced.closed[len(operands) - len(region.in_dims) :]]
    first, *others = (*operands, *constants)
    for name in _free_names(region):  # its rule is to run at that level, mapped operands or not
        first = lifted(first, name)
    return MANUAL_REGION.bind(region, first, *others)


def _free_names(region: ManualRegion) -> list[axis_names.Name]:
    own = set(region.mesh.axis_names)
    asked = {name for _, call in COLLECTIVE.nodes(region.traced.graph) for name in call.axes}
    return [axis_names.find(n) for n in sorted(asked - own)]


def _metas(nodes: Sequence[torch.fx.Node]) -> list[ShapedType]:
    return [ShapedType(tuple(n.meta["val"].shape), n.meta["val"].dtype) for n in nodes]


def _differentiable(metas: Sequence[ShapedType]) -> list[int]:
    return [i for i, m in enumerate(metas) if m.dtype.is_floating_point or m.dtype.is_complex]


class ManualRegionPrimitive(FunctionPrimitive[ManualRegion]):
    """A manual region on whole tensors: its inputs, and then what it closes over."""

    name = "mapped"

    def handle(self, params: ManualRegion) -> Handle[ManualRegion]:
        return _kept(params, "handle", lambda: self._handles.own(params))

    def abstract(self, params: ManualRegion, *xs: ShapedType) -> Sequence[ShapedType]:
        return params.outputs

    def run(self, params: ManualRegion, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        return entry_of(params).call(xs, "a mapped function")

    def check_differentiable(self, params: ManualRegion) -> None:
        if params.traced.own_rule is not None:
            raise DtypeError(
                message(
                    "a mapped function with a derivative of its own cannot be differentiated from outside",
                    got=params.traced.own_rule,
                    rule="pmap and shard_map differentiate the ops of the function, which do not tell where gradients "
                    "stop",
                    try_="x.detach() in place of torch.no_grad; or grad inside of the mapped function",
                )
            )

    def gradient(
        self,
        params: ManualRegion,
        wanted: tuple[int, ...],
        xs: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        return apply_region(_gradient(params, wanted), [*xs, *cotangents])

    def tangent(
        self, params: ManualRegion, moved: tuple[int, ...], xs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        return apply_region(_tangent(params, moved), [*xs, *tangents])

    def batch(
        self, params: ManualRegion, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        here = axis_names.at_level(axis_names.level() + 1)
        # a mesh axis of the same name was bound inside of the vmap: within the region the name is the mesh's
        name = here.name if here is not None and here.name not in params.mesh.axis_names else None
        batched = _vmapped(params, tuple(d is not None for d in dims), size, name)
        fronted = [x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True)]
        return apply_region(batched, fronted), [0] * len(params.out_dims)

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return apply_region(self.params(args), args[0])

    def has_effect(self, args: Sequence[Any]) -> bool:
        return self.params(args).has_effect

    def shardings(self, params: ManualRegion) -> Sequence[Sharding]:
        return [params.anywhere]

    def required(self, params: ManualRegion) -> Sequence[Layout]:
        names = params.mesh.axis_names  # a layout with one dim for each axis shows which of the program's axes that is
        return [params.sharding(tuple((name,) for name in names)).layout(len(names))]

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        region, written = self.params(args), partitioner.goals[node][0][1]
        if written is None:
            return self._elsewhere(partitioner, region, args[0])
        named = dict(zip(region.mesh.axis_names, written.dims, strict=True))

        def dims(cut: NamedDims) -> Any:
            return tuple(tuple(a for name in names for a in named[name]) for names in cut)

        wanted = [dims(cut) for cut in region.all_in_dims]
        numbers = [partitioner.at(x, at).number for x, at in zip(args[0], wanted, strict=True)]
        made = inline(partitioner.builder, region, Axes(region.mesh.shape, named), numbers)
        return [
            ShardedVar(partitioner.apart(number, dims(cut)), meta.shape, meta.dtype, dims(cut))
            for number, meta, cut in zip(made, region.outputs, region.out_dims, strict=True)
        ]

    def _elsewhere(self, partitioner: Any, region: ManualRegion, operands: Sequence[Any]) -> list[Elsewhere]:
        """On a mesh that the program's axes cannot say."""

        def layout(cut: NamedDims) -> Layout:
            return region.sharding(cut).layout(len(cut))

        given = zip(operands, region.all_in_dims, strict=True)
        numbers = [partitioner.elsewhere(partitioner.as_it_is(x), layout(cut)).number for x, cut in given]
        made = inline(partitioner.builder, region, Axes(region.mesh.shape, None), numbers)
        return [
            Elsewhere(number, meta.shape, meta.dtype, layout(cut))
            for number, meta, cut in zip(made, region.outputs, region.out_dims, strict=True)
        ]

    def text(self, printer: Any, made: str, args: Sequence[Any]) -> list[str]:
        region = self.params(args)
        inputs = [f"shard of {x!r}, {_spelled(cut)}" for x, cut in zip(args[0], region.all_in_dims, strict=True)]
        returned = f" as {', '.join(map(_spelled, region.out_dims))}"
        first = f"{made} mapped({', '.join(map(repr, args[0]))}) over {region.mesh!r}:"
        return [first, *printer.nested(region.traced, inputs, returned)]


MANUAL_REGION = ManualRegionPrimitive()


def _spelled(cut: NamedDims) -> str:
    last = max((i + 1 for i, names in enumerate(cut) if names), default=0)
    entries = [None if not names else names[0] if len(names) == 1 else names for names in cut[:last]]
    return f"P({', '.join(map(repr, entries))})"


def trace_of(region: ManualRegion) -> Traced:
    """The region alone as a traced function on whole tensors: a graph of one node."""
    graph = torch.fx.Graph()

    def meta_of(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    inputs = []
    for number, (node, cut) in enumerate(zip(region.traced.inputs, region.all_in_dims, strict=True)):
        value = node.meta["val"]
        inputs.append(graph.placeholder(f"x_{number}"))
        inputs[-1].meta["val"] = meta_of(region.whole_shape(tuple(value.shape), cut), value.dtype)
    handle = MANUAL_REGION.handle(region)
    results = []
    if region.out_dims or region.has_effect:
        made = graph.call_function(MANUAL_REGION.op, (inputs, handle.number))
        made.meta["val"] = [meta_of(m.shape, m.dtype) for m in region.outputs]
        for number, value in enumerate(made.meta["val"]):
            results.append(graph.call_function(operator.getitem, (made, number)))
            results[-1].meta["val"] = value
    graph.output(tuple(results))
    traced = region.traced
    arguments = tuple(shaped_type_of(x.meta["val"]) for x in inputs[: len(region.in_dims)])
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return Traced(module, arguments, traced.closed, traced.outputs, traced.out_tree, (handle,), traced.own_rule)


def entry_of(region: ManualRegion) -> TraceCacheEntry:
    """The region alone, with the executables of it."""
    return _kept(region, "entry", lambda: TraceCacheEntry(trace_of(region)))


def _kept(region: ManualRegion, key: Any, make: Callable[[], T]) -> T:
    """What is made of a region, made once."""
    if key not in region.made:
        region.made[key] = make()
    made: T = region.made[key]
    return made


def _gradient(region: ManualRegion, wanted: tuple[int, ...]) -> ManualRegion:
    ins, outs = _metas(region.traced.inputs), _metas(region.traced.results)
    floating = _differentiable(outs)
    function = replayed(region.traced)

    def pull(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        parts = [region.parts(region.unmentioned(region.out_dims[i])) for i in floating]
        shares = [g / n if n > 1 else g for g, n in zip(given[len(ins) :], parts, strict=True)]
        found = gradients(function, given[: len(ins)], wanted, floating, shares)
        return [_summed(region, region.all_in_dims[i], g) for i, g in zip(wanted, found, strict=True)]

    def make() -> ManualRegion:
        cuts = (*region.all_in_dims, *(region.out_dims[i] for i in floating))
        metas = (*ins, *(outs[i] for i in floating))
        return make_region(region.mesh, pull, metas, cuts, [region.all_in_dims[i] for i in wanted])

    return _kept(region, ("gradient", wanted), make)


def _summed(region: ManualRegion, cut: NamedDims, g: torch.Tensor) -> torch.Tensor:
    """Every device used the whole input: the gradients of all add up."""
    copies = [name for name in region.unmentioned(cut) if region.mesh.shape[name] > 1]
    return collective("all_reduce", g, copies, op="sum") if copies else g


def _tangent(region: ManualRegion, moved: tuple[int, ...]) -> ManualRegion:
    ins = _metas(region.traced.inputs)
    floating = _differentiable(_metas(region.traced.results))
    function = replayed(region.traced)

    def push(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        return tangents(function, given[: len(ins)], moved, floating, given[len(ins) :])

    def make() -> ManualRegion:
        cuts = (*region.all_in_dims, *(region.all_in_dims[i] for i in moved))
        metas = (*ins, *(ins[i] for i in moved))
        return make_region(region.mesh, push, metas, cuts, [region.out_dims[i] for i in floating])

    return _kept(region, ("tangent", moved), make)


def _vmapped(region: ManualRegion, mapped: tuple[bool, ...], size: int, name: str | None) -> ManualRegion:
    ins = _metas(region.traced.inputs)
    in_axes = tuple(0 if m else None for m in mapped)
    function = vmap(replayed(region.traced), in_axes=in_axes, axis_name=name, axis_size=size)

    def make() -> ManualRegion:
        metas = [
            ShapedType((size, *m.shape), m.dtype) if is_mapped else m for m, is_mapped in zip(ins, mapped, strict=True)
        ]
        cuts = [((), *cut) if is_mapped else cut for cut, is_mapped in zip(region.all_in_dims, mapped, strict=True)]
        return make_region(region.mesh, function, metas, cuts, [((), *cut) for cut in region.out_dims])

    return _kept(region, ("vmap", mapped, size, name), make)
