"""The primitive of a call. Its gradient, its tangent and its vmapped form are calls again.

gradient    where one will be needed, the call also returns the values that `Derivation.split` saves for it
tangent     by `Derivation.tangent`
vmap        a call of the vmapped function
partition   the function's ops, written into the program; those of `checkpoint` are never merged with equal ones outside

In the gradient of a gradient, the outer one differentiates the ops of a call that saves values.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch._C._functorch import is_batchedtensor, maybe_get_level
from torch.autograd import forward_ad

from tinyshard.arrays.array import Array, op_scope
from tinyshard.compile.capture import capture_outer
from tinyshard.compile.replay import replayed
from tinyshard.compile.trace_cache import TraceCacheEntry
from tinyshard.compile.tracing import drop_dead_code, is_effective
from tinyshard.core import axis_names
from tinyshard.core.evaluate import GraphModule, evaluate, silence_of
from tinyshard.core.primitive import FunctionPrimitive
from tinyshard.core.program import Builder
from tinyshard.core.types import ShapedType
from tinyshard.primitives.call import Call
from tinyshard.primitives.manual_region import Inliner
from tinyshard.primitives.varying import Varying
from tinyshard.transforms import bodies
from tinyshard.transforms.recomputed import RECOMPUTED
from tinyshard.transforms.vmap import vmap

_level: ContextVar[int] = ContextVar("tinyshard_level_of_gradient", default=0)  # of the call that is being bound


def apply_call(call: Call, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Apply a call, within a trace and within any transformation, or outside of both.

    Args:
        call: the call.
        operands: the function's operands, and the tensors that it closes over; constants may be left out.

    Returns:
        The results of the function; for a call that saves values, the saved ones too.
    """
    operands = _with_constants(call, operands)
    if not operands:
        return list(replayed(call.body)())
    operands = bodies.lifted_along(call.body.graph, operands)
    with op_scope():
        pairs = _pairs(operands) if call.derivation.tells_results and call.backwards is None else None
        if pairs is not None:
            return _with_tangents(call, *pairs)
        level = _level_of_gradient(operands) if call.derivation.saves and call.backwards is None else None
        if level is None:
            return list(CALL.bind(call, *operands))
        both = saving(call, tuple(i for i, x in enumerate(operands) if x.requires_grad))
        token = _level.set(level)
        try:
            return list(CALL.bind(both, *_with_constants(both, operands))[: call.count])
        finally:
            _level.reset(token)


