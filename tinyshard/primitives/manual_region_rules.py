"""What transformations make of a region: its gradient, its tangent, its vmapped form. Each is a region again.

input cut over an axis         its gradient is cut so too
input whole on every device    its gradient is the sum over the devices
result whole on every device   each device gets an equal part of its gradient
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.arrays.placement import put_plain
from tinyshard.compile.intercept import STOP
from tinyshard.compile.tracing import Traced, trace
from tinyshard.core import axis_names
from tinyshard.core.current_trace import is_tracing, keep
from tinyshard.core.errors import DtypeError, message
from tinyshard.core.types import ShapedType
from tinyshard.primitives.collective import NAMED, call_of, collective, lifted, perform
from tinyshard.primitives.constraint import CONSTRAIN, Target, constraint, placed_at
from tinyshard.primitives.manual_region import MAPPED, ManualRegion, NamedDims, region_of
from tinyshard.sharding.mesh import Mesh
from tinyshard.transforms.vmap import vmap

Function = Callable[..., Sequence[torch.Tensor]]


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
    made: Any = _Mapped.apply(region.number, region, first, *others)
    return tuple(made)


def _free_names(region: ManualRegion) -> list[axis_names.Name]:
    own = set(region.mesh.axis_names)
    asked = {n for node in _collectives(region) for n in call_of(node.args[1]).axes}  # type: ignore[arg-type]
    return [axis_names.find(n) for n in sorted(asked - own)]


def _collectives(region: ManualRegion) -> list[torch.fx.Node]:
    return [node for node in region.traced.graph.graph.nodes if node.target is NAMED]


# what torch calls where no gradient is asked for, and has no derivative of -> the same op with one
_WITH_DERIVATIVE = {torch.ops.aten._embedding_bag_forward_only.default: torch.ops.aten._embedding_bag.default}


class _Replay(torch.fx.Interpreter):
    """Runs a graph again, this package's ops as what transformations understand."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is NAMED:
            return perform(args[0], call_of(args[1]))
        if target is MAPPED:
            return apply_region(region_of(args[1]), args[0])
        if target is CONSTRAIN:
            return placed_at(args[0], Target(constraint(args[1]), True, put_plain))
        if target is STOP:
            return args[0].detach()
        if target is torch.ops.aten.detach.default:  # torch's own, of values that it saves for a gradient
            return args[0]
        if target is torch.ops.aten.copy.default:  # torch has no derivative of it
            return args[1].to(args[0].dtype).expand_as(args[0]).clone()
        return super().call_function(_WITH_DERIVATIVE.get(target, target), args, kwargs)


def replayed(traced: Traced) -> Function:
    """A graph as a function of all its inputs, to be transformed."""
    return lambda *xs: tuple(_Replay(traced.graph, garbage_collect_values=False).run(*xs))


def _function(region: ManualRegion) -> Function:
    return replayed(region.traced)


def _check_rule(region: ManualRegion) -> None:
    """Raise DtypeError for a region whose derivative is not that of its graph."""
    if region.traced.own_rule is not None:
        raise DtypeError(
            message(
                "a mapped function with a derivative of its own cannot be differentiated from outside",
                got=region.traced.own_rule,
                rule="pmap and shard_map differentiate the ops of the function, which do not tell where gradients stop",
                try_="x.detach() in place of torch.no_grad; or grad inside of the mapped function",
            )
        )


def _metas(nodes: Sequence[torch.fx.Node]) -> list[ShapedType]:
    return [ShapedType(tuple(n.meta["val"].shape), n.meta["val"].dtype) for n in nodes]


def _differentiable(metas: Sequence[ShapedType]) -> list[int]:
    return [i for i, m in enumerate(metas) if m.dtype.is_floating_point or m.dtype.is_complex]


