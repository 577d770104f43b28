"""Functions that become the body of a loop, or a branch: traced once, on stand-ins of one round's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.arrays.explicit import Types
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile.capture import capture_outer, note_modes
from tinyshard.compile.tracing import Traced, trace
from tinyshard.core import axis_names, config
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.evaluate import Interpreter, evaluate, is_silent, silenced
from tinyshard.core.layout import Layout, is_same_placement
from tinyshard.core.primitive import Primitive, primitive_of
from tinyshard.core.program import Builder, Program, Value
from tinyshard.core.thread_state import current_recorder
from tinyshard.core.trace_thread import in_trace_thread
from tinyshard.core.types import ShapedType
from tinyshard.primitives.branching import agreed, types_of
from tinyshard.primitives.collective import COLLECTIVE, lifted, named_in
from tinyshard.primitives.manual_region import Inliner
from tinyshard.sharding.named import spec_for

Function = Callable[..., Sequence[torch.Tensor]]


@in_trace_thread()
def traced_body(
    function: Function,
    metas: Sequence[ShapedType],
    names: Callable[[], list[str]] | None = None,
    custom_derivative: str | None = None,
    types: Types | VaryingTypes | None = None,
) -> Traced:
    """Trace a function of tensors within any trace, transformation or mapped function.

    Args:
        function: of tensors of these `metas`; it returns tensors.
        names: of its arguments, for errors.
        custom_derivative: of the body that it replays, if any.
        types: how its arguments are cut along explicit axes.
    """
    names = names or (lambda: [f"input {i}" for i in range(len(metas))])
    with axis_names.in_region():  # names that vmap has bound outside are free in it
        traced = trace((), lambda xs: tuple(function(*xs)), metas, names, types=types)
    return traced if custom_derivative is None else replace(traced, custom_derivative=custom_derivative)


@in_trace_thread()
def traced_silently(*args: Any, **kwargs: Any) -> Traced:
    """As `traced_body`, for a recomputation of a function: the function's effects were performed before."""
    with silenced():
        return traced_body(*args, **kwargs)


@in_trace_thread()
def traced_in_place(*args: Any) -> Traced:
    """As `traced_body`, with the arguments of `trace`: closed-over tensors can be found again."""
    with axis_names.in_region():
        return trace(*args)


def used_now(traced: Traced) -> tuple[Traced, list[torch.Tensor]]:
    """A body within the trace in progress, and the tensors that it closes over, as operands."""
    recorder = current_recorder()
    note_modes(traced.modes)
    recorder.custom_derivative = recorder.custom_derivative or traced.custom_derivative
    return replace(traced, closed=()), [capture_outer(c.value) for c in traced.closed]


def layouts_of_results(traced: Traced) -> list[Layout | None]:
    """The layout of each result of a body along explicit axes; None for results without a type."""
    named = zip(traced.results, traced.shardings or [None] * len(traced.results), strict=True)
    return [None if at is None else at.layout(node.meta["val"].dim()) for node, at in named]


def check_carried(what: str, traced: Traced, given: Sequence[Layout]) -> None:
    """Along explicit axes: raise ShardingError where a round returns its carry with another sharding."""
    for have, returned in zip(given, traced.shardings, strict=False):
        if returned is not None and not is_same_placement(have, returned.layout(have.ndim)):
            raise ShardingError(
                f"the carry of a {what} changes its sharding from round to round",
                got=f"given {spec_for(have, returned.mesh)!r}, returned {returned.spec!r}",
                rule="along Explicit axes how a value is cut is a part of its type, and a carry has one type",
                try_="ts.reshard of the first carry, or of what a round returns",
            )