def _with_constants(call: Call, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All operands: constants that a graph closes over are its last inputs."""
    missing = len(call.taken) - len(operands)
    constants = call.body.closed[len(call.body.closed) - missing :] if missing else ()
    return [*operands, *(capture_outer(c.value) for c in constants)]


def _level_of_gradient(operands: Sequence[torch.Tensor]) -> int | None:
    """The level of the torch.func transformation that processes the call first, if it takes a gradient.

    That is 0 for torch's tape; None for another transformation, whose rule applies a call again.
    """
    levels = [max(maybe_get_level(x), 0) for x in operands]
    first = [x for x, level in zip(operands, levels, strict=True) if level == max(levels)]
    if not torch.is_grad_enabled() or any(map(is_batchedtensor, first)) or not any(x.requires_grad for x in first):
        return None
    return max(levels)


def _pairs(operands: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]] | None:
    """The operands, and the tangents of some, if the first transformation to meet the call asks for its tangent."""
    level = torch._C._functorch.maybe_current_level() or 0
    if forward_ad._current_level < 0 or any(map(is_batchedtensor, operands)):
        return None
    if all(max(maybe_get_level(x), 0) < level for x in operands):
        return None  # the innermost transformation has no part in the call
    pairs = [forward_ad.unpack_dual(x) for x in operands]
    tangents = {i: x.tangent for i, x in enumerate(pairs) if x.tangent is not None}
    return ([x.primal for x in pairs], tangents) if tangents else None


def _with_tangents(call: Call, xs: Sequence[torch.Tensor], given: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """The results with their tangents, both as the derivation has them."""
    pushed = apply_call(tangent_of(call, tuple(given)), [*xs, *given.values()])
    results, tangents = pushed[: call.count], pushed[call.count :]
    found = dict(zip(call.flowing, tangents, strict=True))
    return [forward_ad.make_dual(x, found[i]) if i in found else x for i, x in enumerate(results)]


def tangent_of(call: Call, moved: tuple[int, ...]) -> Call:
    """The call of the operands and of tangents of the moved ones."""
    along: Call = bodies.derived(call.derived, ("tangent", moved), lambda: call.derivation.tangent(call, moved))
    return along


def saving(call: Call, wanted: tuple[int, ...]) -> Call:
    """The same call, which also returns the values that the gradients of the wanted operands need."""

    def make() -> Call:
        parts = call.derivation.split(call, wanted)
        backwards = Call(parts.backwards, replace(RECOMPUTED, name=call.derivation.name), len(wanted))
        if call.derivation.is_apart:
            backwards = replace(backwards, derivation=call.derivation)
        shardings = call.body.shardings and (*call.body.shardings, *[None] * (len(parts.forwards.results) - call.count))
        forwards = replace(parts.forwards, shardings=tuple(shardings))  # saved values are typed as in backward passes
        return Call(forwards, call.derivation, call.count, len(call.taken), wanted, backwards)

    parts: Call = bodies.derived(call.derived, ("gradient", wanted), make)
    return parts


def as_ops(call: Call) -> Call:
    """A call that saves values, as a function that returns all of them and is differentiated op by op."""
    apart = call.derivation if call.derivation.name == "checkpoint" else RECOMPUTED
    as_ops: Call = bodies.derived(call.derived, "as ops", lambda: Call(call.body, apart, len(call.outputs)))
    return as_ops


class CallPrimitive(FunctionPrimitive[Call]):
    """A call: the operands of the function, and then the tensors that it closes over."""

    name = "call"

    def abstract(self, params: Call, *xs: ShapedType) -> Sequence[ShapedType]:
        return params.outputs

    def run(self, params: Call, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        if not any(isinstance(x, Array) for x in xs):
            return bodies.own(replayed(params.body)(*xs), xs)
        entry = bodies.derived(params.derived, "entry", lambda: TraceCacheEntry(params.body))
        return list(entry.call(xs, f"a function under {params.derivation.name}"))

    def graphs(self, params: Call) -> Sequence[torch.fx.GraphModule]:
        return [params.body.graph]

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        return bodies.layouts_of_results(self.params(args).body)

    def has_effect(self, args: Sequence[Any]) -> bool:
        return is_effective(self.params(args).body.graph)

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        call = self.params(args)
        return apply_call(call if call.backwards is None else as_ops(call), args[0])

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> list[frozenset[str]]:
        return list(evaluate(self.params(args).body.graph, Varying(), given))

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        call = self.params(args)
        inputs = [f"{x!r} of the graph around it" for x in args[0]]
        first = f"{result} {call.derivation.name}({', '.join(map(repr, args[0]))}):"
        return [first, *printer.nested(call.body, inputs, "")]

    # ---- derivatives --------------------------------------------------------------------------------------------

    def save(self, ctx: Any, params: Call, xs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.is_outer = params.backwards is not None and axis_names.level() != _level.get()
        saved = outputs[params.count :]
        ctx.save_for_backward(*xs, *saved)
        ctx.save_for_forward(*xs, *saved)

    def transpose(self, ctx: Any, *gradients: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        call, count = ctx.params, len(ctx.params.taken)
        bodies.check_differentiable(call.derivation.name, call.body)
        xs, saved = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        wanted = tuple(i for i, need in enumerate(ctx.needs_input_grad[2:]) if need)
        if not wanted or all(g is None for g in gradients):
            return [None] * count
        if ctx.is_outer or not set(wanted) <= set(call.wanted or wanted):
            call, saved = as_ops(call), ()
        if call.backwards is None:
            call = saving(call, wanted)
            saved = CALL.bind(call, *_with_constants(call, xs))[call.count :] if len(call.outputs) > call.count else ()
        metas = call.outputs
        cotangents = [_or_zeros(gradients[i], metas[i]) for i in call.flowing]
        assert call.backwards is not None
        found = dict(
            zip(call.wanted, apply_call(call.backwards, [*saved, *xs[: call.operands], *cotangents]), strict=True)
        )
        return [found[i] if i in wanted else None for i in range(count)]

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        call, count = ctx.params, len(ctx.params.taken)
        bodies.check_differentiable(call.derivation.name, call.body)
        xs = ctx.saved_tensors[:count]
        call = call if call.backwards is None else as_ops(call)
        moved = tuple(i for i, t in enumerate(tangents) if t is not None)
        flowing = call.flowing
        pushed = apply_call(tangent_of(call, moved), [*xs, *(t for t in tangents if t is not None)])
        found = dict(zip(flowing, pushed[len(pushed) - len(flowing) :], strict=True))
        return [found.get(i) for i in range(ctx.count)]

    def batch(
        self, params: Call, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        here = axis_names.at_level(axis_names.level() + 1)
        name = None if here is None else here.name
        call = params if params.backwards is None else as_ops(params)
        in_axes = tuple(None if d is None else 0 for d in dims)

        def make() -> Call:
            function = vmap(replayed(call.body), in_axes, axis_name=name, axis_size=size)
            metas = [
                m if d is None else replace(m, shape=(size, *m.shape)) for m, d in zip(call.taken, in_axes, strict=True)
            ]
            with silence_of(call.body.graph):
                body = bodies.traced_body(function, metas, custom_derivative=call.body.custom_derivative)
            return Call(body, call.derivation.batched(call, in_axes, size, name), call.count)

        batched = bodies.derived(call.derived, ("vmap", in_axes, size, name), make)
        outputs = apply_call(batched, [x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True)])
        return outputs, [0] * len(outputs)

    # ---- programs -----------------------------------------------------------------------------------------------

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        call, walk = self.params(args), partitioner.within(partitioner.builder)
        with _steps(partitioner.builder, call):
            return list(evaluate(_needed(call, node), walk, args[0], walk.values))

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        call = self.params(args)
        with _steps(inliner.builder, call):
            return list(evaluate(call.body.graph, Inliner(inliner.builder, inliner.axes), args[0]))


CALL = CallPrimitive()


def _steps(builder: Builder, call: Call) -> contextlib.AbstractContextManager[None]:
    return builder.apart() if call.derivation.is_apart else contextlib.nullcontext()


def _needed(call: Call, node: torch.fx.Node) -> torch.fx.GraphModule:
    """The graph of a call; without the values that it saves, if nothing uses them.

    A backward pass is itself a call that saves values, for a second derivative. A saved value is a result, so a partial
    sum among them would be combined, although no one reads it.
    """
    used: list[Any] = [user.args[1] if user.target is operator.getitem else call.count for user in node.users]
    if len(call.outputs) == call.count or max(used, default=0) >= call.count:
        return call.body.graph
    module: torch.fx.GraphModule = bodies.derived(call.derived, "without saved values", lambda: _without_saved(call))
    return module


def _without_saved(call: Call) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    results: Any = graph.graph_copy(call.body.graph.graph, {})
    graph.output(list(results)[: call.count])
    module = GraphModule(call.body.graph, graph)
    module.meta.update(call.body.graph.meta)
    drop_dead_code(module)
    return module


def _or_zeros(x: torch.Tensor | None, meta: ShapedType) -> torch.Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype) if x is None else x
