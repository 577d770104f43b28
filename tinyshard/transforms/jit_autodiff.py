"""A jitted function as one op of a transformation: its gradient, tangent and vmapped form are programs too.

    jit(f)(x)                f's program
    grad(jit(f))(x)          f's program, and one for its gradient, which computes f again and then the gradient
    vmap(jit(f))(xs)         one program for all examples
    jit(f)(w).backward()     likewise: results have a `grad_fn` where an operand requires a gradient

Each is made from f's graph, and cached with it. The op runs on operands that no transformation wraps any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tinyshard.arrays.array import op_scope
from tinyshard.compile import replay
from tinyshard.compile.capture import has_effect
from tinyshard.compile.replay import Function, gradients, replayed
from tinyshard.compile.tracing import Traced
from tinyshard.core.evaluate import Interpreter, evaluate, silenced
from tinyshard.core.primitive import FunctionPrimitive
from tinyshard.transforms.vmap import vmap


@dataclass(eq=False)
class Derived:
    """A traced function, and the programs for its derivatives.

    Attributes:
        traced: the graph.
        jit: compiles a function of tensors.
        derived: the functions derived from it, by kind.
    """

    traced: Traced
    jit: Callable[[Function], Function]
    derived: dict[Any, Function] = field(default_factory=dict)

    @cached_property
    def function(self) -> Function:
        """The graph as a function of all its inputs."""
        return replayed(self.traced)

    @cached_property
    def differentiable(self) -> tuple[int, ...]:
        """The results that a gradient may flow from."""
        return tuple(
            i for i, x in enumerate(evaluate(self.traced.graph, _Flow(), map(_flow, self.traced.inputs))) if x is FLOWS
        )

    def derive(self, key: Any, function: Function) -> Function:
        """A function derived from it, compiled once."""
        if key not in self.derived:
            self.derived[key] = self.jit(function)
        return self.derived[key]


FLOWS = object()  # marks a value that a gradient may flow through


class _Flow(Interpreter):
    """The walk over a graph; nodes become FLOWS where a gradient may flow through them, else None."""

    def literal(self, values: torch.Tensor) -> Any:
        return None

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        passes = node.target is not torch.ops.aten.detach.default and not has_effect(node.target)
        passes = passes and any(x is FLOWS for x in tree_leaves((args, kwargs)))
        value = node.meta.get("val")  # None for an op that is called for its effect
        flows = [
            FLOWS if passes and _is_continuous(x) else None for x in tree_leaves(value, is_leaf=lambda x: x is None)
        ]
        return flows if isinstance(value, list | tuple) else flows[0]


def _flow(node: torch.fx.Node) -> Any:
    return FLOWS if _is_continuous(node.meta["val"]) else None


def _is_continuous(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def apply(derived: Derived, run: Function, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Apply a traced function to tensors that transformations may wrap.

    Args:
        derived: the function.
        run: runs its program on unwrapped tensors.
        inputs: its operands, and the tensors that it closes over.
    """
    with op_scope():
        return JITTED.bind((derived, run), *inputs) if inputs else tuple(run())


class JittedPrimitive(FunctionPrimitive[tuple[Derived, Function]]):
    """A jitted function on whole tensors. Never recorded by a trace, which traces the function instead."""

    name = "jitted"

    def run(self, params: tuple[Derived, Function], *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        return params[1](*xs)

    def differentiable(self, params: tuple[Derived, Function], outputs: Sequence[torch.Tensor]) -> Sequence[int]:
        return params[0].differentiable

    def gradient(
        self, params: Any, wanted: tuple[int, ...], xs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        derived, count = params[0], len(xs)

        def pull(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            return gradients(derived.function, given[:count], wanted, derived.differentiable, given[count:])

        with silenced():
            return derived.derive(("gradient", wanted), pull)(*xs, *cotangents)

    def tangent(
        self, params: Any, moved: tuple[int, ...], xs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        derived, count = params[0], len(xs)

        def push(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            return replay.tangents(derived.function, given[:count], moved, derived.differentiable, given[count:])

        with silenced():
            return derived.derive(("tangent", moved), push)(*xs, *tangents)

    def batch(
        self, params: Any, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        fronted = [x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True)]
        in_axes = tuple(None if d is None else 0 for d in dims)
        function = vmap(params[0].function, in_axes=in_axes, axis_size=size)
        batched = params[0].derive(("vmap", in_axes, size), function)(*fronted)
        return batched, [0] * len(batched)


JITTED = JittedPrimitive()
