"""The primitive of a manual region. Its gradient, its tangent and its vmapped form are manual regions again.

input cut over an axis         its gradient is cut in the same way
input whole on every device    its gradient is the sum over the devices
result whole on every device   each device gets an equal part of its gradient

Outside of a trace it is a graph of one node, compiled and called like any graph.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile import replay
from tinyshard.compile.executable import UnalignedVar
from tinyshard.compile.replay import gradients, replayed
from tinyshard.compile.trace_cache import TraceCacheEntry
from tinyshard.compile.tracing import Traced, trace
from tinyshard.core import axis_names, config
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.core.evaluate import GraphModule, evaluate, is_silent, silenced
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import FunctionPrimitive, Handle
from tinyshard.core.program import Builder
from tinyshard.core.thread_state import outside_trace
from tinyshard.core.trace_thread import in_trace_thread
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import ShardedVar
from tinyshard.primitives.collective import collective, lifted, named_in, pcast
from tinyshard.primitives.manual_region import Axes, ManualRegion, inline
from tinyshard.primitives.varying import Varying, compare_copies
from tinyshard.sharding import NamedSharding, P, Sharding
from tinyshard.sharding.mesh import Mesh, layout_on, names_in
from tinyshard.sharding.named import spec_of
from tinyshard.transforms import part_of_mesh
from tinyshard.transforms.vmap import vmap

Function = Callable[..., Sequence[torch.Tensor]]
T = TypeVar("T")


def apply_region(region: ManualRegion, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Apply a region to whole tensors, within any transformation.

    Args:
        region: the region.
        operands: its inputs, and then the present closed-over tensors; constants may be left out.
    """
    constants = [c.value for c in region.traced.closed[len(operands) - len(region.ins) :]]
    first, *others = (*operands, *constants)
    for name in _free_names(region):  # its rule should run at that level, mapped operands or not
        first = lifted(first, name)
    return MANUAL_REGION.bind(region, first, *others)


def _free_names(region: ManualRegion) -> list[axis_names.Name]:
    own = set(region.mesh.axis_names)
    return [axis_names.find(n) for n in sorted(named_in(region.traced.graph) - own)]


def _metas(nodes: Sequence[torch.fx.Node]) -> list[ShapedType]:
    return [shaped_type_of(node.meta["val"]) for node in nodes]


def _differentiable(metas: Sequence[ShapedType]) -> list[int]:
    return [i for i, m in enumerate(metas) if m.dtype.is_floating_point or m.dtype.is_complex]


