"""Explicit mode: how each value is cut is a part of its type, known as its op is traced, by the op's rule of factors.

    x: f32[8@x, 4]   w: f32[4, 8]     x @ w    i k, k j -> i j +k     f32[8@x, 8]: the operands agree
    x: f32[8, 4@x]   w: f32[4@x, 8]   x @ w    k is cut on both       an error: which device should have the sum?
    x: f32[8@x, 4]   y: f32[8, 4@x]   x + y    i j, i j -> i j        an error: an operand would have to move

The engine of `partition` decides: an op is allowed if its plan moves no operand. A plan may always cut a whole dim.
Gradients, and functions called with `out_sharding=`, use any plan.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from tinyshard.arrays.abstract import described, sharding_in_type
from tinyshard.arrays.constraint import Target, placed_at
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.core.errors import ShardingError
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import Primitive, primitive_of
from tinyshard.core.thread_state import types_around
from tinyshard.partition.explicit import PRODUCTS, Conflict, dims_of_results
from tinyshard.partition.op_table import AS_RESHAPE
from tinyshard.partition.reshard import Dims, ShardedVar
from tinyshard.partition.rules import has_rule
from tinyshard.partition.shape_inference import UnknownShape
from tinyshard.sharding import NamedSharding, PartitionSpec
from tinyshard.sharding.mesh import Mesh, current_mesh, layout_on
from tinyshard.sharding.named import spec_for, spec_of

aten = torch.ops.aten
F = TypeVar("F", bound=Callable[..., Any])

_is_chosen: ContextVar[bool] = ContextVar("tinyshard_sharding_is_chosen", default=False)
_called: ContextVar[str] = ContextVar("tinyshard_called", default="")


@contextlib.contextmanager
def chosen() -> Iterator[None]:
    """A block in which the partitioner chooses, since the user named the sharding of the result."""
    token = _is_chosen.set(True)
    try:
        yield
    finally:
        _is_chosen.reset(token)


@contextlib.contextmanager
def called(function: str) -> Iterator[None]:
    """In this block ops are part of a function of the package's: errors name it, and of two the outer one."""
    token = _called.set(_called.get() or function)
    try:
        yield
    finally:
        _called.reset(token)