class _Mapped(torch.autograd.Function):
    """The op with its rules. Takes the region itself too, to keep it alive as long as the graph of gradients."""

    @staticmethod
    def forward(number: int, region: ManualRegion, *xs: torch.Tensor) -> Any:
        if is_tracing():
            keep(region)
            return tuple(MAPPED(list(xs), number))
        return tuple(region.jitted(*xs))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.region = inputs[1]
        ctx.save_for_backward(*inputs[2:])
        ctx.save_for_forward(*inputs[2:])
        ctx.mark_non_differentiable(*(x for x in output if not (x.is_floating_point() or x.is_complex())))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wanted = tuple(i for i, need in enumerate(ctx.needs_input_grad[2:]) if need)
        region: ManualRegion = ctx.region
        _check_rule(region)
        pulled = _gradient(region, wanted)
        cotangents = [gradients[i] for i in _differentiable(region.outputs)]
        made = iter(apply_region(pulled, [*ctx.saved_tensors, *cotangents]))
        return None, None, *(next(made) if i in wanted else None for i in range(len(ctx.saved_tensors)))

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Any:
        region: ManualRegion = ctx.region
        _check_rule(region)
        moved = tuple(i for i, t in enumerate(tangents) if t is not None)
        pushed = _tangent(region, moved)
        made = iter(apply_region(pushed, [*ctx.saved_tensors, *(tangents[i] for i in moved)]))
        floating = _differentiable(region.outputs)
        return tuple(next(made) if i in floating else None for i in range(len(region.out_dims)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, number: int, region: ManualRegion, *xs: torch.Tensor) -> Any:
        dims = in_dims[2:]
        mapped = tuple(d is not None for d in dims)
        here = axis_names.at_level(axis_names.level() + 1)
        # a mesh axis of the same name was bound inside of the vmap: within the region the name is the mesh's
        name = here.name if here is not None and here.name not in region.mesh.axis_names else None
        batched = _vmapped(region, mapped, info.batch_size, name)
        fronted = [x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True)]
        return apply_region(batched, fronted), (0,) * len(region.out_dims)


def _kept(region: ManualRegion, key: Any, make: Callable[[], ManualRegion]) -> ManualRegion:
    """Regions made of this one, made once."""
    made: dict[Any, ManualRegion] = region.__dict__.setdefault("_derived", {})
    if key not in made:
        made[key] = make()
    return made[key]


def _gradient(region: ManualRegion, wanted: tuple[int, ...]) -> ManualRegion:
    ins, outs = _metas(region.inputs), _metas(region.traced.results)
    floating = _differentiable(outs)
    function = _function(region)

    def pull(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        xs, cotangents = list(given[: len(ins)]), given[len(ins) :]

        def alone(*chosen: torch.Tensor) -> Any:
            for i, x in zip(wanted, chosen, strict=True):
                xs[i] = x
            made = function(*xs)
            return tuple(made[i] for i in floating)

        back: Any = torch.func.vjp(alone, *(xs[i] for i in wanted))[1]
        parts = [region.parts(region.unmentioned(region.out_dims[i])) for i in floating]
        found = back(tuple(g / n if n > 1 else g for g, n in zip(cotangents, parts, strict=True)))
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
    ins = _metas(region.inputs)
    floating = _differentiable(_metas(region.traced.results))
    function = _function(region)

    def push(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        xs, tangents = list(given[: len(ins)]), given[len(ins) :]

        def alone(*chosen: torch.Tensor) -> Any:
            for i, x in zip(moved, chosen, strict=True):
                xs[i] = x
            made = function(*xs)
            return tuple(made[i] for i in floating)

        found: Any = torch.func.jvp(alone, tuple(xs[i] for i in moved), tangents)
        return list(found[1])

    def make() -> ManualRegion:
        cuts = (*region.all_in_dims, *(region.all_in_dims[i] for i in moved))
        metas = (*ins, *(ins[i] for i in moved))
        return make_region(region.mesh, push, metas, cuts, [region.out_dims[i] for i in floating])

    return _kept(region, ("tangent", moved), make)


def _vmapped(region: ManualRegion, mapped: tuple[bool, ...], size: int, name: str | None) -> ManualRegion:
    ins = _metas(region.inputs)
    in_axes = tuple(0 if m else None for m in mapped)
    function = vmap(_function(region), in_axes=in_axes, axis_name=name, axis_size=size)

    def make() -> ManualRegion:
        metas = [
            ShapedType((size, *m.shape), m.dtype) if is_mapped else m for m, is_mapped in zip(ins, mapped, strict=True)
        ]
        cuts = [((), *cut) if is_mapped else cut for cut, is_mapped in zip(region.all_in_dims, mapped, strict=True)]
        return make_region(region.mesh, function, metas, cuts, [((), *cut) for cut in region.out_dims])

    return _kept(region, ("vmap", mapped, size, name), make)


__all__ = ["apply_region", "make_region", "region_of"]
