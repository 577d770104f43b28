"""shard_map: one block of the arguments for each device of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_leaves

from tinyshard.arrays.abstract import typeof
from tinyshard.arrays.explicit import is_explicit, type_of
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile.signature import Bound, argument_names
from tinyshard.compile.trace_cache import TraceCacheEntry
from tinyshard.core.axis_names import shared_mesh
from tinyshard.core.errors import DtypeError, MeshError, ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Layout, is_same_placement
from tinyshard.core.leaves import shapes_of
from tinyshard.primitives.manual_region import ManualRegion
from tinyshard.primitives.varying import check_specs
from tinyshard.sharding import NamedSharding, P, PartitionSpec, Sharding
from tinyshard.sharding.mesh import Mesh, current_mesh, names_in
from tinyshard.sharding.named import spec_of
from tinyshard.sharding.prefix import check_entries, spread, spread_over_arguments
from tinyshard.transforms.mapped_function import OverDevices, Split, region_of, types_of


class ShardMapped(OverDevices):
    """A function under shard_map. Made by `shard_map`."""

    what = "shard_map"

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: Mesh | None,
        in_specs: Any,
        out_specs: Any,
        axis_names: Collection[str],
        check_vma: bool,
    ) -> None:
        super().__init__(function, ())
        self._mesh = mesh
        self._axis_names = axis_names
        self._in_specs = in_specs if in_specs is None or _is_spec(in_specs) else tuple(in_specs)
        self._out_specs = out_specs
        self._check_vma = check_vma
        passed = () if in_specs is None or _is_spec(in_specs) else self._in_specs
        self._static_argnums = tuple(i for i, spec in enumerate(passed) if spec is None)

    @property
    def _splits_again(self) -> bool:
        return bool(shared_mesh()[1])

    def _static_now(self, args: Sequence[Any]) -> Sequence[int]:
        """The static arguments: those with None in in_specs, except tensors, which are replicated."""
        passed = [i for i in self._static_argnums if i < len(args)]
        return [i for i in passed if not any(hasattr(x, "shape") for x in tree_leaves(args[i]))]

    def _check(self, region: ManualRegion) -> None:
        if self._check_vma:
            check_specs(region, self._name)

    def _types(self, split: Split) -> VaryingTypes | None:
        return types_of(split) if self._check_vma else None

    def _split(self, bound: Bound) -> Split:
        mesh = self._mesh or shared_mesh()[0] or current_mesh()
        if mesh is None:
            raise MeshError(
                "shard_map has no mesh", got="mesh=None, and none is set", try_="mesh=..., or ts.set_mesh(mesh)"
            )
        names = _names_of(self._axis_names, mesh)
        args, kwargs = bound.arguments
        if kwargs:
            raise DtypeError(
                "shard_map's function is called by position",
                got=f"arguments by name: {', '.join(kwargs)}",
                rule="in_specs say how the positional arguments are cut",
            )
        specs = self._in_specs
        shapes = [s for s, none in zip(shapes_of((args, kwargs)), bound.signature.nones, strict=True) if not none]
        if specs is None:
            types = [type_of(x) for x in bound.operands]
            ins = [
                _layout(mesh, names, P() if have is None else have.spec, shape, len(x.shape))
                for have, shape, x in zip(types, shapes, bound.operands, strict=True)
            ]
            return Split(mesh, names, tuple(ins), (None,) * len(ins))
        if not _is_spec(specs):
            static = {number for number, _, _ in bound.signature.static}
            check_entries(
                "shard_map's in_specs", self._name, specs, argument_names(self._function, len(args) + len(static))
            )
            specs = tuple(spec for i, spec in enumerate(specs) if i not in static)
        arguments = self._argument_names(bound, len(args))
        asked = spread_over_arguments("shard_map's in_specs", self._name, specs, tuple(args), arguments)
        ins = [
            _layout(mesh, names, P() if spec is None else spec, shape, len(x.shape))
            for spec, shape, x in zip(asked, shapes, bound.operands, strict=True)
        ]
        if mesh.is_explicit:
            self._check_places(mesh, bound, ins)
        return Split(mesh, names, tuple(ins), (None,) * len(ins))

    def _check_places(self, mesh: Mesh, bound: Bound, ins: Sequence[Layout]) -> None:
        """Check that along explicit axes each argument is cut as its spec says."""
        for i, (x, at) in enumerate(zip(bound.operands, ins, strict=True)):
            have = type_of(x)
            if have is not None and not is_same_placement(have.layout(len(x.shape)), at):
                raise ShardingError(
                    "shard_map's in_specs are not how its argument is sharded",
                    got=f"argument {bound.names()[i]!r} of {self._name}: {typeof(x)}, and {spec_of(at.dims, mesh)!r}",
                    rule="along Explicit axes shard_map moves no argument",
                    try_="ts.reshard(x, P(...)) before it, or no in_specs, which takes arguments as they are",
                )

    def _outs(self, split: Split, out: Any) -> list[tuple[Layout, int | None]]:
        specs = iter(spread(self._misfit_of_results, self._out_specs, out))
        each = [(P(), 0) if x is None else (next(specs), x.dim()) for x in tree_leaves(out)]
        return [
            (_layout(split.mesh, split.names, spec, shape, ndim, local=True), None)
            for (spec, ndim), shape in zip(each, shapes_of(out), strict=True)
        ]

    @property
    def _misfit_of_results(self) -> str:
        return f"shard_map's out_specs do not fit the result of {self._name}"

    def _named(self, entry: TraceCacheEntry) -> Sequence[Sharding | None] | None:
        region = region_of(entry)
        if region is None or region.is_of_part:
            return None  # along the other axes the partitioner decides
        return [
            NamedSharding(region.mesh, spec)
            for spec in spread(self._misfit_of_results, self._out_specs, entry.traced.tree_of_results)
        ]


def _names_of(axis_names: Collection[str], mesh: Mesh) -> frozenset[str]:
    """The axes of the mesh that a call is for: those in axis_names, by default all that no shard_map around it has.

    Raises:
        MeshError: not a mesh; a name that the mesh does not have, or that a shard_map around it has; another mesh than
            that has; or a part of Explicit axes.
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(
            "shard_map's mesh is a Mesh",
            got=f"{mesh!r} ({type(mesh).__name__})",
            try_="ts.make_mesh((4, 2), ('a', 'b'))",
        )
    names = frozenset({axis_names} if isinstance(axis_names, str) else axis_names)
    around, left = shared_mesh()
    if around is not None and around != mesh:
        raise MeshError(
            "a shard_map inside another one is over another mesh",
            got=f"mesh {mesh.shape}, in a shard_map over {around.shape}",
            rule=f"it is for axes that the outer one leaves: {', '.join(map(repr, sorted(left)))}",
            try_="no mesh, which means that of the outer shard_map",
        )
    left = frozenset(mesh.axis_names) if around is None else left
    if not names <= left:
        raise MeshError(
            "shard_map's axis_names are not among the axes that it can have",
            got=f"axis_names {sorted(names)}, mesh {mesh.shape}",
            rule=f"a name is one of {', '.join(map(repr, sorted(left)))}"
            + ("" if around is None else ", which the shard_map around it leaves"),
            try_="a part of these names; or no axis_names, which means all of them",
        )
    if names and names < left and mesh.is_explicit:
        raise MeshError(
            "shard_map over a part of a mesh whose axes are Explicit",
            got=f"axis_names {sorted(names)}, {mesh!r}",
            rule="the partitioner decides along the other axes, which are Auto for that; in JAX they may be Explicit",
            try_="ts.make_mesh(...) without axis_types, whose axes are Auto; or no axis_names, and specs for all axes",
        )
    return names or left


