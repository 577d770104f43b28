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
from tinyshard.core.errors import DtypeError, MeshError, ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Layout, is_same_placement
from tinyshard.core.leaves import shapes_of
from tinyshard.primitives.manual_region import ManualRegion
from tinyshard.primitives.varying import check_specs
from tinyshard.sharding import NamedSharding, P, PartitionSpec, Sharding
from tinyshard.sharding.mesh import Mesh, current_mesh
from tinyshard.sharding.named import spec_of
from tinyshard.sharding.prefix import check_entries, spread, spread_over_arguments
from tinyshard.transforms.mapped_function import OverDevices, Split, region_of, types_of


class ShardMapped(OverDevices):
    """A function under shard_map. Made by `shard_map`."""

    what = "shard_map"

    def __init__(
        self, function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any, check_vma: bool
    ) -> None:
        super().__init__(function, ())
        self._mesh = mesh
        self._in_specs = in_specs if in_specs is None or _is_spec(in_specs) else tuple(in_specs)
        self._out_specs = out_specs
        self._check_vma = check_vma
        passed = () if in_specs is None or _is_spec(in_specs) else self._in_specs
        self._static_argnums = tuple(i for i, spec in enumerate(passed) if spec is None)

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
        mesh = self._mesh or current_mesh()
        if mesh is None:
            raise MeshError(
                "shard_map has no mesh", got="mesh=None, and none is set", try_="mesh=..., or ts.set_mesh(mesh)"
            )
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
                _layout(mesh, P() if have is None else have.spec, shape, len(x.shape))
                for have, shape, x in zip(types, shapes, bound.operands, strict=True)
            ]
            return Split(mesh, tuple(ins), (None,) * len(ins))
        if not _is_spec(specs):
            static = {number for number, _, _ in bound.signature.static}
            check_entries(
                "shard_map's in_specs", self._name, specs, argument_names(self._function, len(args) + len(static))
            )
            specs = tuple(spec for i, spec in enumerate(specs) if i not in static)
        names = self._argument_names(bound, len(args))
        asked = spread_over_arguments("shard_map's in_specs", self._name, specs, tuple(args), names)
        ins = [
            _layout(mesh, P() if spec is None else spec, shape, len(x.shape))
            for spec, shape, x in zip(asked, shapes, bound.operands, strict=True)
        ]
        if mesh.is_explicit:
            self._check_places(mesh, bound, ins)
        return Split(mesh, tuple(ins), (None,) * len(ins))

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

    def _outs(self, mesh: Mesh, out: Any) -> list[tuple[Layout, int | None]]:
        specs = iter(spread(self._misfit_of_results, self._out_specs, out))
        return [
            (_layout(mesh, P() if x is None else next(specs), shape, 0 if x is None else x.dim(), local=True), None)
            for x, shape in zip(tree_leaves(out), shapes_of(out), strict=True)
        ]

    @property
    def _misfit_of_results(self) -> str:
        return f"shard_map's out_specs do not fit the result of {self._name}"

    def _named(self, entry: TraceCacheEntry) -> Sequence[Sharding | None] | None:
        region = region_of(entry)
        if region is None:
            return None
        return [
            NamedSharding(region.mesh, spec)
            for spec in spread(self._misfit_of_results, self._out_specs, entry.traced.tree_of_results)
        ]


def _is_spec(specs: Any) -> bool:
    return isinstance(specs, PartitionSpec) or not isinstance(specs, list | tuple)


def _layout(mesh: Mesh, spec: Any, shape: Sequence[int], ndim: int, *, local: bool = False) -> Layout:
    """The layout of `ndim` dims: those of a shape, and perhaps one that the user does not see.

    Raises:
        ShardingError: a name that the mesh does not have, more entries than dims, an uneven cut.
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
        axis_names: all names of the mesh, or none, which means all.
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
        MeshError: no mesh; or axis_names are not those of the mesh.

    Communication: arguments are resharded to in_specs; then the function's collectives.

    In JAX: axis_names may be a part of the mesh's. Arguments laid out otherwise are moved along Auto axes, and are an
    error along Explicit ones, which jax.make_mesh makes. The result of a cond whose predicate varies does so here, and
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
    """
    check_others(shard_map, others)
    if f is None:
        return functools.partial(
            shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names, check_vma=check_vma
        )
    if not callable(f):
        raise DtypeError("shard_map takes a function", got=f"{f!r} ({type(f).__name__})")
    whole = mesh or current_mesh()
    if in_specs is None and not is_explicit(whole):
        raise DtypeError(
            "shard_map has no in_specs",
            got="in_specs=None",
            rule="in_specs say how each argument is cut over the mesh; where its axes are Explicit, the arguments do",
            try_="in_specs=P('x'), or P() for arguments that every device gets as a whole",
        )
    if axis_names and whole is not None and set(axis_names) != set(whole.axis_names):
        raise MeshError(
            "shard_map maps over all axes of its mesh",
            got=f"axis_names {sorted(axis_names)}, mesh {whole.shape}",
            rule="a part of the axes cannot be left to the partitioner here, as it can in JAX",
            try_="no axis_names; specs that leave the other axes out give every device along them the same block",
        )
    return ShardMapped(f, mesh, in_specs, out_specs, check_vma)