def known_as(name: str) -> Callable[[F], F]:
    """A decorator of a function that is `called` by this name; no frame of contextlib is in its tracebacks."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            with called(name):
                return function(*args, **kwargs)

        return cast(F, named)

    return decorate


def follows_operands() -> bool:
    """Whether ops that leave a choice are refused now: not in a backward pass, and not within `chosen`."""
    return torch._C._current_graph_task_id() == -1 and not _is_chosen.get()


def sharding_of(x: Any) -> NamedSharding | None:
    """How an Array, or a ShapeDtypeStruct, is cut over an explicit mesh; None for any other value."""
    mesh = getattr(x, "_mesh", None)
    if mesh is None or not mesh.is_explicit:
        return None
    spec = spec_for(x._layout, mesh) if x._layout.devices == mesh.device_ids else None
    return None if spec is None else NamedSharding(mesh, spec)


def type_of(x: Any) -> NamedSharding | None:
    """How a value, traced and mapped ones too, is cut over an explicit mesh; None for any other value."""
    sharding = sharding_in_type(x)
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.is_explicit else None


def cut_as(g: torch.Tensor, x: Any) -> torch.Tensor:
    """A gradient in the layout of its value, if that is cut along explicit axes."""
    sharding = type_of(x)
    return g if sharding is None else placed_at(g, Target(sharding, True))


def types_within(
    values: Sequence[Any], of_rows: int = 0, least: frozenset[str] = frozenset()
) -> Types | VaryingTypes | None:
    """The types of a body that is a part of the trace in progress, if that has some.

    Args:
        values: its first operands; of the last `of_rows` it is passed one row, along dim 0, at a time.
    """
    around: Types | VaryingTypes | None = types_around()
    if around is None:
        return None
    if isinstance(around, VaryingTypes):
        return around.within(values, least)
    found = [type_of(x) for x in values]
    for i in range(len(values) - of_rows, len(values)):
        have = found[i]
        found[i] = None if have is None else NamedSharding(have.mesh, PartitionSpec(*have.spec[1:]))
    return Types(found, around)


def types_of(operands: Sequence[Any]) -> tuple[NamedSharding | None, ...] | None:
    """How the operands of a call are cut, as a part of its signature; None if no mesh is explicit."""
    found = tuple(map(sharding_of, operands))
    return found if any(found) or is_explicit(current_mesh()) else None


def is_explicit(mesh: Mesh | None) -> bool:
    """Whether there is a mesh, and its axes are explicit."""
    return mesh is not None and mesh.is_explicit


class Types:
    """How the values of a trace are cut; values without an entry are whole.

    Args:
        arguments: how the arguments of the traced function are cut.
        around: the types of the trace around this one, whose values it closes over.

    Attributes:
        mesh: the mesh whose axes cut them; None while there is no explicit one.
    """

    says_what_varies = False

    def __init__(self, arguments: Sequence[NamedSharding | None] = (), around: Types | None = None) -> None:
        mesh = current_mesh()
        self.mesh: Mesh | None = mesh if is_explicit(mesh) else None
        self.arguments = arguments
        self._around = around
        self._dims: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for sharding in arguments:
            if sharding is not None:
                self._know(sharding.mesh)

    def _know(self, mesh: Mesh) -> None:
        """The first explicit mesh that a value names is that of this trace, and of those around it."""
        self.mesh = self.mesh or mesh
        if self._around is not None:
            self._around._know(mesh)

    def sharding_of(self, x: Any) -> NamedSharding | None:
        """The sharding of a stand-in; None where no mesh is explicit."""
        if x not in self._dims and self._around is not None:
            return self._around.sharding_of(x)
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, spec_of(self._of(x), self.mesh))

    def _of(self, x: Any) -> Dims:
        dims: Dims = self._dims.get(x, ((),) * x.dim())
        return dims

    def note_arguments(self, stand_ins: Sequence[torch.Tensor]) -> None:
        """Note the stand-ins for the arguments of the traced function."""
        for x, sharding in zip(stand_ins, self.arguments, strict=False):
            self.note(x, sharding)

    def note(self, x: torch.Tensor, sharding: NamedSharding | None) -> None:
        """Note the sharding of a stand-in."""
        if sharding is not None:
            self._know(sharding.mesh)
            assert self.mesh is not None
            self._dims[x] = _dims_on(self.mesh, sharding.layout(x.dim()))

    def note_captured(self, stand_in: torch.Tensor, x: Any) -> None:
        """A stand-in for a value that the traced function closes over."""
        self.note(stand_in, type_of(x))

    def of_results(self, op: Any, args: Any, kwargs: Any) -> Sequence[Dims | None]:
        """How the results of an op of the trace are cut; empty if they are whole.

        Raises:
            ShardingError: the operands leave a choice.
        """
        primitive = primitive_of(op)
        for sharding in primitive.shardings(primitive.params(args)) if isinstance(primitive, Primitive) else ():
            if isinstance(sharding, NamedSharding) and sharding.mesh.is_explicit:
                self._know(sharding.mesh)
        if self.mesh is None or not any("Tensor" in str(each.type) for each in op._schema.returns):
            return ()
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if primitive is not None:
            layouts = primitive.typed(args, [layout_on(self.mesh, self._of(x)) for x in operands])
            if layouts is not NotImplemented:
                return [None if at is None else _dims_on(self.mesh, at) for at in layouts]
        if not any(x in self._dims for x in operands):
            return ()

        def variable(x: torch.Tensor) -> ShardedVar:
            return ShardedVar(0, tuple(x.shape), x.dtype, self._of(x))

        with _disable_current_modes(), temporarily_clear_interpreter_stack(), torch._C.DisableTorchFunction():
            return dims_on(self.mesh, op, *tree_map_only(torch.Tensor, variable, (args, kwargs)))

    def note_results(self, results: Any, cut: Sequence[Dims | None]) -> None:
        """Note the shardings of an op's results."""
        for x, dims in zip(tree_leaves(results), cut, strict=False):
            if isinstance(x, torch.Tensor) and dims is not None:
                self._dims[x] = dims


