"""The primitive of a while loop. Its tangent and its vmapped form are while loops again; it has no gradient in reverse.

tangent     the body and its tangent; the test is unchanged
vmap        where the test is mapped, rounds run until it is false for all examples; finished ones keep their carry
partition   one step, whose test and body are programs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.compile.replay import replayed
from tinyshard.compile.tracing import is_effective
from tinyshard.core import axis_names
from tinyshard.core.errors import DtypeError
from tinyshard.core.evaluate import evaluate
from tinyshard.core.primitive import FunctionPrimitive
from tinyshard.core.program import Value, values_in
from tinyshard.core.types import ShapedType
from tinyshard.primitives.branching import While, check_same, settled, types_of
from tinyshard.primitives.varying import Varying
from tinyshard.transforms import bodies, partitioned_bodies
from tinyshard.transforms.vmap import vmap


def apply_while(loop: While, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Apply a while loop within a trace, and within any transformation there."""
    for graph in WHILE.graphs(loop):
        operands = bodies.lifted_along(graph, operands)
    return WHILE.bind(loop, *operands)


class WhilePrimitive(FunctionPrimitive[While]):
    """A while loop: its operands are the carry, and the tensors that its test and its body close over."""

    name = "while_loop"
    asks = True

    def abstract(self, params: While, *xs: ShapedType) -> Sequence[ShapedType]:
        return params.outputs

    def run(self, params: While, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        """On plain tensors, as in a checkpointed function outside of a trace: a Python loop."""
        carry, of_test, of_body = params.parts(xs)
        test, body = replayed(params.test), replayed(params.body)
        while test(*carry, *of_test)[0]:
            carry = body(*carry, *of_body)
        return bodies.own(carry, xs)

    def graphs(self, params: While) -> Sequence[torch.fx.GraphModule]:
        return [params.test.graph, params.body.graph]

    def has_effect(self, args: Sequence[Any]) -> bool:
        return any(map(is_effective, self.graphs(self.params(args))))

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return apply_while(self.params(args), args[0])

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        loop = self.params(args)
        carry, _, _ = loop.parts(given)
        bodies.check_carried("while_loop", loop.body, carry)
        return carry

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> list[frozenset[str]]:
        loop = self.params(args)
        carry, of_test, of_body = loop.parts(given)
        names: frozenset[str] = frozenset()
        while True:  # devices with another number of rounds differ afterwards
            carry, _ = settled(loop.body.graph, [*carry, *of_body], loop.carried, names)
            (asked,) = evaluate(loop.test.graph, Varying(), [*carry, *of_test])
            if asked <= names:
                check_same("while_loop", names, self.graphs(loop))
                return list(carry)
            names |= asked

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        loop = self.params(args)
        carry, of_test, of_body = loop.parts(args[0])
        first = [f"carry, at first {x!r}" for x in carry]
        shown = [[f"{x!r} of the graph around it" for x in part] for part in (of_test, of_body)]
        return [
            f"{result} while({', '.join(map(repr, args[0]))}), a test and a body:",
            *printer.nested(loop.test, [*first, *shown[0]], ""),
            *printer.nested(loop.body, [*first, *shown[1]], ""),
        ]

    # ---- derivatives --------------------------------------------------------------------------------------------

    def transpose(self, ctx: Any, *gradients: torch.Tensor) -> Sequence[torch.Tensor | None]:
        raise DtypeError(
            "a while_loop has no gradient in reverse",
            got="grad, vjp or backward through ts.lax.while_loop",
            rule="how many rounds there are is known when it has run: there is no room for the carry of each",
            try_="ts.lax.scan or ts.lax.fori_loop with a number of rounds; ts.jvp, which goes forwards",
        )

    def check_differentiable(self, params: While) -> None:
        bodies.check_differentiable("while_loop", params.body)

    def tangent(
        self, params: While, moved: tuple[int, ...], xs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        taken, count, end = types_of(params.body.inputs), params.carried, len(params.test.inputs)
        carried = [i for i in range(count) if taken[i].dtype.is_floating_point or taken[i].dtype.is_complex]
        closed = [i for i in moved if i >= end]  # tangents of the test's are not needed
        first, several = count + len(carried), len(taken) - count

        def make() -> While:
            function, test = replayed(params.body), replayed(params.test)
            metas = [*taken[:count], *(taken[i] for i in carried)]

            def push(*values: torch.Tensor) -> Sequence[torch.Tensor]:
                primals = [*values[:count], *values[first : first + several]]
                numbers = [*carried, *(i - end + count for i in closed)]
                along = (*values[count:first], *values[first + several :])
                return bodies.with_tangents(function, primals, numbers, along, range(count), carried)

            def asked(*values: torch.Tensor) -> Sequence[torch.Tensor]:
                return test(*values[:count], *values[first:])

            body = bodies.traced_silently(push, [*metas, *taken[count:], *(taken[i - end + count] for i in closed)])
            return While(bodies.traced_silently(asked, [*metas, *types_of(params.test.inputs)[count:]]), body, first)

        along: While = bodies.derived(params.derived, ("tangent", tuple(closed)), make)
        given = dict(zip(moved, tangents, strict=True))
        starts = [given[i] if i in given else torch.zeros_like(xs[i]) for i in carried]
        return apply_while(along, [*xs[:count], *starts, *xs[count:], *(given[i] for i in closed)])[count:]

    def batch(
        self, params: While, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        here = axis_names.at_level(axis_names.level() + 1)
        name, count, end = None if here is None else here.name, params.carried, len(params.test.inputs)
        mapped = [d is not None for d in dims]
        while True:
            of_test = bodies.depends(params.test.graph, mapped[:end], name)[0]
            is_batched = bodies.depends(params.body.graph, [*mapped[:count], *mapped[end:]], name)
            carry = [a or b or of_test for a, b in zip(mapped[:count], is_batched, strict=True)]
            if carry == mapped[:count]:
                break
            mapped[:count] = carry

        def make() -> While:
            axes = [0 if is_mapped else None for is_mapped in mapped]
            named: dict[str, Any] = {"axis_name": name, "axis_size": size}
            in_test, in_body = tuple(axes[:end]), (*axes[:count], *axes[end:])
            test = vmap(replayed(params.test), in_test, (0 if of_test else None,), **named)
            body = vmap(replayed(params.body), in_body, tuple(axes[:count]), **named)

            def with_dim(metas: Sequence[ShapedType], axes: Sequence[int | None]) -> list[ShapedType]:
                return [
                    m if d is None else replace(m, shape=(size, *m.shape)) for m, d in zip(metas, axes, strict=True)
                ]

            def asked(*values: torch.Tensor) -> Sequence[torch.Tensor]:
                return [x.any() if of_test else x for x in test(*values)]

            def where_asked(*values: torch.Tensor) -> Sequence[torch.Tensor]:
                carry, constants, closed = values[:count], values[count:end], values[end:]
                goes_on = test(*carry, *constants)[0]
                return [
                    torch.where(goes_on.reshape(size, *[1] * (x.dim() - 1)), x, before)
                    for x, before in zip(body(*carry, *closed), carry, strict=True)
                ]

            metas = with_dim(types_of(params.test.inputs), in_test)
            closed = with_dim(types_of(params.body.inputs), in_body)[count:]
            rule = params.body.custom_derivative
            if of_test:
                traced = bodies.traced_body(where_asked, [*metas, *closed], custom_derivative=rule)
            else:
                traced = bodies.traced_body(body, [*metas[:count], *closed], custom_derivative=rule)
            return While(bodies.traced_body(asked, metas), traced, count)

        batched: While = bodies.derived(params.derived, ("vmap", tuple(mapped), of_test, size, name), make)
        operands = [
            x.movedim(d, 0) if d is not None else x.unsqueeze(0).expand(size, *x.shape) if is_mapped else x
            for x, d, is_mapped in zip(xs, dims, mapped, strict=True)
        ]
        again = operands[count:end] if of_test else []  # the body evaluates the test for each example, too
        results = apply_while(batched, [*operands[:end], *again, *operands[end:]])
        return results, [0 if is_mapped else None for is_mapped in mapped[:count]]

    # ---- programs -----------------------------------------------------------------------------------------------

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return partitioned_bodies.while_loop(partitioner, self.params(args), args[0])

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        loop, builder = self.params(args), inliner.builder

        def emit() -> list[Value]:
            body = bodies.inlined(inliner, loop.body)
            test = bodies.inlined(inliner, loop.test)
            if body.communicates or test.communicates:
                test = bodies.inlined(inliner, loop.test, agrees=True)
            parts = tuple(list(part) for part in loop.parts(args[0]))
            return [Value(n) for n in builder.emit("while", parts, {}, loop.outputs, (test, body))]

        results: list[Value] = builder.once(("while", args[1], tuple(values_in(args[0]))), emit)
        return results


WHILE = WhilePrimitive()