def _is_spec(specs: Any) -> bool:
    return isinstance(specs, PartitionSpec) or not isinstance(specs, list | tuple)


def _layout(
    mesh: Mesh, names: frozenset[str], spec: Any, shape: Sequence[int], ndim: int, *, local: bool = False
) -> Layout:
    """The layout of `ndim` dims: those of a shape, and perhaps one that the user does not see.

    Raises:
        ShardingError: a name that is not among `names`, more entries than dims, an uneven cut.
        DtypeError: not a PartitionSpec.
    """
    if not isinstance(spec, PartitionSpec):
        raise DtypeError(
            f"shard_map's {'out_specs' if local else 'in_specs'} are PartitionSpecs",
            got=f"{spec!r} ({type(spec).__name__})",
            try_="P('x'), or P()",
        )
    sharding = NamedSharding(mesh, spec)
    layout = sharding.layout(len(shape)) if local else sharding.checked_layout(shape)
    others = sorted(names_in(mesh, layout) - names)
    if others:
        raise ShardingError(
            f"shard_map's {'out_specs' if local else 'in_specs'} name an axis that is not in its axis_names",
            got=f"{spec!r}, axis_names {sorted(names)}, mesh {mesh.shape}",
            rule=f"along {', '.join(map(repr, others))} the partitioner decides: values are whole there",
            try_="the spec without it: an argument stays cut along it as it is, by ts.device_put;\n"
            "or the axis in axis_names, too",
        )
    return replace(layout, dims=layout.dims + ((),) * (ndim - len(shape)))


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] = (),
    check_vma: bool = True,
    **others: Any,
) -> Any:
    """Map a function over the devices of a mesh: each runs it on its block of the arguments.

    Traced once for each signature, as by jit: one program, one message per call. Also a decorator.

    Args:
        f: a function of blocks; its collectives name the axes of the mesh. Tensors that it closes over are replicated.
        mesh: the devices and the names of their axes; by default the one that is set. On an AbstractMesh it can only be
            lowered.
        in_specs: a PartitionSpec for each argument, or a tree of them that is a prefix: which axes cut which dims.
            Along axes that it does not name, every device gets the same block. None for an argument passes a Python
            value unchanged, and replicates a tensor. Without in_specs, on a mesh of Explicit axes, the arguments
            keep their layouts.
        out_specs: likewise how the results of all devices form the whole; along axes that it does not name, the value
            of one device is taken.
        axis_names: the axes that f is for; by default all. It is given blocks along these, and specs and collectives
            name them. Along the others a value is whole in f, and the partitioner cuts it, as in jit: arguments stay
            cut as they are, and `lax.with_sharding_constraint` inside may cut along them. Inside f, another shard_map
            without mesh= may be for these others.
        check_vma: give each value inside a type that says along which axes it may differ between devices. It does if it
            depends on an argument cut along the axis, or on axis_index, and no psum, pmean, pmax, pmin or
            `all_gather(to="invarying")` over the axis makes it the same again. A result that varies along an axis that
            its spec leaves out is refused, and so are a loop's carry and a cond's branches that change the axes. Where
            an op takes a value that varies and one that does not, the latter is marked by `pcast`, whose gradient is a
            psum: the gradient by a value that all devices share, taken inside too, is the sum over all of them. With
            False a gradient inside is each device's own, psum transposes to psum, and what out_specs promise is
            believed; `ts.config.update("check_replicated", True)` lets the devices compare the values.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        A function of whole tensors that returns Arrays. It has `lower`.

    Raises:
        ShardingError: specs that do not fit the arguments or the results; along Explicit axes, other specs than the
            arguments have; or with check_vma what varies otherwise than it has to, as above.
        DtypeError: no in_specs, or an argument that shard_map does not have.
        MeshError: no mesh; axis_names that are not among those of the mesh, or a part of them where they are Explicit.

    Communication: arguments are resharded to in_specs; then the function's collectives, and along axes that axis_names
    leave out those of the partitioner.

    In JAX: arguments laid out otherwise are moved along Auto axes, and are an error along Explicit ones, which
    jax.make_mesh makes. axis_names may leave Explicit axes out; and in a shard_map inside another one collectives may
    name the axes of both, here its own alone. The result of a cond whose predicate varies does so here, and
    not there; a psum over axes of which the operand varies along some, and a pcast of what varies already, are errors
    there.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> mesh = ts.make_mesh((2, 2), ("a", "b"))
        >>> f = shard_map(lambda v: ts.lax.psum(v, "b"), mesh=mesh, in_specs=ts.P("a", "b"), out_specs=ts.P("a"))
        >>> f(torch.arange(8).reshape(4, 2))
        Array([[ 1],
               [ 5],
               [ 9],
               [13]], dtype=int64)
        >>> f = shard_map(lambda v: ts.lax.psum(v, "a"), mesh=mesh, in_specs=ts.P("a"), out_specs=ts.P(),
        ...               axis_names={"a"})
        >>> x = ts.device_put(torch.arange(8).reshape(4, 2), ts.NamedSharding(mesh, ts.P("a", "b")))
        >>> f(x), f(x).sharding.spec  # the columns are cut by the partitioner still
        (Array([[ 4,  6],
               [ 8, 10]], dtype=int64), P(None, 'b'))
    """
    check_others(shard_map, others)
    if f is None:
        return functools.partial(
            shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names, check_vma=check_vma
        )
    if not callable(f):
        raise DtypeError("shard_map takes a function", got=f"{f!r} ({type(f).__name__})")
    whole = mesh or shared_mesh()[0] or current_mesh()
    if in_specs is None and not is_explicit(whole):
        raise DtypeError(
            "shard_map has no in_specs",
            got="in_specs=None",
            rule="in_specs say how each argument is cut over the mesh; where its axes are Explicit, the arguments do",
            try_="in_specs=P('x'), or P() for arguments that every device gets as a whole",
        )
    if whole is not None:
        _names_of(axis_names, whole)
    return ShardMapped(f, mesh, in_specs, out_specs, axis_names, check_vma)