def _dims_on(mesh: Mesh, layout: Layout) -> Dims:
    """A layout by the axes of a mesh; whole if they cannot express it."""
    if layout.devices == mesh.device_ids and layout.axes == mesh.axis_sizes:
        return layout.dims
    spec = spec_for(layout, mesh) if layout.devices == mesh.device_ids else None
    return ((),) * layout.ndim if spec is None else NamedSharding(mesh, spec).layout(layout.ndim).dims


def dims_on(mesh: Mesh, op: Any, args: Any, kwargs: Any) -> Sequence[Dims | None]:
    """How the results of an op are cut, by the axes of a mesh; empty where their shapes depend on values.

    Args:
        mesh: the mesh.
        op: an OpOverload; an in-place op is treated as the op of the same name that makes a new value.
        args, kwargs: its arguments, with a ShardedVar on the mesh's axes for each tensor.

    Raises:
        ShardingError: the operands leave a choice.
    """
    functional = _out_of_place(op)
    if functional is not op and not has_rule(functional):
        return [args[0].dims]
    op = functional
    try:
        return dims_of_results(op, args, kwargs, mesh.axis_sizes, refuses=follows_operands())
    except Conflict as conflict:
        raise _refusal(mesh, conflict) from None
    except UnknownShape:
        return ()


def check_eager(mesh: Mesh, op: Any, args: Any, kwargs: Any) -> None:
    """Refuse an op on Arrays whose shardings leave a choice.

    Raises:
        ShardingError: they do.
    """

    def variable(x: Any) -> ShardedVar:
        sharding = sharding_of(x)
        dims = ((),) * x.dim() if sharding is None else sharding.layout(x.dim()).dims
        return ShardedVar(0, tuple(x.shape), x.dtype, dims)

    dims_on(mesh, op, *tree_map_only(torch.Tensor, variable, (args, kwargs)))


def _out_of_place(op: Any) -> Any:
    if not op._schema.is_mutable:
        return op
    packet = getattr(aten, op._schema.name.removeprefix("aten::").removesuffix("_"), None)
    return getattr(packet, op._overloadname, op)


def _refusal(mesh: Mesh, conflict: Conflict) -> ShardingError:
    name = _called.get() or conflict.op._schema.name.split("::")[1]
    got = " and ".join(
        described(x.shape, x.dtype, NamedSharding(mesh, spec_of(x.dims, mesh))) for x in conflict.operands
    )
    problem, rule = _KINDS[conflict.kind]
    return ShardingError(
        f"{name}: {problem}",
        got=f"{got}, by the rule `{conflict.rule}`" if conflict.rule else f"{got}; it has no rule",
        rule=rule,
        try_=_WITH_OUT_SHARDING.get(conflict.op, "") + "ts.reshard(x, P(...)) of an operand",
    )


_STAYS = "along Explicit axes an op runs where its operands are, and none of them is moved"
# kind of conflict -> the problem, and the rule
_KINDS = {
    "sum": (
        "contracting dims are sharded, and it is ambiguous how the result should be sharded",
        "each device has a part of the sum: the result may be whole on every device, or cut",
    ),
    "whole": ("a dim is sharded that the op needs whole", _STAYS),
    "blocks": ("a dim is split or merged where it is sharded", _STAYS),
    "apart": ("its operands are sharded differently", _STAYS),
}
# op -> the function that takes out_sharding
_WITH_OUT_SHARDING = {
    **dict.fromkeys(PRODUCTS - {aten.convolution.default}, "ts.lax.dot or ts.lax.einsum with out_sharding=P(...), or "),
    **dict.fromkeys(AS_RESHAPE, "ts.lax.reshape(x, sizes, out_sharding=P(...)), or "),
}