def derived(cache: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """A value derived from a loop, cached by the settings that change programs (`config.key`), as autocast."""
    key = (key, config.key(), is_silent())
    if key not in cache:
        cache[key] = make()
    return cache[key]


def lifted_along(graph: torch.fx.GraphModule, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Operands of a body, mapped along the names of its collectives, so that its rule runs at their levels."""
    first, *others = operands
    for name in sorted(named_in(graph)):
        first = lifted(first, axis_names.find(name))
    return [first, *others]


def depends(graph: torch.fx.GraphModule, on: Sequence[bool], name: str | None) -> list[bool]:
    """Which results of a body depend on some of its inputs, or on the position along a mapped name."""
    known: dict[torch.fx.Node, bool] = {}
    return list(evaluate(graph, _Depends(name, known), on, known))


def dependents(graph: torch.fx.GraphModule, on: Sequence[bool]) -> dict[torch.fx.Node, bool]:
    """For each node of a body whether it depends on some of the inputs."""
    known: dict[torch.fx.Node, bool] = {}
    evaluate(graph, _Depends(None, known), on, known)
    return known


class _Depends(Interpreter):
    """The walk over a graph that finds for each node whether it depends on the given inputs."""

    def __init__(self, name: str | None, known: dict[torch.fx.Node, bool]) -> None:
        self._name = name
        self._made = known

    def literal(self, values: torch.Tensor) -> bool:
        return False

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
        return self._name in _names_of(node) or any(self._made[x] for x in node.all_input_nodes)

    def item(self, node: torch.fx.Node, several: bool, position: int) -> bool:
        return several


def _names_of(node: torch.fx.Node) -> set[str]:
    """The names that a node uses, itself or in its bodies."""
    primitive = primitive_of(node.target)
    if primitive is COLLECTIVE:
        return set(COLLECTIVE.params(node.args).axes)
    if not isinstance(primitive, Primitive):
        return set()
    return set().union(*map(named_in, primitive.graphs(primitive.params(node.args))))


def check_differentiable(what: str, traced: Traced) -> None:
    """Refuse a body whose derivative differs from its graph's."""
    if traced.custom_derivative is not None:
        raise DtypeError(
            f"the function of a {what} with a derivative of its own cannot be differentiated from outside",
            got=traced.custom_derivative,
            rule="a loop is differentiated by the ops of its body, which do not tell where gradients stop",
            try_="x.detach() in place of torch.no_grad; or grad inside of the function",
        )


def with_tangents(
    function: Function,
    primals: Sequence[torch.Tensor],
    moved: Sequence[int],
    along: Sequence[torch.Tensor],
    values: Sequence[int],
    tangents: Sequence[int],
) -> list[torch.Tensor]:
    """Some results of a body, and the tangents of some.

    Args:
        function: the body.
        primals: its inputs.
        moved: the numbers of the inputs with a tangent.
        along: these tangents.
        values: the numbers of the results that are returned.
        tangents: the numbers of the results whose tangents are returned, after these.
    """

    def alone(*chosen: torch.Tensor) -> Any:
        inputs = list(primals)
        for i, x in zip(moved, chosen, strict=True):
            inputs[i] = x
        outputs = function(*inputs)
        return tuple(outputs[i] for i in tangents), tuple(outputs[i] for i in values)

    jvp: Any = torch.func.jvp
    _, pushed, aux = jvp(alone, tuple(primals[i] for i in moved), tuple(along), has_aux=True)
    return [*aux, *pushed]


def inlined(inliner: Any, traced: Traced, wanted: Sequence[int] | None = None, *, agrees: bool = False) -> Program:
    """A body on shards, as a program.

    Args:
        inliner: the walk over the graph around it.
        traced: the body.
        wanted: the positions of the results that it should have; None for all.
        agrees: whether its only result must be equal on all devices.
    """
    outer = inliner.builder
    builder = Builder(outer.devices, outer.axes, where=outer.where)
    inputs = [Value(builder.input(meta)) for meta in types_of(traced.inputs)]
    results = evaluate(traced.graph, Inliner(builder, inliner.axes), inputs)
    numbers = [x.number for x in (results if wanted is None else [results[i] for i in wanted])]
    return builder.finish([agreed(builder, numbers[0])] if agrees else numbers)


def own(results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of an op, with a copy of each that is an operand."""
    return [x.clone() if any(x is y for y in operands) else x for x in results]


def zeros(meta: ShapedType) -> torch.Tensor:
    """A tensor of this type."""
    return torch.zeros(meta.shape, dtype=meta.dtype)