class ManualRegionPrimitive(FunctionPrimitive[ManualRegion]):
    """A manual region on whole tensors: its operands are its inputs, and then the closed-over tensors."""

    name = "mapped"
    fixes_axes = True

    def handle(self, params: ManualRegion) -> Handle[ManualRegion]:
        return _kept(params, "handle", lambda: self._handles.own(params))

    def abstract(self, params: ManualRegion, *xs: ShapedType) -> Sequence[ShapedType]:
        return params.outputs

    def run(self, params: ManualRegion, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        return entry_of(params).call(xs, "a mapped function")

    def check_differentiable(self, params: ManualRegion) -> None:
        if params.traced.custom_derivative is not None:
            raise DtypeError(
                "a mapped function with a derivative of its own cannot be differentiated from outside",
                got=params.traced.custom_derivative,
                rule="pmap and shard_map differentiate the ops of the function, which do not tell where gradients stop",
                try_="x.detach() in place of torch.no_grad; or grad inside of the mapped function",
            )

    def gradient(
        self,
        params: ManualRegion,
        wanted: tuple[int, ...],
        xs: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        metas, outs, ins = _metas(params.traced.inputs), _metas(params.traced.results), params.all_ins
        floating, function = _differentiable(outs), replayed(params.traced)

        def pull(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            if params.is_typed:  # its own pcasts and sums tell where gradients are summed
                return gradients(function, given[: len(metas)], wanted, floating, given[len(metas) :])
            copies = [
                math.prod(params.mesh.shape[name] for name in params.unmentioned(params.outs[i])) for i in floating
            ]
            shares = [g / n if n > 1 else g for g, n in zip(given[len(metas) :], copies, strict=True)]
            found = gradients(function, given[: len(metas)], wanted, floating, shares)
            return [_summed(g, params.unmentioned(ins[i])) for i, g in zip(wanted, found, strict=True)]

        taken, layouts = [*metas, *(outs[i] for i in floating)], [*ins, *(params.outs[i] for i in floating)]
        region = _derived(params, ("gradient", wanted), pull, taken, layouts, [ins[i] for i in wanted])
        return apply_region(region, [*xs, *cotangents])

    def tangent(
        self, params: ManualRegion, moved: tuple[int, ...], xs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        metas, ins = _metas(params.traced.inputs), params.all_ins
        floating, function = _differentiable(_metas(params.traced.results)), replayed(params.traced)

        def push(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            return replay.tangents(function, given[: len(metas)], moved, floating, given[len(metas) :])

        taken, layouts = [*metas, *(metas[i] for i in moved)], [*ins, *(ins[i] for i in moved)]
        region = _derived(params, ("tangent", moved), push, taken, layouts, [params.outs[i] for i in floating])
        return apply_region(region, [*xs, *tangents])

    def batch(
        self, params: ManualRegion, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        here = axis_names.at_level(axis_names.level() + 1)
        # a mesh axis of the same name was bound inside of the vmap: within the region the name means the mesh axis
        name = here.name if here is not None and here.name not in params.mesh.axis_names else None
        in_axes = tuple(None if d is None else 0 for d in dims)
        cut = _axes_of_examples(params, axis_names.cutting(axis_names.level() + 1), size)
        size //= math.prod(params.mesh.axis_sizes[a] for a in cut)

        def with_examples(layout: Layout) -> Layout:
            return replace(layout, dims=(cut, *layout.dims))

        mapped, names = replayed(params.traced), [params.mesh.axis_names[a] for a in cut]

        def of_examples(*xs: torch.Tensor) -> Sequence[torch.Tensor]:
            """The examples vary along the axes that cut them, and so do the results."""
            return mapped(*(x if d is not None else pcast(x, names) for x, d in zip(xs, dims, strict=True)))

        marks = bool(names) and params.is_typed
        function = vmap(of_examples if marks else mapped, in_axes=in_axes, axis_name=name, axis_size=size)
        given = list(zip(_metas(params.traced.inputs), params.all_ins, in_axes, strict=True))
        metas = [m if d is None else ShapedType((size, *m.shape), m.dtype) for m, _, d in given]
        ins = [layout if d is None else with_examples(layout) for _, layout, d in given]
        outs = list(map(with_examples, params.outs))
        batched = _derived(params, ("vmap", in_axes, size, name, cut), function, metas, ins, outs)
        fronted = [x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True)]
        return apply_region(batched, fronted), [0] * len(params.outs)

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return apply_region(self.params(args), args[0])

    def has_effect(self, args: Sequence[Any]) -> bool:
        return self.params(args).has_effect

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> list[frozenset[str]]:
        """Within another region, of other axes of the mesh: a result varies along those, not along its own."""
        region = self.params(args)
        own = (names_in(region.mesh, layout) for layout in region.all_ins)
        results = evaluate(region.traced.graph, Varying(), [a | b for a, b in zip(given, own, strict=True)])
        return [names - region.names for names in results]

    def shardings(self, params: ManualRegion) -> Sequence[Sharding]:
        return [NamedSharding(params.mesh, P())]

    def goal(self, params: ManualRegion, ndim: int) -> Layout:
        every = range(len(params.mesh.axis_names))  # one dim for each axis shows which axes of the program it is
        return layout_on(params.mesh, tuple((a,) for a in every))

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        region, written = self.params(args), partitioner.goals[node][1]
        if region.is_of_part:
            return part_of_mesh.write(partitioner, region, written, args[0])
        if written is None:
            return self._elsewhere(partitioner, region, args[0])

        def dims(layout: Layout) -> Any:
            return tuple(tuple(a for number in cut for a in written.dims[number]) for cut in layout.dims)

        given = zip(args[0], map(dims, region.all_ins), strict=True)
        axes = Axes(region.mesh.shape, dict(zip(region.mesh.axis_names, written.dims, strict=True)))
        numbers = _inlined(
            partitioner.builder, region, axes, [partitioner.reshard_to(x, layout).number for x, layout in given]
        )
        return [
            ShardedVar(partitioner.copy_if_relaid(number, layout), meta.shape, meta.dtype, layout)
            for number, meta, layout in zip(numbers, region.outputs, map(dims, region.outs), strict=True)
        ]

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        return self.params(args).outs

    def _elsewhere(self, partitioner: Any, region: ManualRegion, operands: Sequence[Any]) -> list[UnalignedVar]:
        """On a mesh that the program's axes cannot express."""
        given = zip(operands, region.all_ins, strict=True)
        numbers = [partitioner.unaligned(partitioner.settled_layout(x), layout).number for x, layout in given]
        results = _inlined(partitioner.builder, region, Axes(region.mesh.shape, None), numbers)
        return [
            UnalignedVar(number, meta.shape, meta.dtype, layout)
            for number, meta, layout in zip(results, region.outputs, region.outs, strict=True)
        ]

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        region = self.params(args)

        def spelled(layout: Layout) -> str:
            return repr(spec_of(layout.dims, region.mesh))

        inputs = [f"shard of {x!r}, {spelled(layout)}" for x, layout in zip(args[0], region.all_ins, strict=True)]
        along = f", along {', '.join(map(repr, sorted(region.names)))} alone" if region.is_of_part else ""
        first = f"{result} mapped({', '.join(map(repr, args[0]))}) over {region.mesh!r}{along}:"
        return [first, *printer.nested(region.traced, inputs, f" as {', '.join(map(spelled, region.outs))}")]


def _axes_of_examples(region: ManualRegion, names: Sequence[str], size: int) -> tuple[int, ...]:
    """The axes of the mesh that cut the examples of a mapped region, by vmap's spmd_axis_name."""
    cut = tuple(region.mesh.axis_names.index(name) for name in names if name in region.mesh.axis_names)
    used = {a for at in (*region.all_ins, *region.outs) for dim in at.dims for a in dim}
    used |= {a for a in cut if region.mesh.axis_names[a] not in region.names}
    parts = math.prod(region.mesh.axis_sizes[a] for a in cut)
    if used & set(cut) or set(names) & named_in(region.traced.graph) or size % parts:
        raise MappingError(
            "vmap's spmd_axis_name does not fit the shard_map that it maps",
            got=f"spmd_axis_name {tuple(names)}, {size} examples, mesh {region.mesh.shape}",
            rule="the axis cuts the examples evenly, and neither in_specs, out_specs nor a collective use it;\n"
            "where shard_map has axis_names, it is one of them",
            try_="another axis of the mesh, or no spmd_axis_name",
        )
    return cut


MANUAL_REGION = ManualRegionPrimitive()


def _inlined(builder: Builder, region: ManualRegion, axes: Axes, inputs: Sequence[int]) -> list[int]:
    """Write a region into a program; with the flag `check_replicated` the devices then compare their results."""
    numbers = inline(builder, region, axes, inputs)
    if config.read("check_replicated"):
        compare_copies(builder, region, lambda names: axes.of(names, None, builder.axes), numbers)
    return numbers


@outside_trace()  # the values of its nodes do not belong to a trace in progress
def _alone(region: ManualRegion) -> TraceCacheEntry:
    graph = torch.fx.Graph()
    inputs, results = [], []
    for number, (node, layout) in enumerate(zip(region.traced.inputs, region.all_ins, strict=True)):
        value = node.meta["val"]
        inputs.append(graph.placeholder(f"x_{number}"))
        inputs[-1].meta["val"] = torch.empty(layout.global_shape(value.shape), dtype=value.dtype, device="meta")
    handle = MANUAL_REGION.handle(region)
    if region.outs or region.has_effect:
        call = graph.call_function(MANUAL_REGION.op, (inputs, handle.number))
        call.meta["val"] = [torch.empty(m.shape, dtype=m.dtype, device="meta") for m in region.outputs]
        for number, value in enumerate(call.meta["val"]):
            results.append(graph.call_function(operator.getitem, (call, number)))
            results[-1].meta["val"] = value
    graph.output(tuple(results))
    module = GraphModule(torch.nn.Module(), graph)
    arguments = tuple(_metas(inputs[: len(region.ins)]))
    return TraceCacheEntry(replace(region.traced, graph=module, arguments=arguments, kept=(handle,)))


def entry_of(region: ManualRegion) -> TraceCacheEntry:
    """The region by itself, as a graph of one node on whole tensors, with its executables."""
    return _kept(region, "entry", lambda: _alone(region))


@in_trace_thread()
def trace_region(mesh: Mesh, names: frozenset[str], *args: Any) -> Traced:
    """Trace a function of shards, with the names of the mesh's axes in scope.

    Args:
        mesh: the mesh.
        names: the axes along which the function is given shards.
        args: those of `trace`.
    """
    with axis_names.mapped_to_devices(mesh, names):
        return trace(*args)


def _kept(region: ManualRegion, key: Any, make: Callable[[], T]) -> T:
    """A value derived from a region, cached."""
    if key not in region.derived:
        region.derived[key] = make()
    value: T = region.derived[key]
    return value


def _derived(
    region: ManualRegion, key: Any, function: Function, metas: Any, ins: Sequence[Layout], outs: Sequence[Layout]
) -> ManualRegion:
    """A region derived from another one, traced under the present settings that change programs (`config.key`).

    It closes over nothing but constants, as conj(1j) in a gradient.
    """

    def make() -> ManualRegion:
        def names() -> list[str]:
            return [f"shard {i}" for i in range(len(metas))]

        with contextlib.nullcontext() if key[0] == "vmap" else silenced():  # a derivative computes the region again
            traced = trace_region(region.mesh, region.names, (), lambda xs: tuple(function(*xs)), metas, names)
        return replace(region, traced=traced, ins=tuple(ins), outs=tuple(outs), derived={})

    return _kept(region, (key, config.key(), is_silent()), make)


def _summed(g: torch.Tensor, copies: tuple[str, ...]) -> torch.Tensor:
    """Sum the gradients of all devices, since every device used the whole input."""
    return collective("all_reduce", g, copies, op="sum") if copies else g
